"""Builds that go wrong on a real engine of this test's own: what is reported, with which code, and what is left behind.

All containers, images and files are counted before and after; the table is in docs/proofs.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.errors import Exit
from runner.images import engine
from tests.support.build_bench import BASE, SLOW, Bench, read_until, start_bench, wait_until_settled
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    work = tmp_path_factory.mktemp("work")
    for place in ("cache", "tmp"):
        (work / place).mkdir()
    try:
        yield start_bench(state, work)
    finally:
        engine.remove_private(state)


def test_a_step_that_fails(bench: Bench) -> None:
    before = bench.counted()
    said = bench.build("echo the last word && exit 7", code=Exit.PROGRAM_FAILED)
    assert "failed with exit code 7" in said
    assert "the last word" in said
    assert bench.counted() == before


def test_ctrl_c_in_the_middle_of_a_step(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300")
    read_until(child, "    now")
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    assert bench.counted() == before


def test_ctrl_c_while_the_base_is_inspected(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start(base=SLOW)
    read_until(child, "finding out which Horovod the base needs")
    running(bench)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == Exit.INTERRUPTED
    assert bench.counted() == before


def running(bench: Bench) -> None:
    """Wait until the engine runs a container."""
    until(bench.client.containers.list, "a container", every_s=0.05)


@pytest.mark.parametrize(
    ("base", "words"), [(BASE, "    now"), (SLOW, "finding out which Horovod the base needs")], ids=["step", "asked"]
)
def test_killed_outright_and_swept_by_the_next_build(bench: Bench, base: str, words: str) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300", base=base)
    read_until(child, words)
    running(bench)
    child.kill()
    child.communicate(timeout=60)
    bench.build("echo the next && exit 7", code=Exit.PROGRAM_FAILED)
    wait_until_settled(bench, before)


def test_an_engine_that_dies_in_the_middle_and_comes_back(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300")
    read_until(child, "    now")
    os.kill(int((Path(bench.url.removeprefix("unix://")).parent / "dockerd.pid").read_text()), signal.SIGKILL)
    said, _ = child.communicate(timeout=120)
    assert "Traceback" not in said, said
    assert child.returncode == Exit.INFRASTRUCTURE
    assert "the engine went away in the middle of the build" in said
    assert engine.start_private(bench.state) == bench.url
    bench.build("echo the next && exit 7", code=Exit.PROGRAM_FAILED)
    wait_until_settled(bench, before)


def test_a_full_disk_of_the_engine(tmp_path: Path) -> None:
    """Its data lie in 100 MB of memory, of which the base takes some."""
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    for place in (state / "data", tmp_path / "cache", tmp_path / "tmp"):
        place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100M", "tmpfs", state / "data"], check=True)
    try:
        bench = start_bench(state, tmp_path)
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
