"""From one changed line of a requirements file to 16 ranks that have started in the new image: ``make bench-change``.

A Dockerfile on the project's own image installs what requirements.txt names, from wheels that lie beside it. A line is
changed; then ``docker build``, ``convert``, and ``submit`` to a box of four nodes with Slurm and Charliecloud, whose
ranks start from the squashfs in the store. Each is a command as a user types it. The end is when the last of the ranks
has written its first record. All was done once before with another line: what caches keep, they have.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from itertools import pairwise
from pathlib import Path

from benchmarks.convert import LABEL, built
from runner import box
from runner.images import engine

RANKS, NODES, LIMIT_S = 16, 4, 600
STEPS = ("docker build", "convert", "submit, to the last rank's first record")
WAYS: dict[str, tuple[str, ...]] = {"`convert`": (), "`convert --from-scratch`": ("--from-scratch",)}
_DOCKERFILE = """FROM {base}
COPY wheels /env/wheels
COPY requirements.txt /env/
RUN pip install --no-index --no-deps --find-links /env/wheels -r /env/requirements.txt
"""


def wheel(path: Path, version: str) -> bytes:
    """A package of 1 MB."""
    with zipfile.ZipFile(path, "w") as made:
        info = f"changed_line-{version}.dist-info"
        made.writestr("changed_line.py", f"VERSION = {version!r}\nDATA = {os.urandom(500_000).hex()!r}\n")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: changed-line\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


def changed(
    base: str, version: str, wheels: dict[str, bytes], options: tuple[str, ...], at: Path, site: str
) -> list[float]:
    """Seconds of each of STEPS, from the changed line on."""
    tag, runs, runner = f"{LABEL}:requirement", at / "runs" / str(time.monotonic()), [sys.executable, "-m", "runner"]
    context = {
        "Dockerfile": _DOCKERFILE.format(base=base).encode(),
        "requirements.txt": f"changed-line=={version}\n".encode(),
    }
    times = [time.time()]
    built(engine.connect(), tag, context | wheels)
    times.append(time.time())
    call([*runner, "convert", tag, *options])
    times.append(time.time())
    shape = ("--gpus", str(RANKS), "--nodes", str(NODES), "--site", site, "--runs", str(runs))
    call([*runner, "submit", *shape, "--image", tag, "--recipe", "probe", "--wait"])
    started = [path.stat().st_mtime for path in runs.glob("*/ranks/*.start.json")]
    assert len(started) == RANKS, f"{len(started)} ranks have started"
    times.append(max(started))
    return [after - before for before, after in pairwise(times)]


def call(words: list[str]) -> None:
    """A command that must end well."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--base", default="gpu-runner/horovod-pytorch:standin", help="image that the package is added to"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each way, in turns; medians are printed")
    asked = parser.parse_args()
    name = f"bench-change-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="bench-change-") as scratch:
        at = Path(scratch)
        os.environ["RUNNER_STORE"] = str(at / "store")
        try:
            here = box.up(box.BoxSpec(name=name, nodes=NODES))
            os.environ["PATH"] = f"{here.bin_dir}:{os.environ['PATH']}"
            seen: dict[str, list[list[float]]] = {way: [] for way in WAYS}
            versions = [f"1.{number}" for number in range(1 + len(WAYS) * asked.rounds)]
            made = {
                f"wheels/{file}": wheel(at / file, v)
                for v in versions
                for file in [f"changed_line-{v}-py3-none-any.whl"]
            }
            changed(asked.base, versions.pop(), made, (), at, here.site)
            print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
            for _ in range(asked.rounds):
                for way, options in WAYS.items():
                    seen[way].append(changed(asked.base, versions.pop(), made, options, at, here.site))
        finally:
            box.down(name)
    print(f"\n| way | {' | '.join(f'{step}, s' for step in STEPS)} | in all, s |\n|{'---|' * (2 + len(STEPS))}")
    for way, rounds in seen.items():
        medians = [statistics.median(step) for step in [*zip(*rounds, strict=True), list(map(sum, rounds))]]
        print(f"| {way} | {' | '.join(f'{each:.1f}' for each in medians)} |")


if __name__ == "__main__":
    main()
