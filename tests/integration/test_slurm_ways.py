"""What a site or a job may change of how Slurm is asked, on a real Slurm: export, memory, wait, a task a node."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.documents import result

pytestmark = pytest.mark.integration
DIRTY = {"LD_LIBRARY_PATH": "/nowhere", "PYTHONPATH": "/nowhere", "OF_MY_SHELL": "1", "OMP_PROC_BIND": "false"}


def site_of(directory: Path, runner: Runner, **slurm: object) -> Path:
    path = directory / "ours.yaml"
    path.write_text(json.dumps({"name": "ours", "extends": str(runner.site), "slurm": slurm}))
    return path


@pytest.mark.parametrize("export", ["none", "nil", "all"])
def test_a_job_is_the_same_however_slurm_exports(runner: Runner, tmp_path: Path, export: str) -> None:
    """In a container and without one; nothing of the submitting shell arrives."""
    site = site_of(tmp_path, runner, export=export)
    for runtime in ("charliecloud", "native"):
        words = ("submit", "--recipe", "probe", "--gpus", "4", "--nodes", "2", "--runtime", runtime)
        runner(*words, "--wait", code=0, site=site, env=DIRTY)
        run = runner.newest()
        assert f"#SBATCH --export={export.upper()}\n" in (run / "job.sh").read_text()
        probes = [json.loads(path.read_text()) for path in (run / "ranks").glob("*.probe.json")]
        assert len(probes) == 4
        for probe in probes:
            assert not set(DIRTY) & set(probe["environment_names"])
            assert {"PATH", "HOME", "USER", "SLURM_JOB_ID"} <= set(probe["environment_names"])
        said = (run / "logs/batch.err").read_text().splitlines()
        assert [line for line in said if "slurm_script" in line or "job.sh" in line] == [], "bash had nothing to say"


def shown_job(runner: Runner, *options: str) -> str:
    """The job as Slurm shows it."""
    words = ("submit", "--recipe", "probe", "--gpus", "2", *(word for option in options for word in ("-S", option)))
    job = result(runner(*words, "--json", code=0).out)
    shown = subprocess.run(
        [runner.clients / "scontrol", "show", "job", job["job"]], check=True, capture_output=True, text=True
    ).stdout
    runner("wait", job["directory"], code=0)
    return shown


@pytest.mark.parametrize(
    ("option", "shown"),
    [("mem=3G", "MinMemoryNode=3G"), ("mem-per-cpu=20M", "MinMemoryCPU=20M"), ("mem=0", "MinMemoryNode=0")],
)
def test_memory_of_a_job_reaches_slurm_and_its_steps_start(runner: Runner, option: str, shown: str) -> None:
    assert shown in shown_job(runner, option)


def test_memory_of_each_gpu_reaches_slurm(runner: Runner) -> None:
    assert re.search(r"MemPerTres=gres[:/]gpu:2048", shown_job(runner, "mem-per-gpu=2G"))


LATE = "import os, time; time.sleep(0 if os.environ['RANK'] == '0' else 15)"


def test_how_long_the_others_go_on_is_the_jobs_choice(runner: Runner) -> None:
    words = ("submit", "--gpus", "2", "--wait")
    runner(*words, "-S", "wait=0", "--", "python3", "-c", LATE, code=0)
    assert "--wait=2 " in (
        runner(*words, "-S", "wait=2", "--dry-run", "--", "python3", "-c", LATE, code=0).out.replace("\\\n", "")
    )
    runner(*words, "-S", "wait=2", "--", "python3", "-c", LATE, code=5)


SUMS = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
# One write: a node's ranks share its log, and unbuffered prints of several words would mix.
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} sum {int(total)}\\n".encode())
dist.destroy_process_group()
"""


def test_torchrun_on_two_nodes_needs_no_argument(runner: Runner, tmp_path: Path) -> None:
    """A task a node, which starts the processes of its GPUs: one world."""
    (tmp_path / "train.py").write_text(SUMS)
    words = ("submit", "--gpus", "4", "--nodes", "2", "--wireup", "own", "--wait")
    said = runner(*words, "--", "python3", "-m", "torch.distributed.run", "train.py", code=0, cwd=tmp_path)
    assert "nothing shows" not in said.out
    logs = "".join(path.read_text() for path in (runner.newest() / "logs").glob("rank-*.out"))
    assert sorted(re.findall(r"rank (\d) of 4 sum 4", logs)) == ["0", "1", "2", "3"]
    starts = [json.loads(path.read_text()) for path in (runner.newest() / "ranks").glob("*.start.json")]
    assert {(start["host"], start["local_size"]) for start in starts} == {("dgx01", 1), ("dgx02", 1)}
