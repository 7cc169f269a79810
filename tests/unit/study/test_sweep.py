"""Sweeps on a Slurm that stand-ins play, and on this machine: submitted, half submitted, found and cancelled."""

import os
import sys
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, UsageError
from runner.jobs.campaign import Campaign
from runner.jobs.directory import Run
from runner.jobs.states import Together, query, scheduler_of
from runner.study.directory import find_subjects, find_sweep
from tests.support.documents import result
from tests.support.shell_files import stand_in

OF = ("submit", "--gpus", "1", "--runtime", "native", "--name", "exp")
SLURM = (*OF, "--site", "technion", "--force", "runtime-not-at-site")
ODD = r'--sweep=v=a b,$(id)"{w},x\,é'
PROGRAM = ("--", "python3", "t.py", '{"v": "{v}", "k": {k}}')


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of a Slurm that takes every job, in arrays of two at most, and then knows nothing of them."""
    made = tmp_path / "clients"
    made.mkdir()
    stand_in(made, "sbatch", f"pwd >>{tmp_path}/submitted; echo $((6 + $(wc -l <{tmp_path}/submitted)))")
    stand_in(made, "scontrol", "[ $2 = config ] && echo 'MaxArraySize            = 3' || echo 'Job 7_1 not found'")
    for name in ("squeue", "sacct", "scancel", "srun"):
        stand_in(made, name, "true")
    stand_in(made, "sinfo", "uname -n")  # its one node is this machine
    monkeypatch.setenv("PATH", f"{made}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    return made


def submitted(sweep: Path) -> dict[str, str]:
    """The job of each run by the run's number; empty where it was refused, or is not known."""
    runs = [Run(path) for path in sweep.glob("launches/*/*")]
    return {run.path.parent.name: run.submitted.job_id for run in runs if run.submitted}


def of(root: Path) -> Path:
    (made,) = (root / "runs").glob("*-exp-sweep")
    return made


def submit(*words: str) -> int:
    return run([*SLURM, *words, ODD, *PROGRAM])


def test_a_sweep_beyond_the_budget_is_refused_as_a_whole(
    clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_BUDGET", "2.5")
    assert submit("--time", "1:00:00") == Exit.REFUSED
    assert "it may take 3.00 GPU-hours by its time limit, and RUNNER_BUDGET leaves 2.50" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_runs_are_tasks_of_arrays_that_are_not_too_large(
    clients: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == Exit.GOOD
    assert submitted(of(tmp_path)) == {"1": "7_1", "2": "7_2", "3": "8_1"}
    arrays = of(tmp_path) / "arrays"
    assert (tmp_path / "submitted").read_text().splitlines() == [str(arrays / "1"), str(arrays / "3")]
    scripts = [(arrays / name / "job.sh").read_text() for name in ("1", "3")]
    assert ["#SBATCH --array=1-2" in scripts[0], "#SBATCH --array=1-1" in scripts[1]] == [True, True]
    runs = find_subjects(["exp"])
    assert [(arrays / "1" / "2").resolve(), (arrays / "3" / "1").resolve()] == [each.path for each in runs[1:]]
    assert Run(runs[1].path).swept == {"v": '$(id)"{w}'}
    for name in ("7", of(tmp_path).name, str(of(tmp_path)), "8"):
        assert [each.path for each in find_subjects([name, "exp"])] == [each.path for each in runs]
    assert [each.path for each in find_subjects(["exp.3", "8_1"])] == [runs[2].path]
    for name in ("ex", of(tmp_path).name[:-2]):
        assert [each.path for each in find_subjects([name])] == [each.path for each in runs], "a beginning"
    capfd.readouterr()
    assert run([*SLURM, "--dependency", "afterok:exp", "--dry-run", "--", "true"]) == Exit.GOOD
    assert "#SBATCH --dependency=afterok:7_1:7_2:8_1" in capfd.readouterr().out.replace("'", "")
    assert submit("--at-once", "1") == Exit.REFUSED, "two arrays would run beside each other"


def test_a_task_is_known_by_its_place_in_the_array(clients: Path, tmp_path: Path) -> None:
    submit()
    runs = [each for each in find_subjects(["exp"]) if isinstance(each, Run)]
    arrays = of(tmp_path) / "arrays"
    rows = f"7_1|RUNNING|None|{arrays}/1\n7_2|PENDING|Priority|{arrays}/1\n8_1|RUNNING|None|/elsewhere"
    stand_in(clients, "squeue", f"cat <<'E'\n{rows}\nE")
    stand_in(clients, "sacct", f"echo '8_1|FAILED|1:0|n1|{arrays}/3'")
    states, errors = query((each, each.submitted) for each in runs if each.submitted)
    assert [states[each.path].name for each in runs] == ["RUNNING", "PENDING", "FAILED"]
    assert (set(states), errors) == ({each.path for each in runs}, ())
    record = runs[1].submitted
    assert record is not None
    runs[1].write("job.json", {**{name: getattr(record, name) for name in record.__struct_fields__}, "job_id": ""})
    assert scheduler_of(runs[1])[1] == "7_2", "a submission that was cut off is found"


def test_a_task_that_was_cancelled_while_it_waited_leaves_nothing_in_slurm(clients: Path, tmp_path: Path) -> None:
    submit()
    assert run(["wait", "exp.1", "--timeout", "0"]) == Exit.UNKNOWN
    stand_in(clients, "scontrol", f"echo '   JobState=PENDING Reason=None\n   WorkDir={of(tmp_path)}/arrays/1'")
    assert run(["cancel", "exp.1"]) == Exit.GOOD
    stand_in(clients, "scontrol", "echo 'Job 7_1 not found'; exit 1")
    assert run(["wait", "exp.1", "--timeout", "5"]) == Exit.PROGRAM_FAILED


def test_a_sweep_of_which_a_part_was_refused_is_shown_as_that(
    clients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = tmp_path / "once"
    refuse = f"[ ! -e {once} ] || {{ echo 'no such qos' >&2; exit 1; }}"
    stand_in(clients, "sbatch", f"{refuse}; touch {once}; echo 7")
    assert submit() == Exit.NOT_ACCEPTED
    assert submitted(of(tmp_path)) == {"1": "7_1", "2": "7_2", "3": ""}
    capsys.readouterr()
    assert run(["status", "exp", "--json"]) == Exit.GOOD
    shown = capsys.readouterr()
    assert [each["name"] for each in result(shown.out)["runs"]] == ["exp.1", "exp.2"]
    assert "1 of 3 runs" in shown.err and "no such qos" in shown.err
    sweep = find_sweep("exp")
    assert run(["cancel", "exp", "typo"]) == Exit.USAGE
    assert sweep is not None and not sweep.is_stopped, "nothing is cancelled by a line with a name that is none"
    run(["cancel", "exp"])
    assert sweep.is_stopped


def test_a_sweep_that_was_killed_before_it_was_submitted_is_shown_as_that(clients: Path, tmp_path: Path) -> None:
    stand_in(clients, "sbatch", 'kill -9 "$PPID"')
    words = [sys.executable, "-m", "runner", *SLURM, ODD, *PROGRAM]
    assert os.spawnv(os.P_WAIT, sys.executable, words) == -9
    sweep = find_sweep("exp")
    assert sweep is not None
    assert submitted(of(tmp_path)) == {"1": "", "2": ""}
    assert sweep.missing.startswith("1 of 3 runs")
    assert run(["wait", "exp"]) == run(["cancel", "exp"]) == Exit.UNKNOWN, "whether Slurm took the two"
    (of(tmp_path) / "arrays/1/job.sh").unlink()  # which is written last
    assert sweep.missing.startswith("3 of 3 runs")
    assert (run(["status", "exp"]), run(["wait", "exp"]), run(["cancel", "exp"])) == (Exit.GOOD, Exit.USAGE, Exit.USAGE)


def test_a_sweep_that_lies_elsewhere_now_was_submitted(clients: Path, tmp_path: Path) -> None:
    submit()
    moved = of(tmp_path).rename(tmp_path / "moved")
    sweep = find_sweep(str(moved))
    assert sweep is not None and (len(sweep.submitted), sweep.missing) == (3, "")


def test_a_sweep_has_no_runs_that_lie_elsewhere(clients: Path, tmp_path: Path) -> None:
    """As a copy of another user's may name: `cancel` would end them."""
    submit()
    copy, others = of(tmp_path).rename(tmp_path / "copy"), "../../runs"
    assert run([*SLURM[:-5], "alone", *SLURM[-4:], "--", "true"]) == Exit.GOOD
    (copy / "sweep.json").write_text((copy / "sweep.json").read_text().replace('"2":', f'"{others}":'))
    with pytest.raises(UsageError, match="the sweep cannot be read"):
        find_sweep(str(copy))
    assert list((copy / "launches" / others).glob("*-alone-*")) and Campaign(copy).runs(others) == ()


def test_the_beginning_of_a_sweeps_name_that_another_run_has_too_names_neither(clients: Path, tmp_path: Path) -> None:
    submit()
    assert run([*SLURM[:-5], "ex2", *SLURM[-4:], "--", "true"]) == Exit.GOOD
    with pytest.raises(UsageError, match='"ex" matches 4 runs'):
        find_subjects(["ex"])


def test_runs_that_are_waited_for_together_cost_one_query_while_they_run(clients: Path, tmp_path: Path) -> None:
    submit()
    runs = [each for each in find_subjects(["exp"]) if isinstance(each, Run)]
    rows = [f"{id}|{{}}|None|{of(tmp_path)}/arrays/{at}" for id, at in (("7_1", 1), ("7_2", 1), ("8_1", 3))]
    log = tmp_path / "asked"
    queue = "\n".join(rows).format("RUNNING", "RUNNING", "PENDING")
    for name, says in (("squeue", f"cat <<'E'\n{queue}\nE"), ("scontrol", "echo 'JobState=RUNNING'")):
        stand_in(clients, name, f"echo {name} >>{log}; {says}")
    together = Together(runs)
    states = [together.state(each, *scheduler_of(each)).phase for each in runs]
    assert states == ["running", "running", "pending"]
    assert log.read_text().split() == ["squeue"]


def test_two_of_one_name_do_not_mix(clients: Path, tmp_path: Path) -> None:
    assert [submit(), submit()] == [Exit.GOOD] * 2
    with pytest.raises(UsageError, match="matches 2 sweeps"):
        find_sweep("exp")
    first, second = (find_subjects([each.name]) for each in sorted((tmp_path / "runs").glob("*-sweep*")))
    assert len({each.path for each in (*first, *second)}) == 6


def test_where_nothing_gives_out_nodes_one_runs_after_another(
    clients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.py").write_text("import sys; print(sys.argv[1]); sys.exit('é' in sys.argv[1])\n")
    assert run([*OF, "--site", "local", ODD, "--wait", *PROGRAM]) == Exit.PROGRAM_FAILED
    runs = find_subjects(["exp"])
    logs = [(each.path / "logs/rank-0.out").read_text() for each in runs]
    assert logs == [f'{{"v": "{each}", "k": {{k}}}}\n' for each in ("a b", '$(id)"{w}', "x,é")]
    capsys.readouterr()
    assert run(["logs", "exp"]) == Exit.GOOD
    assert "x,é" in capsys.readouterr().out, "that of the run that failed"
    assert run(["report", "exp", "--json"]) == Exit.GOOD
    report = result(capsys.readouterr().out)
    assert [row["run"] for row in report["rows"]] == [each.path.name for each in runs]
    assert [row["values"] for row in report["rows"]] == [{"v": each} for each in ("a b", '$(id)"{w}', "x,é")]
    assert report["subtitle"].startswith("3 runs, none measured")
    assert run(["report", "exp", "-o", str(tmp_path / "report")]) == Exit.GOOD
    assert "v=a b" in capsys.readouterr().out
    assert all("v=a b" in (tmp_path / "report" / name).read_text() for name in ("runs.csv", "report.html"))
    assert run(["submit", "--gpus", "1", "--at-once", "2", "--", "true"]) == Exit.USAGE
