"""Names of sbatch beside ours, what the shell says to sbatch, and the names of other programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runner.backends.schedulers.slurm import SlurmFacts
from runner.cli.job_options import given
from runner.cli.submit import command as submit
from runner.core.errors import UsageError
from runner.model.request import Request, RequestRecord, parse_sbatch_time_s
from runner.preparation.choices import with_job_ids
from runner.preparation.options import values_of
from runner.preparation.other_names import instead_of
from runner.preparation.request import make_request, repeated
from runner.sites.loader import read_site


def parsed(*words: str) -> dict[str, Any]:
    with submit.make_context("submit", ["--gpus", "2", *words]) as context:
        return given(context)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["-t", "30"], "walltime_s", 1800),
        (["-t30"], "walltime_s", 1800),
        (["--time", "30:00"], "walltime_s", 1800),
        (["-N", "2"], "nodes", 2),
        (["-N", "3-3"], "nodes", 3),
        (["-p", "gpu"], "queue", "gpu"),
        (["-A", "a b"], "account", "a b"),
        (["-J", "n"], "job_name", "n"),
        (["--job-name=n"], "job_name", "n"),
        (
            ["-S", "nice=5", "-w", "n[1-2]", "-x", "n'3", "-C", "a&b|$c", "--mem=0", "--mail-user", "é@x"],
            "scheduler_options",
            (("nice", "5"), ("nodelist", "n[1-2]"), ("exclude", "n'3"), ("constraint", "a&b|$c"), ("mem", "0"),
             ("mail-user", "é@x")),
        ),
    ],
)  # fmt: skip
def test_names_of_sbatch_set_what_ours_do(words: list[str], field: str, value: object) -> None:
    assert parsed(*words)[field] == value


def test_from_python_they_are_the_same_and_a_repeated_run_can_leave_one_out() -> None:
    assert values_of("submit", {"mail_type": "END", "qos": "x", "mem": None}) == {
        "scheduler_options": (("mail-type", "END"), ("qos", "x"))
    }
    first = RequestRecord(make_request({"gpus": 1, "scheduler_options": (("begin", "16:00"), ("mail-type", "END"))}))
    assert repeated(first, {}, without=("mail_type",)).scheduler_options == (("begin", "16:00"),)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-N", "2-4"], "no single number of nodes"),
        (["-N", "job"], "--name"),
        (["-t", "30m"], "30 is 30 minutes"),
        (["-t", "0"], "no time limit"),
        (["--time", "30"], "10:00 is ten minutes"),
        (["-t", "30", "--time", "30:00"], "given twice"),
    ],
)
def test_a_value_that_sbatch_or_we_would_not_take_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(Exception, match=says):  # click's, or ours
        parsed(*words)


@pytest.mark.parametrize(
    ("text", "minutes"),  # of `sbatch -vv -t TEXT`, Slurm 22.05.8
    [("1", 1), ("30", 30), ("1:30", 2), ("90:00", 90), ("1:2:3", 63), ("2-3", 3060), ("2-3:4", 3064),
     ("2-3:4:5", 3065), ("1-0", 1440), ("1:99", 3), ("00:00:30", 1)],
)  # fmt: skip
def test_times_are_those_of_sbatch(text: str, minutes: int) -> None:
    assert -(-parse_sbatch_time_s(text) // 60) == minutes


@pytest.mark.parametrize("text", ["x", "30m", "", "5:", "1:2:3:4", " 30", "-1", "0:0", "INFINITE", "٣"])
def test_what_is_no_time_of_sbatch_or_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no time"):
        parse_sbatch_time_s(text)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("--gres", "--gpu-type"), ("--gpus-per-node", "--gpus"), ("--ntasks", "--nodes"), ("-n", "--gpus"),
        ("--nproc-per-node", "--gpus"), ("--nproc_per_node", "--gpus"), ("--nnodes", "--nodes"), ("-np", "--gpus"),
        ("-ppn", "--gpus"), ("--array", "one run directory"), ("--container-image", "--image"),
        ("--container-mounts", "--mount"), ("--licenses", "-S licenses"), ("-q", "--queue"), ("-q", "--qos"),
        ("-l", "--time"), ("-d", "--dependency"), ("-hostfile", "--hostfile"), ("--rdzv-endpoint", "--wireup"),
        ("--output", "below logs/"), ("--cpu-bind", "--bind"), ("-m", "--mail-type"), ("--bind-to", "--bind"),
    ],
)  # fmt: skip
def test_another_programs_name_gets_ours(word: str, names: str) -> None:
    assert names in instead_of(word)
    with pytest.raises(UsageError) as caught:
        parsed(word, "x")
    assert names in str(caught.value.fix)


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_every_name_of_srun_is_known(version: str) -> None:
    listing = Path(__file__).parents[1] / f"sites/recorded/slurm-{version}/srun.txt"
    names = {
        name for pair in re.findall(r"^ +(-\w)?(?:, | *)(--[a-z][a-z-]+)", listing.read_text(), re.M) for name in pair
    }
    ours = {name for option in submit.params for name in option.opts} | {"", "-h", "--help"}
    assert [name for name in sorted(names - ours) if not instead_of(name)] == []


def test_a_variables_name_is_no_option_and_neither_are_the_programs_arguments() -> None:
    assert parsed("--env", "-np", "--", "mpirun", "-np", "2")["env"] == (("np", None),)
    assert instead_of("--nodelst") == ""


SHELL = {"SBATCH_TIMELIMIT": "90", "SBATCH_MEM_PER_CPU": "3G", "SBATCH_CONSTRAINT": "big", "SBATCH_PARTITION": ""}


@pytest.mark.parametrize(
    ("shell", "asked", "field", "value"),
    [
        ({"SBATCH_PARTITION": "gpu"}, {}, "queue", "gpu"),
        ({"SBATCH_PARTITION": "gpu"}, {"queue": "x"}, "queue", "x"),
        (SHELL, {}, "walltime_s", 5400),
        (SHELL, {"walltime_s": 60}, "walltime_s", 60),
        (SHELL, {}, "queue", None),
        (SHELL, {}, "scheduler_options", (("constraint", "big"), ("mem-per-cpu", "3G"))),
        (SHELL, {"scheduler_options": (("mem", "1G"), ("constraint", "x"))}, "scheduler_options",
         (("mem", "1G"), ("constraint", "x"))),
        ({"SBATCH_REQ_SWITCH": "1", "SBATCH_WAIT4SWITCH": "10"}, {}, "scheduler_options", (("switches", "1@10"),)),
        ({"SBATCH_EXCLUSIVE": "", "SBATCH_USE_MIN_NODES": "yes"}, {}, "scheduler_options",
         (("exclusive", ""), ("use-min-nodes", ""))),
        ({"SBATCH_EXPORT": "ALL", "SBATCH_JOBNAME": "x", "SLURM_HINT": "x"}, {}, "scheduler_options", ()),
        (SHELL, {"step": True}, "walltime_s", None),
    ],
)  # fmt: skip
def test_variables_of_sbatch_count_after_options_and_before_the_site(
    shell: dict[str, str], asked: dict[str, Any], field: str, value: object
) -> None:
    request, _ = SlurmFacts().with_variables(Request(gpus=2, **asked), shell)
    assert getattr(request, field) == value


def test_what_counts_is_reported_and_what_cannot_count_too() -> None:
    _, lines = SlurmFacts().with_variables(Request(gpus=2), {"SBATCH_ACCOUNT": "m1", "SBATCH_ARRAY_INX": "1-3"})
    assert ["SBATCH_ACCOUNT=m1" in lines[0], "SBATCH_ARRAY_INX does not count" in lines[1]] == [True, True]
    with pytest.raises(UsageError) as caught:
        SlurmFacts().with_variables(Request(gpus=2), {"SBATCH_TIMELIMIT": "soon"})
    assert caught.value.where == "SBATCH_TIMELIMIT"


def test_a_qos_is_the_queue_where_queues_are_that() -> None:
    asked = Request(gpus=2, scheduler_options=(("qos", "debug"),))
    request, _ = SlurmFacts(queue_option="qos").with_variables(asked, {"SBATCH_QOS": "x"})
    assert (request.queue, request.scheduler_options) == ("debug", ())
    assert SlurmFacts().with_variables(asked, {"SBATCH_QOS": "x"})[0].scheduler_options == (("qos", "debug"),)


@pytest.mark.parametrize("kept", ["afterok:7:8_3,afterany:9.server?after:10+5", "singleton", "afterok:12_*"])
def test_job_ids_of_a_dependency_stay(kept: str) -> None:
    asked = Request(gpus=1, scheduler_options=(("dependency", kept),))
    assert with_job_ids(asked, read_site("technion")) == asked
