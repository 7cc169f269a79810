"""Conversions in processes of their own that can be killed, and what must hold of a store whatever happened to them."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker

from runner.core.progress import Silent
from runner.images.conversion.squashfs import convert_engine_image
from runner.images.store import integrity, store
from runner.images.store.stored_image import StoredImage
from tests.support.commands import ran
from tests.support.layers import tar_of

LIMIT_S = 300


# Tells each step on standard output. With a number N it kills itself before the Nth thing that it does to files
# while it publishes, by Python's audit events: no moment between two renames is too short to be met.
DRIVER = """
import os, signal, sys
from pathlib import Path
from runner.images.conversion.squashfs import convert_engine_image
from runner.images.engine import connect
from runner.core.progress import Silent
image, directory, fatal, way = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
client = connect()
phase, events = "", 0
class Loud(Silent):
    def step(self, text, done=None, total=None):
        global phase
        phase = text.split()[0]
        print(text, flush=True)
def count(event, _words):
    global events
    if phase == "publishing" and (event == "open" or event.startswith("os.")):
        events += 1
        if events == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
print("ready", flush=True)
done = convert_engine_image(image, client, Loud(), store_dir=directory, method=way)
print("done", done.made, events, done.image.path, flush=True)
"""


# A machine of its own as far as processes can tell: other numbers, another name.
_ELSEWHERE = ("unshare", "--fork", "--pid", "--uts", "--mount-proc", "sh", "-c", 'hostname "$0"; exec "$@"')
NO_FLOCK = "import fcntl\nfcntl.flock = fcntl.lockf = lambda *words: None\n"


def import_small(client: docker.DockerClient, name: str, *, files: int) -> None:
    """An image of so many files of up to 80 kB that hardly compress; imported, as there is no registry."""
    dice = random.Random(7)
    root = tar_of(
        *((f"d{number % 7}/f{number}", dice.randbytes(dice.randrange(80_000)), {}) for number in range(files))
    )
    repository, tag = name.split(":")
    client.api.import_image_from_data(root, repository=repository, tag=tag, changes=["ENV A=1"])


@contextmanager
def small_image(client: docker.DockerClient, name: str, *, files: int) -> Iterator[str]:
    import_small(client, name, files=files)
    try:
        yield name
    finally:
        client.images.remove(name, force=True)


def converter(
    image: str, directory: Path, *, fatal: int = 0, host: str = "", way: str = "auto", env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """A process that converts ``image`` into the store ``directory``.

    fatal: number of the event while publishing before which it kills itself. host: name of the machine that it seems
    to run on; empty for this one.
    """
    words = [sys.executable, "-c", DRIVER, image, str(directory), str(fatal), way]
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")  # what an ordinary user needs to mount
    elsewhere = [_ELSEWHERE[0], *user, *_ELSEWHERE[1:], host] if host else []
    return subprocess.Popen(
        [*elsewhere, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | (env or {})
    )


def step_times(image: str, directory: Path, *, way: str = "auto") -> tuple[dict[str, float], int]:
    """Seconds from ``ready`` to each step (by its first word) and to ``done``; how many events publishing has."""
    times: dict[str, float] = {}
    events = 0
    with converter(image, directory, way=way) as child:
        assert child.stdout is not None
        for line in child.stdout:
            words = line.split()
            times[words[0]] = time.monotonic()
            if words[0] == "done":
                events = int(words[2])
        assert child.wait(LIMIT_S) == 0, child.stderr and child.stderr.read()
    return {name: seen - times["ready"] for name, seen in times.items()}, events


def killed_after(child: subprocess.Popen[str], step: str, delay_s: float) -> bool:
    """Kill the process so long after it reported the step; False if it had ended before."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.split()[0] == step:
            break
    time.sleep(delay_s)
    child.kill()
    child.communicate(timeout=LIMIT_S)
    return child.returncode < 0


def assert_sound(directory: Path) -> int:
    """Whatever stands in the store under a final name is whole, to the last bit; returns how many images do."""
    images = store.everything(directory)
    for image in images:
        assert isinstance(image, StoredImage), image
        assert integrity.verified(image).broken == "", image.path
    return len(images)


def assert_recovers(image: str, client: docker.DockerClient, directory: Path, pids: Sequence[int]) -> None:
    """The next conversion is good and sweeps up: one image, its sidecar and references, and no container is left."""
    assert_sound(directory)
    made = convert_engine_image(image, client, Silent(), store_dir=directory).image
    assert assert_sound(directory) == 1
    assert store.lookup(image, directory) == made
    assert [path.name for path in directory.rglob(".*")] == []
    assert len(list((directory / "refs").iterdir())) == 3
    marks = [
        str(container.name).removeprefix("gpu-runner-")
        for container in client.containers.list(all=True, filters={"name": "^gpu-runner-"}, ignore_removed=True)
    ]
    assert not [mark for mark in marks if int(mark.split(".")[3]) in pids], "a dead conversion's container is left"


def assert_one_of_many(count: int, image: str, tmp_path: Path, elsewhere: Path | None = None) -> None:
    """So many at once, flock a word without meaning, half of them on other machines: one converts, all are answered.

    ``elsewhere``: where the others see ``tmp_path``; None for the same place.
    """
    (tmp_path / "sitecustomize.py").write_text(NO_FLOCK)
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    target = tmp_path / "store"
    seen_there = (elsewhere or tmp_path) / "store"
    children = [
        converter(image, seen_there if n % 2 else target, host=f"node{n}" if n % 2 else "", env=env)
        for n in range(count)
    ]
    said = [child.communicate(timeout=LIMIT_S) for child in children]
    assert not (failed := [err for child, (_, err) in zip(children, said, strict=True) if child.returncode]), failed[0]
    answers = [out.splitlines()[-1].split() for out, _ in said]
    assert sorted(words[1] for words in answers) == ["False"] * (count - 1) + ["True"]
    assert len({Path(words[3]).name for words in answers}) == 1
    assert assert_sound(target) == 1
    assert list(target.rglob(".*")) == []


# Arguments: bytes of the disk, the store, a command of ours with the store in it. What is left on the full disk is
# listed; then there is room, and the same must work.
_FULL_DISK = """
set -eu
size=$1 store=$2; shift 2
mount -t tmpfs -o size="$size" store "$store"
"$@" convert --store "$store" "$image" && echo "converted" || echo "exit $?"
"$@" images verify --store "$store" || echo "BROKEN"
find "$store" -type f -name '.*'
mount -o remount,size=1g "$store"
"$@" convert --store "$store" "$image"
"$@" images verify --store "$store"
find "$store" -name '.*'
"""


def assert_survives_a_full_disk(image: str, tmp_path: Path, sizes: Sequence[int]) -> None:
    """A store on a disk of each of these sizes: reported, exit 8, nothing broken, nothing left; then it works."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    for size in sizes:
        words = ["unshare", *user, "--mount", "sh", "-c", _FULL_DISK, "sh", str(size), str(tmp_path)]
        done = ran([*words, sys.executable, "-m", "runner"], timeout_s=LIMIT_S, env={**os.environ, "image": image})
        assert "exit 8\n" in done.out, done
        assert "converted in" in done.out, done
        assert "No space left on device" in done.err, done
        assert "--store DIR" in done.err, done
        assert "BROKEN" not in done.out, done
        assert f"{tmp_path}/." not in done.out, done
