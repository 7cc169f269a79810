"""Names, values and variables of sbatch, held against the real sbatch and srun of the box."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from runner.backends.schedulers.slurm.options import VARIABLES
from runner.box import Box
from runner.cli.submit import command as submit
from runner.model.request import parse_sbatch_time_s
from runner.preparation.other_names import instead_of
from tests.support.commands import Runner
from tests.support.rank_records import document_of, records

pytestmark = pytest.mark.integration

_VALUES = {
    "distribution": "block", "get-user-env": "10L", "gpu-bind": "none", "gres-flags": "enforce-binding",
    "hint": "nomultithread", "mem-bind": "local", "no-kill": "", "exclusive": "", "open-mode": "append",
    "profile": "none", "power": "level", "delay-boot": "5",
}  # fmt: skip
# A later sbatch's; that name a database or a permission that the box has not; and shown without its name.
_NOT_SHOWN = {"tres-bind", "tres-per-task", "clusters", "switches", "wait-all-nodes"}


def options_of(cluster: Box, *words: str, **variables: str) -> dict[str, str]:
    """The options that sbatch takes from a command line and variables, as it shows them."""
    argv = [str(cluster.bin_dir / "sbatch"), "-vv", "--test-only", *words, "--wrap", "true"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SBATCH_")} | variables
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    return dict(re.findall(r"^sbatch: (\S+) +: (.*)$", done.stderr, re.MULTILINE))


@pytest.mark.parametrize("program", ["sbatch", "srun"])
def test_every_name_is_an_option_of_ours_or_gets_the_name_of_ours(cluster: Box, program: str) -> None:
    listing = subprocess.run([cluster.bin_dir / program, "--help"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^ +(-\w)?(?:, | *)(--[a-z][a-z-]+)", listing, re.MULTILINE)
    ours = {name for option in submit.params for name in option.opts} | {"-h", "--help"}
    every = {name for row in names for name in row if name} - ours
    assert len(every) > 60
    assert [name for name in sorted(every) if not instead_of(name)] == []


@pytest.mark.parametrize("text", ["30", "1:30", "90:00", "1:2:3", "2-3", "2-3:4", "2-3:4:5", "1:99"])
def test_a_time_is_that_of_sbatch(cluster: Box, text: str) -> None:
    said = options_of(cluster, "-t", text)["time"]
    assert parse_sbatch_time_s(said) // 60 == -(-parse_sbatch_time_s(text) // 60)


def test_every_variable_is_one_that_sbatch_takes_for_that_option(cluster: Box) -> None:
    wrong = {
        variable: option
        for variable, option in VARIABLES.items()
        if option not in _NOT_SHOWN and option not in options_of(cluster, **{variable: _VALUES.get(option, "1")})
    }
    assert wrong == {}


def test_jobs_with_names_of_sbatch(cluster: Box, tmp_path: Path) -> None:
    runner = Runner.at(cluster.site, tmp_path, cluster.bin_dir)
    native = ("submit", "--gpus", "2", "--runtime", "native")
    runner(*native, "-J", "first", "-t", "5", "-w", "dgx02", "--", "bash", "-c", "sleep 5; exit 3", code=0)
    first = runner.newest()
    for name, kind in (("met", "afternotok"), ("unmet", "afterok")):
        env = {"SBATCH_PARTITION": "batch", "SBATCH_TIMELIMIT": "7"}
        said = runner(
            *native, "-J", name, "-x", "dgx02", "--dependency", f"{kind}:first", "--", "true", code=0, env=env
        )
        assert "SBATCH_PARTITION=batch, SBATCH_TIMELIMIT=7" in said.err
        plan = document_of(runner.newest(), "plan")
        assert (plan["queue"], plan["walltime_s"], dict(plan["directives"])["exclude"]) == ("batch", 420, "dgx02")
        assert dict(plan["directives"])["dependency"] == f"{kind}:{document_of(first, 'job')['job_id']}"
    runner("wait", "first", code=5)
    assert {record["host"] for record in records(first, "start").values()} == {"dgx02"}
    runner("wait", "met", code=0)
    run = next(path for path in runner.runs.iterdir() if path.name.endswith("-met-2"))
    assert {record["host"] for record in records(run, "start").values()} == {"dgx01"}
    assert "Dependency" in runner("status", "unmet", code=0).out
    runner("cancel", "unmet", code=0)
    done = runner(*native, "--dependency", "afterok:first", "--", "true", code=2)
    assert "afterok cannot be met" in done.err
    done = runner(*native, "--", "true", code=4, env={"SBATCH_PARTITION": "nosuch"})
    assert "SBATCH_PARTITION=nosuch" in done.err
