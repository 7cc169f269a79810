"""Sweeps on a real Slurm: an array with a limit, of which a part is cancelled; arrays that Slurm's own limit splits."""

import sys
from pathlib import Path

import pytest

from runner.box import Box
from tests.support.commands import Runner, ran
from tests.support.daemons import Daemons, own_box
from tests.support.documents import result
from tests.support.rank_records import document_of
from tests.support.waiting import until

pytestmark = pytest.mark.integration
PROGRAM = 'import sys, time; print(sys.argv[1]); time.sleep(float(sys.argv[2])); sys.exit("bad" in sys.argv[1])'


def test_an_array_with_a_limit_of_which_a_part_is_cancelled(cluster: Box, tmp_path: Path) -> None:
    runner = Runner.at(cluster.site, tmp_path, cluster.bin_dir)
    words = ("submit", "--gpus", "1", "--runtime", "native", "--name", "exp", "--time", "5:00", "--at-once", "1")
    program = ("--", sys.executable, "-c", PROGRAM, '{"lr": "{lr}", "k": {k}}', "{s}")
    swept = ("--sweep", r'lr=a b $HOME,x\,é"{s},bad', "--sweep", "s=2", "--sweep", "more=1")
    assert "no {more} in the command" in runner(*words, *swept, *program, code=2).err
    runner(*words, *swept[:4], *program, code=0)
    (sweep,) = runner.runs.glob("*-exp-sweep")
    array = document_of(next(sweep.glob("launches/1/*")), "job")["job_id"].partition("_")[0]
    queued = ran([cluster.bin_dir / "squeue", "--noheader", "--array", f"--jobs={array}", "--format=%i"]).out.split()
    assert sorted(queued) == [f"{array}_{task}" for task in (1, 2, 3)]

    longer = ("--sweep", "s=300,301,302")
    runner(*words[:5], "--name", "long", "--at-once", "2", *longer, *program[:4], "x", "{s}", code=0)

    def states(name: str) -> list[str]:
        return [each["state"] for each in result(runner("status", name, "--json", code=0).out)["runs"]]

    until(lambda: states("long").count("running") == 2, "two of the long ones run", timeout_s=60)
    assert states("long")[2] == "pending"
    assert runner("shell", "long.2", "--", "bash", "-c", "echo $SLURM_ARRAY_TASK_ID", code=0).out == "2\n"
    runner("cancel", "long.3", "long.1", code=0)
    until(lambda: states("long") == ["ended", "running", "ended"], "two have ended", timeout_s=60)
    runner("cancel", "long", code=0)
    assert runner("wait", "long", "--timeout", "300", code=5).out.count("verdict: cancelled") == 3

    done = runner("wait", array, "--timeout", "400", code=5)
    assert done.out.count("verdict: failed") == 1
    facts = result(runner("status", "exp", "--json", code=0).out)["runs"]
    assert [(each["values"]["lr"], each["outcome"]) for each in facts] == [
        ("a b $HOME", "ran"), ('x,é"{s}', "ran"), ("bad", "failed"),
    ]  # fmt: skip
    runs = [Path(each["directory"]) for each in facts]
    texts = [(run / "logs/rank-0.out").read_text() for run in runs]
    assert texts == [f'{{"lr": "{each["values"]["lr"]}", "k": {{k}}}}\n' for each in facts]
    begun = [document_of(run, "ranks/0.start")["time_s"] for run in runs[1:]]
    assert all(document_of(run, "exit")["end_s"] <= time_s + 1 for run, time_s in zip(runs[:-1], begun, strict=True))
    rows = result(runner("report", "exp", "--json", "-o", str(tmp_path / "report"), code=0).out)["rows"]
    assert [row["run"] for row in rows] == [each["run"] for each in facts]


def test_arrays_are_as_small_as_slurm_has_them_and_a_job_waits_for_all(tmp_path: Path) -> None:
    with own_box("arrays") as box:
        Daemons(box).configure(MaxArraySize="3")  # no task has the number 3
        for node in box.spec.node_names:
            Daemons(box).await_up(node)
        runner = Runner.at(box.site, tmp_path, box.bin_dir)
        words = ("submit", "--gpus", "1", "--runtime", "native", "--time", "5:00")
        program = ("--", sys.executable, "-c", PROGRAM)
        runner(*words, "--name", "exp", "--sweep", "s=1,2,20", *program, "x", "{s}", code=0)
        runner(*words, "--name", "after", "--dependency", "afterok:exp", *program, "x", "0", code=0)
        (sweep,) = runner.runs.glob("*-exp-sweep")
        (after,) = runner.runs.glob("*-after*")
        jobs = [document_of(path, "job")["job_id"] for path in sorted(sweep.glob("launches/*/*"))]
        first, last = jobs[0].partition("_")[0], jobs[2].partition("_")[0]
        assert (jobs, first != last) == ([f"{first}_1", f"{first}_2", f"{last}_1"], True)
        runner("wait", "exp", "after", "--timeout", "300", code=0)
        ends = [document_of(path, "exit")["end_s"] for path in sweep.glob("launches/*/*")]
        assert document_of(after, "ranks/0.start")["time_s"] >= max(ends) - 1
