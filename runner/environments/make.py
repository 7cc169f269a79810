"""Run the scripts that make and prove environments; what their exit codes mean for people."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.core import files, package_directory, paths, process
from runner.core.errors import (
    InfrastructureError,
    NotProvenError,
    ProgramFailedError,
    RefusedError,
    RunnerError,
    UsageError,
)  # fmt: skip
from runner.core.files import files_below, key_of, tree_hash
from runner.core.lock import locked
from runner.core.package_directory import PackageDirectory
from runner.core.progress import Progress
from runner.core.text import first_of
from runner.environments import directory
from runner.environments import script as scripts
from runner.environments.script import VARIABLES, EnvironmentSpec, Places, setup_of_jobs
from runner.images.building import wheels
from runner.model import exit_codes
from runner.model.image import Environment, Framework, Setup, facts_of

_LAST_LINES = 15
_FULL = "no space left on device"
_SEE = "see the lines above"

_FAILURES: dict[int, tuple[type[RunnerError], str, str]] = {
    exit_codes.BUSY: (InfrastructureError, "its lock could not be taken", _SEE),
    exit_codes.NOT_LOADED: (
        RefusedError, "its modules, or what is activated, could not be loaded",
        "`module avail` lists the modules; name yours with --module NAME, or in a site file of your own; a conda that "
        "is not there is installed by --conda-installer FILE",
    ),
    exit_codes.NOT_MADE: (
        ProgramFailedError, "it could not be made",
        "load a module that has Python and venv, or conda; or --conda-installer FILE",
    ),
    exit_codes.NO_CONDA: (
        ProgramFailedError, "conda could not be installed",
        "name an installer of Miniforge or Miniconda for these processors: --conda-installer FILE",
    ),
    exit_codes.NO_FRAMEWORK: (
        ProgramFailedError, "the framework could not be installed", "--requirement NAME==VERSION"
    ),
    exit_codes.NO_HOROVOD: (ProgramFailedError, "Horovod could not be built", _SEE),
    exit_codes.WRONG_PACKAGES: (
        RefusedError, "the packages are not for this Python or machine",
        "collect them by the same Python (--python PROGRAM) on a machine like this one, or make the environment with "
        "the Python that they are for",
    ),
    exit_codes.NOT_PROVEN: (NotProvenError, "its Horovod is not proven", _SEE),
}  # fmt: skip
LIMIT_S = 2 * 3600.0
PROOF_LIMIT_S = 600.0
_LISTING_LIMIT_S = 60.0
_CACHES = ".caches"
_MOST_MODULES = 20


def run_script(script: Path, log: Path, progress: Progress, limit_s: float) -> tuple[int, list[str]]:
    """The script's exit code and its last lines; all of them are in the log.

    Raises:
        UnknownStateError: it took longer than ``limit_s`` seconds, and was stopped.
    """
    last: list[str] = []
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:

        def keep_line(line: str) -> None:
            file.write(line + "\n")
            file.flush()
            last.append(line)
            del last[:-_LAST_LINES]
            if line.startswith(("horovod: ", "PROVEN", "hello from ")):
                progress.step(line)
            else:
                progress.line(line)

        return _ran(("bash", script), keep_line, limit_s, script.parent), last


def _ran(argv: Sequence[str | Path], on_line: Callable[[str], None], limit_s: float, directory: Path) -> int:
    """Not where the user is: Python would import what lies there, such as a venv.py of another user. TMPDIR is a
    directory of its own: Open MPI takes what has a known name in it for its own, whoever made that.
    """
    with files.temporary_directory() as temporary:
        env = {**os.environ, "TMPDIR": str(temporary)}
        return process.stream(argv, on_line, timeout_s=limit_s, cwd=directory, env=env)


def failure(code: int, output: list[str], log: str) -> RunnerError:
    """The error for a script's exit code; ``output``: its last lines."""
    if _FULL in "\n".join(output).lower():
        what = "\n".join(("the disk is full:", *output[-_LAST_LINES:]))
        return InfrastructureError(what, where=log, fix="free space there, or in TMPDIR, where pip unpacks")
    kind, what, fix = _FAILURES.get(code, (ProgramFailedError, f"exit code {code}", _SEE))
    return kind("\n".join((f"{what}:", *output[-_LAST_LINES:])), where=log, fix=fix)


@dataclass(frozen=True)
class Given:
    """Files of the user that an environment is made with, absolute.

    Attributes:
        installer: installs conda where the setup's is not there.
        packages: instead of a package index.
    """

    installer: Path | None = None
    packages: PackageDirectory | None = None


NOTHING_GIVEN = Given()


@dataclass(frozen=True)
class Created:
    """An environment that was made, or was there already. ``root``: the directory of its record and log."""

    environment: Environment
    root: Path
    up_to_date: bool
    seconds: float


def programs() -> Path:
    """The directory of what builds and proves Horovod."""
    return paths.share("containers") / "horovod"


def inputs_of(spec: EnvironmentSpec) -> str:
    """Key of everything that goes into an environment."""
    return key_of(msgspec.json.encode(spec, order="sorted").decode(), tree_hash(files_below(programs())))


def places_of(spec: EnvironmentSpec, root: Path, key: str, given: Given = NOTHING_GIVEN) -> Places:
    """The directories of an environment with this root and key, and of what is needed to make it. Raises RefusedError:
    conda would be installed where others could put theirs.
    """
    installs = given.installer and spec.setup.conda and directory.is_installable(Path(spec.setup.conda))
    return Places(
        environment=root / f"{spec.kind}-{key}",
        work=root / f"work-{key}",
        caches=directory.beside(root, _CACHES),
        wheels=wheels.shelf(),
        programs=programs(),
        lock=root / "building",
        installer=given.installer if installs else None,
        packages=given.packages.path if given.packages is not None else None,
    )


def script_of(spec: EnvironmentSpec, root: Path, given: Given = NOTHING_GIVEN) -> str:
    """The whole script that ``make`` runs."""
    return scripts.creation(spec, places_of(spec, root, inputs_of(spec), given))


def make(spec: EnvironmentSpec, root: Path, progress: Progress, *, given: Given = NOTHING_GIVEN) -> Created:
    """The environment: made and proven now, or made before from the same inputs.

    Raises:
        RunnerError: the directory holds something else, others could exchange it or the setup, or as in ``failure``.
    """
    began = time.monotonic()
    directory.check_setup(spec.setup)
    if root.exists():
        directory.check_own(root)
    if not directory.is_free(root):
        what = "the directory is not empty, and holds no environment made by this program"
        raise UsageError(what, where=str(root), fix="choose another NAME")
    inputs = inputs_of(spec)
    current = _current(inputs, root)
    if current is not None:
        directory.check_own(root)  # after it was read: it may come and go
    else:
        if given.packages is not None:
            package_directory.check(given.packages.path, given.packages.manifest, progress)
        root.mkdir(parents=True, exist_ok=True)
        directory.check_own(root)
        with suppress(OSError):  # before another user does
            (root.parent / _CACHES).mkdir()
        with locked(root / "lock", progress.step):
            current = _current(inputs, root)
            if current is None:
                return Created(_made(spec, inputs, root, progress, given), root, False, time.monotonic() - began)
    return Created(current, root, True, time.monotonic() - began)


def prove(
    setup: Setup, framework: Framework, on_line: Callable[[str], None], *, env: Mapping[str, str], mpi: str, nccl: str
) -> None:
    """Prove the Horovod that a setup brings, by two real processes.

    Raises:
        RefusedError: it cannot be loaded. NotProvenError: the proof fails.
    """
    directory.check_setup(setup)
    text = scripts.proof(setup, framework, programs(), env=env, mpi=mpi, nccl=nccl)
    output: list[str] = []

    def keep_line(line: str) -> None:
        output.append(line)
        on_line(line)

    code = _ran(("bash", "-c", text), keep_line, PROOF_LIMIT_S, Path("/"))
    if code == exit_codes.NOT_LOADED and setup.modules:
        output += available(setup)
    if code:
        raise failure(code, output, "")


def available(setup: Setup) -> list[str]:
    """Of the modules that the setup could load those that may be meant, and those with Horovod in their names; lines
    for people.
    """
    try:
        done = process.run(("bash", "-c", scripts.listing(setup)), timeout_s=_LISTING_LIMIT_S, check=False)
    except RunnerError:
        return []
    stems = {"horovod", *(name.partition("/")[0].lower() for name in setup.modules)}
    there = {name for name in done.out.split() if not name.endswith(":")}
    near = sorted(name for name in there if any(stem in name.lower() for stem in stems))
    if not near:
        return ["no module with such a name, or with Horovod in it, is there"]
    return [f"modules like these that are there: {first_of(near, _MOST_MODULES)}"]


def _current(inputs: str, root: Path) -> Environment | None:
    environment = directory.read(root)
    return environment if environment is not None and environment.inputs == inputs else None


def _made(spec: EnvironmentSpec, inputs: str, root: Path, progress: Progress, given: Given) -> Environment:
    places, before = places_of(spec, root, inputs, given), directory.read(root)
    if given.packages is not None:
        wheels.keep_collected(given.packages, progress.line)
    environment, work = Path(places.environment), Path(places.work)
    with locked(Path(places.lock), progress.step):  # a script whose starter was killed may still be running
        _clear(root, keep=(Path(before.directory),) if before and before.directory else ())
        remove(environment)
    paths.ensure_directory(Path(places.wheels))
    script = root / directory.SCRIPT
    files.write_private(script, scripts.creation(spec, places))
    work.mkdir(mode=0o700)
    whole = False
    try:
        progress.step(f"making the environment; the full output is in {root / directory.LOG}")
        code, output = run_script(script, root / directory.LOG, progress, LIMIT_S)
        if code:
            raise failure(code, output, str(root / directory.LOG))
        about = facts_of(msgspec.json.decode((work / "about.json").read_bytes()))
        assert about is not None, "describe.py writes what model/image.py reads"
        made = Environment(
            spec.name, spec.kind, spec.framework, "" if spec.kind == "modules" else str(environment), inputs,
            setup_of_jobs(spec, str(environment)), about, env=VARIABLES[spec.framework], mpi=spec.mpi, nccl=spec.nccl,
            made_s=time.time(),
        )  # fmt: skip
        files.write(root / directory.RECORD, msgspec.json.format(msgspec.json.encode(made)) + b"\n")
        whole = True
        return made
    finally:
        remove(work)
        if not whole:
            remove(environment)


def _clear(root: Path, *, keep: tuple[Path, ...]) -> None:
    """Remove what earlier attempts have left, except the environment that jobs may still run in."""
    for path in root.iterdir():
        if path.is_dir() and path.name.startswith(("virtualenv-", "conda-", "work-")) and path not in keep:
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
