"""Whether a job can start the user's program, before it waits in a queue. Only what is certain is a problem."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path

from runner.core import process
from runner.core.errors import RunnerError
from runner.core.text import instead, nearest
from runner.images.store import store
from runner.model.plan import WORKSPACE
from runner.model.request import Request
from runner.preparation.choices import JobImage
from runner.preparation.program_source import needed_modules

_KNOWN = ("python", "python3", "bash", "sh", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "composer")
_LIST_S = 20.0  # an image's names are at its end, on a file system that may be slow


def program_problem(request: Request, image: JobImage, *, is_container: bool, loads: bool) -> tuple[str, str]:
    """Why the program cannot be started, and the fix; empty where nothing speaks against it.

    Args:
        loads: the job makes its environment by modules, so that its PATH is not this shell's.
    """
    if not request.program or request.starts_in is None:
        return "", ""
    word = request.program[0]
    if problem := _no_program(request.program, Path(request.starts_in)):
        return problem
    if "/" in word:
        over = any(f"{mount.target}/".startswith(f"{WORKSPACE}/") for mount in request.mounts)
        relative = not word.startswith("/") and ".." not in Path(word).parts and not over
        is_absolute = word.startswith("/") and not is_container
        is_seen = relative or (is_absolute and _is_beside(Path(word), Path(request.runs)))
        return _file_problem(Path(request.starts_in, word), word) if is_seen else ("", "")
    if is_container:
        file = Path(request.starts_in, word)
        return _by_interpreter(file) if word.endswith((".py", ".sh")) and file.is_file() else _in_image(word, image)
    if loads:
        return "", ""
    environment = image.environment.directory if image.environment else ""
    path = f"{environment}/bin:{os.environ.get('PATH', '')}" if environment else None
    return _missing(word, Path(request.starts_in), [name for name in _KNOWN if process.find(name, path)], path)


def _is_beside(file: Path, runs: Path) -> bool:
    """Whether it lies, or would lie, where every rank sees it: on the file system of the run directory, below a
    directory that is there.
    """
    with suppress(OSError, ValueError):
        above = [next(place for place in each.absolute().parents if os.path.lexists(place)) for each in (file, runs)]
        return above[0] != Path("/") and above[0].stat().st_dev == above[1].stat().st_dev
    return False


def _no_program(words: Sequence[str], start: Path) -> tuple[str, str] | None:
    """Of a first word that only a shell would divide, or take as a variable: it names no program anywhere."""
    line = " ".join(words)
    if re.match(r"[A-Za-z_]\w*=", words[0]):
        return f"{words[0]!r} sets a variable, for a shell, and is no program", f"write -- env {line}"
    if words[0].split() in ([words[0]], []) or (start / words[0]).is_file():
        return None
    return f"{words[0]!r} is one word, and no program", f"leave out the quotes: -- {line}; or -- bash -c '...'"


def _missing(word: str, start: Path, known: Sequence[str], path: str | None) -> tuple[str, str]:
    if process.find(word, path) is not None:
        return "", ""
    if (start / word).is_file():
        return _by_interpreter(start / word)
    fix = instead(word, known, "correct its name, or give its whole path")
    return f"no program {word!r} is in PATH, here and so in the job", fix


def _by_interpreter(file: Path) -> tuple[str, str]:
    """Of a file of the directory that is named as programs in PATH are."""
    problem, fix = _file_problem(file, f"./{file.name}")
    return problem or f"{file.name} is not in PATH", fix or f"it is a file of this directory: -- ./{file.name}"


def _file_problem(file: Path, word: str) -> tuple[str, str]:
    with suppress(OSError, ValueError):
        if not os.path.lexists(file):
            return f"there is no file {word} in {file.parent}", "correct its name"
        if file.is_file() and not file.stat().st_mode & 0o111:
            by = "python3" if word.endswith(".py") else "bash"
            return f"{word} has no permission to be executed (x)", f"chmod +x {word}; or -- {by} {word} ..."
    return "", ""


def _in_image(word: str, image: JobImage) -> tuple[str, str]:
    """Of a squashfs in the store, whose names can be listed: a program that looks like a known one and is not there."""
    if not image.planned.path.endswith(".sqsh") or image.problem or not nearest(word, _KNOWN, least=0.8):
        return "", ""
    stored = store.lookup(image.planned.path)
    path = stored.environment.get("PATH", "") if stored is not None else ""
    places = [posixpath.join(folder.strip("/"), name) for folder in path.split(":") for name in (word, *_KNOWN)]
    try:
        listed = process.run(("unsquashfs", "-lc", image.planned.path, *places), timeout_s=_LIST_S, check=False).out
    except RunnerError:  # no unsquashfs, or no answer in time: nothing is known
        return "", ""
    there = {posixpath.basename(line) for line in listed.splitlines() if re.match(r"squashfs-root/.*[^/]\Z", line)}
    if not there & {*_KNOWN} or word in there:
        return "", ""
    return f"the image {image.planned.reference} has no program {word!r}", instead(
        word, sorted(there), "correct its name"
    )


def lacking(
    program: Sequence[str], directory: Path, image: JobImage, env: Container[str], *, runs_here: bool
) -> tuple[str, str]:
    """What the program's Python lacks that it imports, whatever happens; and the fix; empty where nothing is known.

    Args:
        env: the job's own variables. runs_here: in the environment of this shell.
    """
    if "PYTHONPATH" in env or not program or not re.fullmatch(r"python3?(\.\d+)?", program[0], re.ASCII):
        return "", ""
    own = Path(image.environment.directory, "bin/python3") if image.environment else None
    python = own or (process.find(program[0]) if runs_here else None)
    needs = needed_modules(tuple(program), directory) if python is not None and python.exists() else ()
    if not needs:
        return "", ""
    from runner.setup.machine import missing_modules

    lacks, fix = missing_modules(needs, python)
    if lacks and python is not None and python.absolute().parent.parent == Path(sys.prefix).absolute():
        words = "this shell is in gpu-runner's own environment, and the program would run in it"
        return f"{words}: {lacks}", "activate the program's own environment, or name it: --env-name DIR"
    return lacks, fix
