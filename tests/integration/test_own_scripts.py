"""Batch scripts of the user on a real Slurm: submitted by sbatch, or by us as they are; and placed by us."""

import hashlib
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.box import Box
from tests.support.batch_scripts import rows, script_of
from tests.support.commands import Runner, ran
from tests.support.documents import result
from tests.support.repositories import git, repository
from tests.support.users import AS_ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name="my 'own' job" --nodes=2 --ntasks-per-node=2
#SBATCH --time=5
#SBATCH --output=out-%j.txt
echo "argument $1, $(printf %s '\u00e9 $HOME')"
srun hostname
while [ ! -e "$2" ]; do sleep 0.2; done
echo 'ValueError: no such thing' >&2
exit "${3:-0}"
"""


@pytest.fixture(scope="module")
def runner(cluster: Box, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The command line against the box; no image is needed."""
    return Runner.at(cluster.site, tmp_path_factory.mktemp("own"), cluster.bin_dir)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = repository(tmp_path / "wi th $pace", {"job.sh": SCRIPT.encode()}) / "job.sh"
    path.chmod(0o644)
    return path


@pytest.fixture
def sbatch(runner: Runner, script: Path) -> Callable[..., str]:
    def submit(*words: object) -> str:
        return ran([runner.clients / "sbatch", "--parsable", *words], cwd=script.parent, timeout_s=60).out.strip()

    return submit


@pytest.fixture
def job(runner: Runner) -> Callable[..., Any]:
    """A verb about a job's id, with the box's clients in PATH and no run of ours."""
    env = {"PATH": f"{runner.clients}:{os.environ['PATH']}"}
    return lambda *words, code=0: runner(*words, code=code, env=env)


def state(job: Callable[..., Any], job_id: str) -> str:
    return str(result(job("show", job_id, "--json").out)["state"])


def test_a_job_that_sbatch_submitted_is_shown_while_it_runs_and_at_its_end(
    job: Callable[..., Any], sbatch: Callable[..., str], script: Path, tmp_path: Path
) -> None:
    job_id = sbatch(script.name, "a b", go := tmp_path / "go")
    until(lambda: state(job, job_id) == "running")
    until(lambda: "dgx02" in job("logs", job_id).out)
    facts = result(job("show", job_id, "--json").out)
    assert facts["record"]["directory"] == str(script.parent)
    assert facts["record"]["output"] == str(script.parent / f"out-{job_id}.txt")
    assert facts["record"]["name"] == "my 'own' job"
    assert facts["verdict"] is None and facts["started"]

    go.touch()
    until(lambda: state(job, job_id) == "ended")
    verdict = result(job("status", job_id, "--json").out)["verdict"]
    assert verdict["outcome"] == "ran" and "met" not in json.dumps(verdict).split()
    lines = job("logs", job_id).out.splitlines()
    assert lines[0] == "argument a b, \u00e9 $HOME" and sorted(lines[1:5]) == ["dgx01"] * 2 + ["dgx02"] * 2
    left = sorted(each.name for each in script.parent.iterdir())
    assert left == [".git", "job.sh", f"out-{job_id}.txt"], "nothing of ours"


def test_a_job_that_failed_says_the_line_that_tells_why(
    job: Callable[..., Any], sbatch: Callable[..., str], script: Path
) -> None:
    job_id = sbatch(script.name, "x", "/", "7")
    until(lambda: state(job, job_id) == "ended")
    verdict = result(job("show", job_id, "--json").out)["verdict"]
    assert verdict["outcome"] == "failed" and verdict["log"].endswith(": ValueError: no such thing")
    job("wait", job_id, code=5)


def test_a_job_that_waits_can_be_cancelled(job: Callable[..., Any], sbatch: Callable[..., str], script: Path) -> None:
    job_id = sbatch("--begin=now+1hour", script.name)
    assert state(job, job_id) == "pending"
    job("logs", job_id, code=2)
    job("cancel", job_id)
    until(lambda: result(job("status", job_id, "--json").out)["state"] == "ended")
    assert result(job("status", job_id, "--json").out)["verdict"]["outcome"] == "cancelled"


@AS_ROOT
def test_a_job_of_another_user_is_refused(job: Callable[..., Any], sbatch: Callable[..., str], tmp_path: Path) -> None:
    job_id = sbatch("--uid=65534", "--chdir=/tmp", "--output=/dev/null", "--wrap=sleep 1")
    for verb in ("status", "show", "logs", "wait", "cancel", "shell"):
        assert "65534" in job(verb, job_id, code=3).err
    job("status", "99999999", code=2)


def test_verbs_that_need_a_plan_say_that_there_is_none(
    job: Callable[..., Any], sbatch: Callable[..., str], script: Path
) -> None:
    job_id = sbatch(script.name, "x", "/")
    assert "no plan" in job("show", job_id, job_id, code=2).err


def test_our_submission_is_the_same_bytes_with_a_record(runner: Runner, script: Path, tmp_path: Path) -> None:
    words = (script.name, "a b", str(tmp_path / "go"))
    (tmp_path / "go").touch()
    env = {"VIRTUAL_ENV": "/some/env", "SECRET_TOKEN": "hunter2"}
    runner("submit", "--wait", *words, code=0, env=env, cwd=script.parent)
    run = runner.newest()
    job_record = json.loads((run / "job.json").read_text())
    assert (run / "job.sh").read_bytes() == script.read_bytes()
    clients = [runner.clients / "scontrol", "write", "batch_script", job_record["job_id"], "-"]
    assert ran(clients).out == script.read_text(), "what Slurm has is the same"
    assert job_record["script_sha256"] == hashlib.sha256(script.read_bytes()).hexdigest()
    code, provenance = (json.loads((run / f"{name}.json").read_text()) for name in ("code", "provenance"))
    assert code["commit"] == git(script.parent, "rev-parse", "HEAD") and code["dirty"] is False
    assert provenance["environment"]["VIRTUAL_ENV"] == "/some/env"
    assert json.loads((run / "command.json").read_text())["arguments"][-3:] == list(words)
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "ran"
    assert "hunter2" not in "".join(path.read_text(errors="replace") for path in run.rglob("*.json"))
    assert "argument a b" in runner("logs", run.name, code=0).out
    assert run.name in runner("status", code=0).out
    facts = result(runner("show", run.name, "--json", code=0).out)
    assert facts["ended"] and facts["record"]["script"].startswith(str(script))


def test_a_script_that_slurm_refuses_leaves_nothing(runner: Runner, script: Path) -> None:
    script.write_text("#!/bin/bash\n#SBATCH --partition=no-such\ntrue\n")
    before = set(runner.runs.iterdir()) if runner.runs.is_dir() else set()
    assert "partition" in runner("submit", str(script), code=4).err
    assert set(runner.runs.iterdir()) == before


def test_a_directory_of_its_output_that_is_not_there_is_named_before_and_after(runner: Runner, script: Path) -> None:
    script.write_text("#!/bin/bash\n#SBATCH --output=out/%j.txt\ntrue\n")
    fix = f"mkdir -p {shlex.quote(str(script.parent / 'out'))}"
    assert f"  fix: {fix}\n" in runner("submit", script.name, "--check", code=3, cwd=script.parent).out
    said = runner("submit", script.name, "--wait", code=5, cwd=script.parent)
    assert f"fix: {fix}\n" in said.err and "JobLaunchFailure" not in said.out
    assert f"the directory of its output is not there, {script.parent / 'out'}" in said.out and fix in said.out


def test_an_option_of_a_job_has_no_place_in_a_script(runner: Runner, script: Path) -> None:
    assert "#SBATCH" in runner("submit", "--time", "5:00", str(script), code=2).err
    runner("submit", str(script), "--dry-run", code=2)
    assert "--gpus" in runner("submit", "python", str(script), code=2).err
    assert "--check" in runner("submit", "--gpus", "1", "--check", "--", "true", code=2).err


PROGRAM = """\
import os, socket, sys
place = f"{os.environ.get('SLURMD_NODENAME', socket.gethostname())} {os.environ.get('SLURM_PROCID', '?')}"
open(os.path.join(sys.argv[2], place), "w").close()
"""


@pytest.mark.parametrize("name", ["csc-lightning-8", "princeton-ddp", "jsc-one-task", "ulhpc-one"])
def test_our_command_for_a_script_has_its_placement(runner: Runner, name: str, tmp_path: Path) -> None:
    row = rows()[name]
    row["head"] = {key: value for key, value in row["head"].items() if key not in ("partition", "account")}
    row["head"]["gres"] = row["head"]["gres"].replace(":v100", "")
    seen = {}
    for by in ("sbatch", "ours"):
        (places := tmp_path / by).mkdir()
        row["start"]["program"] = f"python3 ours.py {by} {places}"
        (tmp_path / "ours.py").write_text(PROGRAM)
        (tmp_path / "job.sbatch").write_text(script_of(row).replace("module load", ": module load"))
        if by == "sbatch":
            ran([runner.clients / "sbatch", "--wait", "job.sbatch"], cwd=tmp_path, timeout_s=120)
        else:
            checked = runner(
                "submit", "job.sbatch", "--check", "--json", code=3 if row.get("faults") else 0, cwd=tmp_path
            )
            words = shlex.split(result(checked.out)["command"].partition(" submit ")[2])
            runner("submit", "--wait", *words, code=0, cwd=tmp_path)
        nodes = [each.name.split()[0] for each in places.iterdir()]
        seen[by] = sorted(map(nodes.count, set(nodes)))
    assert seen["ours"] == seen["sbatch"] == [row["placed"][1]] * row["placed"][0]
