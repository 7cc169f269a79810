"""How fast an image becomes a squashfs: our two ways, Enroot's, and what bounds them, in alternating runs.

    make bench-convert            (or: python -m benchmarks.convert --runs 3 --files 30000)
    python -m benchmarks.convert --runs 1 --large 7               (an image of 8.9 GB; takes 40 GB of disk)

The image is made on the engine, the same each time: the project's own image and many small generated files. Every
pass begins after a sync, with the image's files in the page cache. Ours is the whole of ``convert``: packing,
verification, checksum, fsync and publication; Enroot's has none of the last four. A pass that fails, or that needed a
second try, is noted and not counted. "assembled" is after a change of the image that the store holds.
"""

import argparse
import io
import math
import os
import random
import shutil
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import docker

from benchmarks import enroot
from runner.core import process
from runner.core.errors import InfrastructureError, RunnerError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.conversion.engine_source import Method
from runner.images.conversion.squashfs import Options, convert, convert_engine_image
from runner.images.packing.mksquashfs import Packing
from runner.images.store import store

# Text that compresses like sources do, sizes from some bytes to some 40 kB as in a tree of Python packages.
MANY_FILES = """
import os, random, sys
draw = random.Random(7)
words = ["%x" % draw.getrandbits(draw.choice((8, 12, 16, 32))) for _ in range(4000)]
for number in range(int(sys.argv[1])):
    directory = "/many/%02d/%03d" % (number % 30, number % 700)
    os.makedirs(directory, exist_ok=True)
    size = int(draw.lognormvariate(8.2, 1.2))
    with open("%s/%d.txt" % (directory, number), "w") as file:
        file.write(" ".join(draw.choices(words, k=size // 6 + 1)))
"""
LABEL = "gpu-runner/bench-convert"
CHANGES = {"nothing": 0, "a label": 0, "1 MB": 1, "50 MB": 50, "its base": 0}  # MB of a new last layer
# Half of it random bytes, half what compresses to a quarter; 4 MB a file.
LARGE = """
import os, random, sys
draw = random.Random(11)
for number in range(int(sys.argv[1]) * 250):
    os.makedirs("/large/%d" % (number % 50), exist_ok=True)
    with open("/large/%d/%d" % (number % 50, number), "wb") as file:
        for _ in range(4000):
            file.write(draw.randbytes(1000) if number % 2 else draw.randbytes(250) * 4)
"""
_LIMIT_S = 3600.0


class Passes:
    """Seconds of each kind of pass, its processor time without the engine's, and the most bytes it had on disk."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.cpu: dict[str, float] = {}
        self.disk: dict[str, int] = {}
        self.size: dict[str, int] = {}
        self.failed: dict[str, list[str]] = {}

    def time(self, name: str, work: Callable[[], None]) -> None:
        """Time the work; one that fails is noted and not counted."""
        os.sync()
        began, cpu = time.monotonic(), sum(os.times()[:4])
        try:
            work()
        except RunnerError as error:
            self.failed.setdefault(name, []).append(error.what.splitlines()[0])
            print(f"  {name}: not counted: {self.failed[name][-1]}", file=sys.stderr, flush=True)
            return
        self.add(name, time.monotonic() - began)
        self.cpu[name] = sum(os.times()[:4]) - cpu
        print(f"  {name}: {self.seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)

    def add(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)

    def median(self, name: str) -> float:
        """Seconds; not a number where no pass counted."""
        return statistics.median(self.seconds[name]) if name in self.seconds else math.nan


class Crashes(Silent):
    """Keeps what a conversion says of a crash: with a second try its time is another one's."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if "crashed" in text:
            self.steps.append(text)
        super().step(text, done, total)


def image(client: docker.DockerClient, base: str, files: int, gigabytes: int) -> str:
    dockerfile = f"FROM {base}\nCOPY many.py large.py /tmp/\nRUN python3 /tmp/many.py {files}\n"
    dockerfile += f"RUN python3 /tmp/large.py {gigabytes}\n" if gigabytes else ""
    context = {"Dockerfile": dockerfile, "many.py": MANY_FILES, "large.py": LARGE}
    return built(client, f"{LABEL}:{files}-{gigabytes}", {name: text.encode() for name, text in context.items()})


def built(client: docker.DockerClient, tag: str, context: dict[str, bytes]) -> str:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in context.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    client.images.build(fileobj=io.BytesIO(raw.getvalue()), custom_context=True, tag=tag, network_mode="none", rm=True)
    return tag


def assembled(change: str, base: str, client: docker.DockerClient, passes: Passes, packing: Packing, at: Path) -> None:
    """The image after a change, a last layer of text at most, from the blocks of the image before it; or of one with
    another base, which helps nothing.
    """
    before, tag, whole = base, base, change in ("nothing", "its base")
    if change == "its base":
        before = built(client, f"{LABEL}:other", {"Dockerfile": b"FROM scratch\nCOPY Dockerfile /Dockerfile\n"})
    if not whole:
        draw = random.Random(time.monotonic())
        files = {f"new/{number}.txt": draw.randbytes(50_000).hex().encode() for number in range(CHANGES[change] * 10)}
        dockerfile = f"FROM {base}\nLABEL pass={time.monotonic()}\n{'COPY new /opt/new' if files else ''}\n"
        tag = built(client, f"{LABEL}:changed", {"Dockerfile": dockerfile.encode(), **files})
    name, crashes, made = f"assembled, changed: {change}", Crashes(), []
    of_engine = partial(
        convert_engine_image,
        store_dir=at / ("others" if before != base else "relatives"),
        packing=packing,
        assemble=True,
    )
    of_engine(before, client, Silent())
    passes.time(name, lambda: made.append(of_engine(tag, client, crashes)))
    if any(line.startswith("assembled in ") for line in crashes.lines) == whole:
        raise InfrastructureError(f"{name}: it was assembled, or it was not: {crashes.lines}")
    for done in made:
        passes.size[name] = done.image.size_bytes
        if done.made:  # the next change, too, has the image before it as its relative
            store.remove(done.image.path)
    if not whole:
        from_archives(name, saved(before, client, at), saved(tag, client, at), passes, packing, at)


def from_archives(name: str, before: Path, after: Path, passes: Passes, packing: Packing, at: Path) -> None:
    """The same of what ``docker save`` wrote, as a registry has it."""
    options, crashes, made = Options(packing=packing, store=at / "of-archives", assemble=True), Crashes(), []
    convert(f"docker-archive:{before}", options, Silent())
    name = name.replace("assembled", "assembled from archives")
    passes.time(name, lambda: made.append(convert(f"docker-archive:{after}", options, crashes)))
    if not any(line.startswith("assembled in ") for line in crashes.lines):
        raise InfrastructureError(f"{name}: it was not assembled: {crashes.lines}")
    for done in made:
        passes.size[name] = done.image.size_bytes
        store.remove(done.image.path)


def saved(tag: str, client: docker.DockerClient, at: Path) -> Path:
    """The engine's archive of an image that is not there yet, or was changed."""
    path = at / f"{tag.rpartition(':')[2]}.tar"
    if tag.endswith(":changed") or not path.exists():
        with path.open("wb") as file:
            file.writelines(client.api.get_image(tag, chunk_size=1 << 20))
    return path


def ours(tag: str, client: docker.DockerClient, way: Method, passes: Passes, packing: Packing, scratch: Path) -> None:
    """One conversion into an empty store, its disk watched."""
    own = scratch / "store"
    ended = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.2):
            peak = max(peak, allocated(own))

    watcher = threading.Thread(target=watch)
    watcher.start()
    crashes = Crashes()
    try:
        made = convert_engine_image(tag, client, crashes, store_dir=own, packing=packing, method=way)
        if crashes.steps:
            raise InfrastructureError(crashes.steps[0])
        passes.disk[way] = max(peak, allocated(own))
        passes.size[way] = made.image.size_bytes
    finally:
        ended.set()
        watcher.join()
        shutil.rmtree(own, ignore_errors=True)


def allocated(directory: Path) -> int:
    """Bytes that the files below a directory take on disk."""
    total = 0
    for path in directory.rglob("*") if directory.is_dir() else ():
        if path.exists():
            total += path.lstat().st_blocks * 512
    return total


def theirs(name: str, tag: str, url: str, options: tuple[str, ...], passes: Passes, scratch: Path) -> None:
    """One import of Enroot's way, with its steps' times."""
    last = time.monotonic()

    def record(step: str) -> None:
        nonlocal last
        now = time.monotonic()
        if step:
            passes.add(f"{name}: {step}", now - last)
        last = now

    out = scratch / "enroot.sqsh"
    tree = enroot.import_image(tag, url, scratch, out, options, record)
    passes.size[name] = out.stat().st_size
    passes.disk[name] = tree + passes.size[name]
    out.unlink()


def export_only(tag: str, url: str) -> None:
    name = process.run(["docker", "--host", url, "create", "--network", "none", tag, "true"], timeout_s=60).out.strip()
    with Path(os.devnull).open("wb") as nowhere:
        exporter = process.start(["docker", "--host", url, "export", name], stdout=nowhere.fileno())
        assert exporter.wait() == 0
    process.run(["docker", "--host", url, "rm", name], timeout_s=60)


def squash_only(tree: Path, out: Path, packing: Packing) -> None:
    process.run(packing.command(tree, out, 1), timeout_s=_LIMIT_S)
    out.unlink()


def extracted(tag: str, url: str, scratch: Path) -> Path:
    tree = scratch / "tree"
    tree.mkdir()
    name = process.run(["docker", "--host", url, "create", "--network", "none", tag, "true"], timeout_s=60).out.strip()
    exporter = process.start(["docker", "--host", url, "export", name])
    assert exporter.stdout is not None
    assert process.start(["tar", "-C", str(tree), "-px"], stdin=exporter.stdout).wait() == 0
    process.run(["docker", "--host", url, "rm", name], timeout_s=60)
    return tree


def table(passes: Passes, same: str, default: str) -> str:
    """Medians, ratios to Enroot's two, and the floors; one Markdown line a kind of pass."""
    floor = max(passes.median("floor: export"), passes.median("floor: mksquashfs"))
    heads = ["pass", "median s", "runs s", "CPU s", "MB", "peak MB on disk"]
    heads += ["Enroot's, same options", "Enroot's defaults", "slower floor"]
    lines = [f"| {' | '.join(heads)} |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name, seconds in passes.seconds.items():
        median = passes.median(name)
        size = f"{passes.size[name] / 1e6:.0f}" if name in passes.size else ""
        cpu = f"{passes.cpu[name]:.1f}" if name in passes.cpu else ""
        disk = f"{passes.disk[name] / 1e6:.0f}" if name in passes.disk else ""
        ratios = ["", "", ""]
        if name in ("layers", "stream"):
            ratios = [f"{passes.median(same) / median:.1f} x faster", "", f"{median / floor:.2f} x"]
            if default in passes.seconds:
                ratios[1] = f"{passes.median(default) / median:.1f} x faster"
        runs = " ".join(f"{one:.1f}" for one in seconds)
        lines.append(f"| {' | '.join([name, f'{median:.1f}', runs, cpu, size, disk, *ratios])} |")
    lines += [f"{name}, a pass that is not counted: {what}" for name, all_ in passes.failed.items() for what in all_]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="gpu-runner/horovod-pytorch:standin", help="image that files are added to")
    parser.add_argument("--files", type=int, default=40_000, help="small files generated on top of it")
    parser.add_argument("--large", type=int, default=0, metavar="GB", help="large files generated on top of it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--default-runs", type=int, default=1, help="of Enroot with its own options: minutes each")
    parser.add_argument("--zstd-level", type=int, default=Packing().level)
    parser.add_argument("--block-size", default=Packing().block)
    parser.add_argument("--engine", metavar="URL", help="default: DOCKER_HOST, else the private engine")
    asked = parser.parse_args()
    url = asked.engine or os.environ.get("DOCKER_HOST") or engine.private_url(engine.private_state())
    client = engine.connect(url)
    packing = Packing(level=asked.zstd_level, block=asked.block_size)
    same, default = "Enroot's way, same options", "Enroot's way, its defaults"
    options = (*packing.options()[: packing.options().index("-all-root")], "-exit-on-error")
    passes = Passes()
    scratch = Path(tempfile.mkdtemp(prefix="bench-convert-", dir="/var/tmp"))
    try:
        tag = image(client, asked.base, asked.files, asked.large)
        tree = extracted(tag, url, scratch)
        load = os.getloadavg()[0]
        for _ in range(asked.runs):
            passes.time("layers", lambda: ours(tag, client, "layers", passes, packing, scratch))
            passes.time(same, lambda: theirs(same, tag, url, options, passes, scratch))
            passes.time("stream", lambda: ours(tag, client, "stream", passes, packing, scratch))
            for change in CHANGES:
                assembled(change, tag, client, passes, packing, scratch)
            passes.time("floor: export", lambda: export_only(tag, url))
            passes.time("floor: mksquashfs", lambda: squash_only(tree, scratch / "alone.sqsh", packing))
        for _ in range(asked.default_runs):
            passes.time(default, lambda: theirs(default, tag, url, enroot.DEFAULT_OPTIONS, passes, scratch))
        print(f"load of {os.cpu_count()} processors: {load:.1f} before, {os.getloadavg()[0]:.1f} after\n")
        print(table(passes, same, default))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
