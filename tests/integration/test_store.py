"""A store that cannot be broken: the small form. The long one is tests/long/faults/test_store.py."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from runner.core.progress import Silent
from runner.images.conversion.squashfs import convert_engine_image
from runner.images.store import integrity, store
from runner.images.store.stored_image import StoredImage
from tests.support import converting
from tests.support.commands import ran

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def image(engine_client: docker.DockerClient) -> Iterator[str]:
    with converting.small_image(engine_client, f"gpu-runner/test-store-{os.getpid()}:1", files=60) as name:
        yield name


def test_many_at_once_are_one_conversion_where_flock_does_nothing(image: str, tmp_path: Path) -> None:
    """Half of them on other machines, as far as processes can tell."""
    converting.assert_one_of_many(6, image, tmp_path)


def test_killed_at_any_moment_nothing_broken_stands_and_the_next_run_sweeps_up(
    engine_client: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    times, events = converting.step_times(image, tmp_path / "timed")
    dice = random.Random(1)
    for number, step in enumerate(("squashing", "verifying", "publishing", "publishing", "publishing")):
        target = tmp_path / str(number)
        fatal = dice.randint(1, events) if step == "publishing" else 0
        child = converting.converter(image, target, fatal=fatal)
        if fatal:
            child.communicate(timeout=converting.LIMIT_S)
            assert child.returncode == -signal.SIGKILL
        else:
            assert converting.killed_after(child, step, dice.uniform(0, (times["verifying"] - times[step]) / 2))
        converting.assert_recovers(image, engine_client, target, [child.pid])


def flip_a_bit(image: StoredImage) -> None:
    """With its time put back: only a full check can find it."""
    before = image.path.stat()
    raw = bytearray(image.path.read_bytes())
    raw[len(raw) // 2] ^= 4
    image.path.write_bytes(raw)
    os.utime(image.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert integrity.problem(image) == ""
    assert "SHA-256" in integrity.verified(image).broken


DAMAGES: dict[str, Callable[[StoredImage], object]] = {
    "cut": lambda image: os.truncate(image.path, image.size_bytes // 2),
    "empty": lambda image: image.path.write_bytes(b""),
    "lose the sidecar": lambda image: Path(f"{image.path}.json").unlink(),
    "break the sidecar": lambda image: Path(f"{image.path}.json").write_bytes(b"\0\0"),
    "lose the file": lambda image: image.path.unlink(),
    "lose the references": lambda image: shutil.rmtree(image.path.parent / "refs"),
    "flip a bit": flip_a_bit,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_made_anew_on_demand(
    engine_client: docker.DockerClient, image: str, tmp_path: Path, damage: str
) -> None:
    good = convert_engine_image(image, engine_client, Silent(), store_dir=tmp_path).image
    DAMAGES[damage](good)
    again = convert_engine_image(image, engine_client, Silent(), store_dir=tmp_path)
    assert again.made
    assert (again.image.path, again.image.sha256) == (good.path, good.sha256)
    converting.assert_recovers(image, engine_client, tmp_path, [])


def test_a_full_disk_is_reported_and_leaves_nothing(image: str, tmp_path: Path) -> None:
    converting.assert_survives_a_full_disk(image, tmp_path, (30_000, 1_200_000))


def test_a_store_that_may_only_be_read_serves_what_it_has(
    engine_client: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    target = tmp_path / "store"
    convert_engine_image(image, engine_client, Silent(), store_dir=target)
    target.chmod(0o555)
    with converting.small_image(engine_client, f"gpu-runner/test-other-{os.getpid()}:1", files=3) as other:
        # Root may write everywhere, but for these two rights of it.
        reader = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
        words = [*reader, sys.executable, "-m", "runner", "convert", "--store", target]
        kept = ran([*words, image]).out
        absent = ran([*words, other], code=8).err
    target.chmod(0o755)
    assert "up to date" in kept
    assert "you may not write to this image store" in absent
    assert "--store DIR" in absent
    assert store.lookup(other, target) is None
    assert converting.assert_sound(target) == 1


# Sends itself a signal a few milliseconds after it has asked the engine for a container.
_ENDED_WHILE_ASKING = """
import os, sys, threading
import requests
from runner import cli
number, image, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
send = requests.Session.send
def sent(self, request, **others):
    if "containers/create" in request.url:
        threading.Timer(0.003, os.kill, (os.getpid(), number)).start()
    return send(self, request, **others)
requests.Session.send = sent
cli.main(["convert", "--way", "stream", "--store", directory, image])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_container_that_the_engine_makes_too_late_is_removed(
    engine_client: docker.DockerClient, image: str, tmp_path: Path, number: signal.Signals
) -> None:
    words = [sys.executable, "-c", _ENDED_WHILE_ASKING, str(int(number)), image, str(tmp_path)]
    done = subprocess.run(words, timeout=60, check=False)
    assert done.returncode == 128 + number
    assert engine_client.containers.list(all=True, filters={"ancestor": image}, ignore_removed=True) == []
    assert list(tmp_path.glob(".*")) == []
