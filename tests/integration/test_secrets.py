"""Secrets of a submitter stay where they are; what must carry one is its owner's alone; umask 000 opens nothing."""

import base64
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.box import Box
from runner.core import paths
from tests.support import planted_secrets
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.light_base import small_root
from tests.support.planted_secrets import MARK, careless, verb

pytestmark = pytest.mark.integration


def test_the_watch_sees_a_secret_on_a_command_line() -> None:
    with planted_secrets.watched_command_lines() as seen:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.3)", MARK], check=True)
    assert seen


@pytest.fixture
def small(engine_client: docker.DockerClient) -> Iterator[str]:
    name = f"gpu-runner/test-planted:{os.getpid()}"
    engine_client.api.import_image_from_data(small_root(), repository=name, changes=["CMD true"])
    yield name
    engine_client.images.remove(name, force=True)


def test_secrets_of_the_submitter_are_on_no_command_line_and_in_no_file(
    runner: Runner, cluster: Box, small: str, tmp_path: Path
) -> None:
    """From build to verdict; only the script and the plan carry a variable that the user asked for by name."""
    secret = {"WANDB_API_KEY": f"{MARK}-asked-for"}
    env = {**planted_secrets.environment(tmp_path), **secret, "RUNNER_STATE": str(tmp_path / "state")}
    store = tmp_path / "store"
    kept = (paths.cache_dir() / name for name in ("images", "locks", "wheels"))
    ours = (store, tmp_path / "state", cluster.state, *kept)

    with planted_secrets.watched_command_lines() as seen:
        careless([*verb("build"), "pytorch", "--base", "standin"], env)
        careless([*verb("convert"), small, "--store", str(store)], env)
        words = ["--recipe", "probe", "--gpus", "4", "--nodes", "2", "--env", "WANDB_API_KEY", "--json"]
        words += ["--", "--env", "WANDB_API_KEY", "--sleep", "3"]
        run = Path(result(careless([*runner.argv("submit"), *words], env))["directory"])
        while not list((run / "ranks").glob("*.probe.json")):
            time.sleep(0.1)
        schedulers = planted_secrets.holders(Path(f"/proc/{cluster.pid}/root/var/box"))
        assert {path.name for path in schedulers} == {"script", "slurm_script"}, "its own copies, and nothing else"
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in schedulers} == {0}
        for name in ("status", "logs", "wait"):
            careless([*verb(name), run.name], env)
    assert seen == set()

    got = json.loads((run / "ranks" / "0.probe.json").read_text())["environment_base64"]["WANDB_API_KEY"]
    assert base64.b64decode(got).decode() == secret["WANDB_API_KEY"], "the program got it, and spelt it otherwise"
    carriers = planted_secrets.holders(run, *ours)
    assert {path.name for path in carriers} == {"job.sh", "plan.json"}
    for path in carriers:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert planted_secrets.open_to_others(run, tmp_path / "state", store) == {}
