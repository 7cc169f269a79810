"""Job scripts run by a real bash, with recorders in the place of the scheduler, the container and the launcher."""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.core.errors import UsageError
from runner.jobs.creation import write_script
from runner.model.request import Mount, Recipe, Request
from runner.model.step import JobScript

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"), options={"note": "x"})
# Keeps the words of a rank's call and its environment, NUL-separated.
RECORD = """#!/bin/bash
printf '%s\\0' "$@" >"$HOME/words.$RANK"
env -0 >"$HOME/environment.$RANK"
"""


def stubs(programs: Mapping[str, str]) -> Path:
    """A directory with these programs, by name."""
    directory = Path(tempfile.mkdtemp(prefix="runner-stubs-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name, text in programs.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return directory


@contextmanager
def ran(script: JobScript, programs: Path, env: Mapping[str, str]) -> Iterator[tuple[Path, Path]]:
    """Run a script in a run directory of its own, with an awkward name; gives that of the records, and it.

    Args:
        env: besides PATH; the values ``{records}`` and ``{run}`` stand for these directories.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # a part may still write its version
        records, run = Path(name), Path(name) / "a run's $dir"
        (run / "logs").mkdir(parents=True)
        (run / "recipe").mkdir()
        write_script(run, script)
        own = {each: {"{records}": name, "{run}": str(run)}.get(value, value) for each, value in env.items()}
        own["PATH"] = f"{programs}:{os.environ['PATH']}"
        done = subprocess.run(["/bin/bash", run / "job.sh"], env=own, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr + b"".join(path.read_bytes() for path in (run / "logs").iterdir())
        yield records, run


def split(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\0")[:-1]


def environment(path: Path) -> dict[bytes, bytes]:
    return {name: value for name, _, value in (pair.partition(b"=") for pair in split(path))}


def request(
    gpus: int, arguments: list[str], env: Mapping[str, str], option: str, mounts: Iterable[tuple[str, str]]
) -> Request:
    return Request(
        gpus=gpus, mounts=tuple(Mount(source, target) for source, target in mounts), env=tuple(env.items()),
        options=(("note", option),), arguments=tuple(arguments),
    )  # fmt: skip


def check_refused(error: UsageError, via: str, mounts: list[str]) -> None:
    """Without a scheduler nothing but a mount is refused."""
    bad = "\n" if via == "native" else ":\n"
    assert any(c in path for path in mounts for c in bad) or "mount" in error.where, error
