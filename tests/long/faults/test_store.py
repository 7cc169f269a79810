"""A store that cannot be broken: 16 at once, a kill at 100 moments, a full disk, an engine that dies."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.core.progress import Silent
from runner.images import engine
from runner.images.conversion.squashfs import convert_engine_image
from tests.support import converting
from tests.support.two_machines import seen_from_two_machines
from tests.support.users import AS_ROOT

pytestmark = pytest.mark.integration
SEED = 20261121
KILLS = 25  # of each kind


@pytest.fixture(scope="module")
def image(engine_client: docker.DockerClient) -> Iterator[str]:
    with converting.small_image(engine_client, f"gpu-runner/test-store-{os.getpid()}:1", files=400) as name:
        yield name


def test_sixteen_at_once_are_one_conversion(image: str, tmp_path: Path) -> None:
    converting.assert_one_of_many(16, image, tmp_path)


@AS_ROOT
def test_sixteen_at_once_on_a_slow_file_system_that_two_machines_share(image: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with seen_from_two_machines(tmp_path / "shared", tmp_path) as (here, there):
        converting.assert_one_of_many(16, image, here, there)
        assert [path.name for path in (tmp_path / "shared/store").rglob(".*")] == []


@pytest.mark.parametrize(
    ("phase", "way"),
    [("export", "stream"), ("pack", "stream"), ("pack", "auto"), ("verify", "auto"), ("rename", "auto")],
)
def test_no_kill_breaks_the_store(
    engine_client: docker.DockerClient, image: str, tmp_path: Path, phase: str, way: str
) -> None:
    """Export and pack are one stream: the first half of its time, and the second with the end of mksquashfs."""
    times, events = converting.step_times(image, tmp_path / "timed", way=way)
    middle = (times["verifying"] - times["squashing"]) / 2
    spans = {
        "export": ("squashing", 0.0, middle),
        "pack": ("squashing", middle, 2 * middle),
        "verify": ("verifying", 0.0, times["publishing"] - times["verifying"]),
    }
    dice = random.Random(f"{SEED} {phase} {way}")
    killed, scale = 0, 1.0  # the times are of one run, which may have been a slow one
    for number in range(KILLS):
        target = tmp_path / str(number)
        if phase == "rename":
            child = converting.converter(image, target, way=way, fatal=1 + number * events // KILLS)
            child.communicate(timeout=converting.LIMIT_S)
            killed += child.returncode == -signal.SIGKILL
        else:
            step, soonest_s, latest_s = spans[phase]
            child = converting.converter(image, target, way=way)
            is_killed = converting.killed_after(child, step, dice.uniform(soonest_s, latest_s) * scale)
            killed, scale = killed + is_killed, scale if is_killed else 0.8 * scale
        converting.assert_recovers(image, engine_client, target, [child.pid])
    print(f"{phase}, {way}: {KILLS} tried, {killed} killed before their end, {KILLS} survived")
    assert killed >= 10


def test_a_disk_that_fills_at_any_point(engine_client: docker.DockerClient, image: str, tmp_path: Path) -> None:
    """From nothing at all to all but the last file."""
    whole = convert_engine_image(image, engine_client, Silent(), store_dir=tmp_path / "whole").image.size_bytes
    dice = random.Random(SEED)
    sizes = [8192, *(dice.randrange(8192, whole) for _ in range(8)), whole - 4096, whole]
    converting.assert_survives_a_full_disk(image, tmp_path, sizes)


def test_an_engine_that_dies_in_the_middle_of_an_export(tmp_path: Path) -> None:
    state = tmp_path / "engine"
    dice = random.Random(SEED)
    name = "gpu-runner/test-dying:1"
    try:
        for number in range(4):
            url = engine.start_private(state)
            client = engine.connect(url)
            converting.import_small(client, name, files=2500)
            target = tmp_path / str(number)
            words = [sys.executable, "-m", "runner", "convert", "--engine", url, "--store", str(target)]
            words += ["--way", "stream", name]
            with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
                assert child.stderr is not None
                assert "squashing" in child.stderr.readline()
                time.sleep(dice.uniform(0.1, 0.6))
                assert child.poll() is None
                os.kill(int((Path(url.removeprefix("unix://")).parent / "dockerd.pid").read_text()), signal.SIGKILL)
                told = child.stderr.read()
            assert child.returncode == 8, told
            assert "error: the engine" in told
            assert "Traceback" not in told
            assert [path for path in target.rglob("*") if path.is_file()] == []
            client.close()
            client = engine.connect(engine.start_private(state))
            converting.assert_recovers(name, client, target, [child.pid])
            client.close()
    finally:
        engine.remove_private(state)
