"""Builds that go wrong on a real engine of this test's own: what is told, with which code, and what is left behind.

All containers, images and files are counted before and after; the table is in docs/proofs.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner import paths
from runner.errors import Exit
from runner.images import engine
from tests.support import light_base

if TYPE_CHECKING:
    import docker

pytestmark = pytest.mark.integration
BASE, SLOW = "gpu-runner/test-light:1", "gpu-runner/test-slow:1"
# The command line as it is, with other Dockerfiles than the shipped ones.
PLANTED = """
import pathlib, sys
from runner import cli, paths
share = pathlib.Path(sys.argv[1])
paths.share = lambda name: share / name
cli.main(sys.argv[2:])
"""
Counted = tuple[list[str], list[str], list[str]]


@dataclass(frozen=True)
class Bench:
    """An engine of one's own with the light base, and everything that a build may leave something in."""

    client: docker.DockerClient
    url: str
    state: Path
    work: Path

    def counted(self) -> Counted:
        """All containers, all images by id and names, all files of cache and temporary directory."""
        containers = [str(one.id) for one in self.client.containers.list(all=True)]
        images = [f"{one.id} {one.tags}" for one in self.client.images.list(all=True)]
        files = [str(path) for place in ("cache", "tmp") for path in (self.work / place).rglob("*") if path.is_file()]
        return sorted(containers), sorted(images), sorted(path for path in files if not path.endswith(".lock"))

    def start(self, step: str = "", *words: str, base: str = BASE) -> subprocess.Popen[str]:
        """``build pytorch`` with a further last step."""
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
        """The same to its end; returns what it said."""
        child = self.start(step, *words, base=base)
        said, _ = child.communicate(timeout=300)
        assert "Traceback" not in said, said
        assert child.returncode == code, said
        return said


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    work = tmp_path_factory.mktemp("work")
    for place in ("cache", "tmp"):
        (work / place).mkdir()
    try:
        yield began(state, work)
    finally:
        engine.remove_private(state)


def began(state: Path, work: Path) -> Bench:
    """The engine started, the bases in it, one build done: what that keeps is no leftover."""
    url = engine.start_private(state)
    client = engine.connect(url)
    for name, more in ((BASE, {}), (SLOW, {"slow": b""})):
        client.api.import_image_from_data(light_base.archive(**more), repository=name, changes=list(light_base.CHANGES))
    found = Bench(client, url, state, work)
    found.build(code=Exit.GOOD)
    return found


def until(child: subprocess.Popen[str], words: str) -> str:
    """Read what a build says until a line holds ``words``."""
    assert child.stdout is not None
    said = ""
    for line in child.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it never said {words!r}:\n{said}")


def settled(bench: Bench, wanted: Counted) -> None:
    """As it was before; an engine needs a moment for what its client has left."""
    deadline = time.monotonic() + 30
    while bench.counted() != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    assert bench.counted() == wanted


def test_a_step_that_fails(bench: Bench) -> None:
    before = bench.counted()
    said = bench.build("echo the last word && exit 7", code=Exit.PROGRAM_FAILED)
    assert "failed with exit code 7" in said
    assert "the last word" in said
    assert bench.counted() == before


def test_ctrl_c_in_the_middle_of_a_step(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300")
    until(child, "    now")
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    assert bench.counted() == before


def test_ctrl_c_while_the_base_is_asked(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start(base=SLOW)
    until(child, "asking the base")
    running(bench)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == Exit.INTERRUPTED
    assert bench.counted() == before


def running(bench: Bench) -> None:
    """Wait until the engine runs a container."""
    deadline = time.monotonic() + 60
    while not bench.client.containers.list() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bench.client.containers.list()


@pytest.mark.parametrize(("base", "words"), [(BASE, "    now"), (SLOW, "asking the base")], ids=["step", "asked"])
def test_killed_outright_and_swept_by_the_next_build(bench: Bench, base: str, words: str) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300", base=base)
    until(child, words)
    running(bench)
    child.kill()
    child.communicate(timeout=60)
    bench.build("echo the next && exit 7", code=Exit.PROGRAM_FAILED)
    settled(bench, before)


def test_an_engine_that_dies_in_the_middle_and_comes_back(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300")
    until(child, "    now")
    os.kill(int((Path(bench.url.removeprefix("unix://")).parent / "dockerd.pid").read_text()), signal.SIGKILL)
    said, _ = child.communicate(timeout=120)
    assert "Traceback" not in said, said
    assert child.returncode == Exit.INFRASTRUCTURE
    assert "the engine went away in the middle of the build" in said
    assert engine.start_private(bench.state) == bench.url
    bench.build("echo the next && exit 7", code=Exit.PROGRAM_FAILED)
    settled(bench, before)


def test_a_full_disk_of_the_engine(tmp_path: Path) -> None:
    """Its data lie in 100 MB of memory, of which the base takes some."""
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    for place in (state / "data", tmp_path / "cache", tmp_path / "tmp"):
        place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100M", "tmpfs", state / "data"], check=True)
    try:
        bench = began(state, tmp_path)
        before = bench.counted()
        said = bench.build("dd if=/dev/zero of=/big bs=1M count=200", code=Exit.INFRASTRUCTURE)
        assert "the engine's disk is full" in said
        assert "docker system df" in said
        assert bench.counted() == before
        bench.build(code=Exit.GOOD)
    finally:
        engine.stop_private(state)
        subprocess.run(["umount", "--lazy", state / "data"], check=True)
        engine.remove_private(state)
