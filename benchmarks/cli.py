"""What the command line takes before it does anything, as multiples of bare Python: ``make bench-cli``.

A table in Markdown: medians of the ratios of runs side by side, so that a load that comes
and goes meets both. Bytecode is written first, as an installation does. Half a minute on one core.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core import paths

BARE = ("-c", "pass")
RUN = Path("tests/fixtures/5ada5d4/jobs/20261122-215051-good-2")
_SUPERBLOCK = b"hsqs" + bytes(24) + b"\4" + bytes(67)  # all that a dry run reads of a squashfs image


@dataclass(frozen=True)
class Times:
    """One run: by the clock, and of the processor; seconds."""

    wall_s: float
    processor_s: float


def commands(image: Path, run: Path) -> dict[str, tuple[tuple[str, ...], float]]:
    """What is timed: words after the Python, and the multiple of bare Python that is aimed at."""
    submit = ("submit", "--gpus", "16", "--site", "technion", "--image", str(image))
    judged = {f"`{verb} RUN`, judged": (("-m", "runner", verb, str(run)), 9.0) for verb in ("status", "logs", "cancel")}
    return {
        "`--help`": (("-m", "runner", "--help"), 5.0),
        "`submit --gpus 16 --site technion --dry-run`": (("-m", "runner", *submit, "--dry-run"), 12.0),
        **judged,
    }


def timed(words: Sequence[str], environment: Mapping[str, str]) -> Times:
    """One run of this Python, its output thrown away.

    Raises:
        RuntimeError: it failed.
    """
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    began = time.monotonic()
    child = os.posix_spawn(sys.executable, [sys.executable, *words], environment, file_actions=nothing)
    _, status, used = os.wait4(child, 0)
    wall_s = time.monotonic() - began
    if status:
        raise RuntimeError(f"exit code {os.waitstatus_to_exitcode(status)}: {' '.join(words)}")
    return Times(wall_s, used.ru_utime + used.ru_stime)


def compared(words: Sequence[str], environment: Mapping[str, str], rounds: int) -> list[tuple[Times, Times]]:
    """Pairs of a bare Python and the command, one after the other; the first pair, which fills caches, is left out."""
    pairs = [(timed(BARE, environment), timed(words, environment)) for _ in range(rounds + 1)]
    return pairs[1:]


def table(measured: Mapping[str, tuple[Sequence[tuple[Times, Times]], float]]) -> str:
    lines = [
        "| command | wall ms | processor ms | of bare Python: wall | processor | aim |",
        "|---|---|---|---|---|---|",
    ]
    for name, (pairs, aim) in measured.items():
        wall_s, processor_s = (statistics.median(run.wall_s for _, run in pairs),
                               statistics.median(run.processor_s for _, run in pairs))  # fmt: skip
        wall = statistics.median(run.wall_s / bare.wall_s for bare, run in pairs)
        processor = statistics.median(run.processor_s / bare.processor_s for bare, run in pairs)
        lines.append(
            f"| {name} | {wall_s * 1e3:.0f} | {processor_s * 1e3:.0f} | {wall:.1f}x | {processor:.1f}x | {aim:g}x |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="runs of each command, each beside one of bare Python")
    rounds = parser.parse_args().rounds
    root = paths.source_root()
    assert root is not None, "benchmarks lie in a checkout"
    os.chdir(root)
    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch, "image.sqsh")
        image.write_bytes(_SUPERBLOCK)
        run = shutil.copytree(RUN, Path(scratch, RUN.name))
        own = {"RUNNER_CACHE": scratch, "RUNNER_STATE": scratch, "RUNNER_CONFIG": f"{scratch}/none.yaml"}
        environment = {**os.environ, **own}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        (run / "verdict.json").unlink()  # another's, which each command would judge anew: the first writes its own
        words = (sys.executable, "-m", "runner", "status", run)
        subprocess.run(words, env=environment, check=True, capture_output=True)
        measured = {
            name: (compared(words, environment, rounds), aim) for name, (words, aim) in commands(image, run).items()
        }
    print(table(measured))


if __name__ == "__main__":
    main()
