"""An engine to build on, and what a build leaves on it."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import docker

from runner.core import paths
from runner.core.errors import Exit
from runner.images import engine
from tests.support import light_base
from tests.support.waiting import until

BASE, SLOW = "gpu-runner/test-light:1", "gpu-runner/test-slow:1"
# The command line as it is, with other Dockerfiles than the shipped ones.
PLANTED = """
import pathlib, sys
from runner import cli
from runner.core import paths
share = pathlib.Path(sys.argv[1])
paths.share = lambda name: share / name
cli.main(sys.argv[2:])
"""
Counted = tuple[list[str], list[str], list[str]]


@dataclass(frozen=True)
class Bench:
    """A separate engine with the light base, and everything that a build may leave something in."""

    client: docker.DockerClient
    url: str
    state: Path
    work: Path

    def counted(self) -> Counted:
        containers = [str(one.id) for one in self.client.containers.list(all=True)]
        images = [f"{one.id} {one.tags}" for one in self.client.images.list(all=True)]
        files = [str(path) for place in ("cache", "tmp") for path in (self.work / place).rglob("*") if path.is_file()]
        return sorted(containers), sorted(images), sorted(path for path in files if not path.endswith(".lock"))

    def start(self, step: str = "", *words: str, base: str = BASE) -> subprocess.Popen[str]:
        share = Path(tempfile.mkdtemp(dir=self.work))
        for name in ("containers", "recipes"):
            shutil.copytree(paths.share(name), share / name, ignore=shutil.ignore_patterns("__pycache__"))
        if step:
            with (share / "containers/pytorch/Dockerfile").open("a") as file:
                file.write(f"RUN {step}\n")
        command = [sys.executable, "-c", PLANTED, str(share), "build", "pytorch", "--base", base, *words]
        places = {"RUNNER_CACHE": str(self.work / "cache"), "TMPDIR": str(self.work / "tmp")}
        env = {**os.environ, "DOCKER_HOST": self.url, **places}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

    def build(self, step: str = "", *words: str, code: Exit, base: str = BASE) -> str:
        child = self.start(step, *words, base=base)
        said, _ = child.communicate(timeout=300)
        assert "Traceback" not in said, said
        assert child.returncode == code, said
        return said


def start_bench(state: Path, work: Path) -> Bench:
    url = engine.start_private(state)
    client = engine.connect(url)
    for name, more in ((BASE, {}), (SLOW, {"slow": b""})):
        client.api.import_image_from_data(light_base.archive(**more), repository=name, changes=list(light_base.CHANGES))
    bench = Bench(client, url, state, work)
    bench.build(code=Exit.GOOD)
    return bench


def read_until(child: subprocess.Popen[str], words: str) -> str:
    assert child.stdout is not None
    said = ""
    for line in child.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it never said {words!r}:\n{said}")


def wait_until_settled(bench: Bench, wanted: Counted) -> None:
    until(lambda: bench.counted() == wanted, f"nothing is left but {wanted}", timeout_s=30)
