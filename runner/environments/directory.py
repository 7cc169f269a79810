"""An environment that the user made without us: the one that this shell is in, or that of a directory.

What an environment is, its own Python says (``sys.prefix``); variables such as VIRTUAL_ENV may be left over.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec

from runner.core import files, ownership, paths, process
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.model.image import Activate, Environment, EnvironmentKind, ImageFacts, Setup
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX

_ASK = 'import json, sys; print(json.dumps([sys.prefix, "%d.%d.%d" % sys.version_info[:3]]))'
_ASK_S = 60.0  # a cold Python on a network file system
_HISTORY_BYTES = 10_000_000
_MAKER = re.compile(r"^# cmd: (/.*?)/(?:bin|condabin)/(?:conda|mamba) ", re.MULTILINE)
_CONDA_SH = "etc/profile.d/conda.sh"
_HOME = re.compile(rb"^home\s*=\s*(/.*?)\s*$", re.MULTILINE)  # of pyvenv.cfg (PEP 405)


def environment_of_shell() -> tuple[Environment | None, str]:
    """The environment whose ``python3`` this shell's PATH finds first, and why it cannot be used in a job; None where
    that is no environment's: the system's, or a module's.

    Raises:
        RunnerError: this Python does not answer.
    """
    python = process.find("python3")
    if python is None:
        return None, ""
    _check_base(python.absolute().parent.parent)  # the job would run by it all the same
    prefix, version = _answer(python)
    try:
        return _of(Path(prefix), version), ""
    except RefusedError as error:
        return None, f"environment: {prefix} is active in this shell and NOT used: {error.what} ({error.fix})"


def active_in_shell() -> str:
    """The directory of the environment whose ``python3`` this shell's PATH finds first; empty where it is none's. By
    its files alone: nothing is started.
    """
    python = process.find("python3")
    root = python.absolute().parent.parent if python is not None else None
    if root is None or not ((root / "pyvenv.cfg").is_file() or (root / "conda-meta").is_dir()):
        return ""
    return str(root)


def environment_of_directory(root: Path) -> Environment | None:
    """The virtual or conda environment of a directory; None where there is none.

    Raises:
        RefusedError: it is a conda environment, and conda itself is not found. RunnerError: its Python does not answer.
    """
    python = root / "bin/python3"
    if not os.access(python, os.X_OK):
        return None
    if root.stat().st_uid == os.geteuid():  # a colleague's is as it is named
        _check_base(root)
    prefix, version = _answer(python)
    return _of(root, version) if os.path.realpath(prefix) == os.path.realpath(root) else None


def _check_base(root: Path) -> None:
    """Raises RefusedError: its Python, or that by which it was made, may be another user's by now."""
    home = b""
    with suppress(OSError):
        home = files.read_bytes(root / "pyvenv.cfg", _HISTORY_BYTES)
    made_by = [Path(os.fsdecode(each)) for each in _HOME.findall(home)]
    for python in (root / "bin/python3", *made_by):
        if ownership.may_be_strangers(python):
            whose, way_out = ownership.of_file(python)
            what = f"it leads to where all may write, to what may be another user's by now{whose}"
            fix = f"make the environment anew, in a place of your own and by a Python of your own; {way_out}"
            raise RefusedError(what, where=str(python), fix=fix)


def fault(root: Path) -> str:
    """Why what is in a directory is no environment that works; empty where there is no directory."""
    if not root.is_dir():
        return "it is no directory" if root.exists() else ""
    if not (root / "pyvenv.cfg").is_file() and not (root / "conda-meta").is_dir():
        return "it is no virtual environment (no pyvenv.cfg in it) and no conda environment (no conda-meta)"
    python = root / "bin/python3"
    if python.is_symlink() and not python.exists():
        return f"its bin/python3 leads to {os.path.realpath(python)}, which is not there"
    if not os.access(python, os.X_OK):
        return "it has no bin/python3 that can be started"
    if (root / "pyvenv.cfg").is_file() and not (root / "bin/activate").is_file():
        return "it has no bin/activate"
    return "its bin/python3 says that it is of another environment"


def _answer(python: Path) -> tuple[str, str]:
    """Its prefix and version: the last line, as what starts a Python may print a banner before."""
    said = process.run((python, "-I", "-c", _ASK), timeout_s=_ASK_S).out
    try:
        prefix, version = msgspec.json.decode(said.strip().rpartition("\n")[2], type=tuple[str, str])
    except (ValueError, msgspec.MsgspecError):
        again = shlex.join((str(python), "-I", "-c", _ASK))
        fix = f"its last line must be its prefix and version, as JSON; see what this prints: {again}"
        what = "this python3 does not say which environment it is of"
        raise RefusedError(what, where=str(python), fix=fix) from None
    return prefix, version


def _of(prefix: Path, version: str) -> Environment | None:
    kind: EnvironmentKind
    if (prefix / "pyvenv.cfg").is_file() and (prefix / "bin/activate").is_file():
        kind, setup = "virtualenv", Setup(activate=Activate(virtualenv=str(prefix)))
    elif (prefix / "conda-meta").is_dir():
        kind, setup = "conda", Setup(conda=str(_conda(prefix)), activate=Activate(conda=str(prefix)))
    else:
        return None
    return Environment(str(prefix), kind, "", str(prefix), "", setup, ImageFacts(), python=version)


def _makers(prefix: Path) -> tuple[Path, ...]:
    """The installations whose commands the environment's history names (seen with conda 26.7)."""
    try:
        history = files.read_bytes(prefix / "conda-meta/history", _HISTORY_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ()
    return tuple(Path(place) for place in dict.fromkeys(_MAKER.findall(history)))


def _conda(prefix: Path) -> Path:
    """The installation of conda that can activate ``prefix``: the shell's, the one that it lies in, or that made it.
    One that the user did not name counts only where no other user could exchange it, and one of the shell where none
    could have put it there.
    """
    shell = os.environ.get("CONDA_EXE") or str(process.find("conda") or "")
    named = [Path(shell).parents[1]] if shell.count("/") >= 2 else []
    around = [prefix.parent.parent] if prefix.parent.name == "envs" else []
    fix = f"set CONDA_EXE to the bin/conda of an installation with {_CONDA_SH}"
    for place in dict.fromkeys((*named, prefix, *around, *_makers(prefix))):
        if not (its := place / _CONDA_SH).is_file():
            continue
        is_named = place in (*named, prefix)
        if not (ownership.may_be_strangers(its) if is_named else ownership.exchangeable_by(its)):
            return place
        fix += f"; of {place} {ownership.of_file(its)[1]}"
    raise RefusedError(f"no conda that activates {prefix} is found", where=str(prefix), fix=fix)


RECORD = "environment.json"
SCRIPT, LOG = "create.sh", "create.log"
IN_HOME = "environment-in-home"  # what --force takes
# Characters that need no quoting: activation scripts of virtual environments quote nothing before Python 3.13, and no
# kernel accepts a blank in a script's first line (PEP 405, execve(2)).
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_OURS = frozenset((RECORD, SCRIPT, "lock", "building"))


def user_directory(scratch: str) -> Path:
    """The directory of one user's environments at a site.

    Raises:
        RefusedError: the user's scratch directory is unknown.
    """
    if not scratch:
        fix = "--scratch DIR, `scratch:` in ~/.config/gpu-runner/config.yaml, or the environment's own directory"
        what = "environments lie on scratch, and your scratch directory is unknown"
        raise RefusedError(what, where="scratch", fix=fix)
    return Path(scratch).absolute() / "gpu-runner" / "environments"


def check_own(place: Path, fix: str = "name another directory") -> None:
    """Refuse a directory, which is there, in which another user could exchange what is made, or run. Raises OSError."""
    if whose := ownership.exchangeable_by(place):
        fix = f"{fix}; {ownership.way_out(place, whose)}"
        raise RefusedError(f"{place.name} is {whose}: what is there runs as you", where=str(place), fix=fix)


# A variable with one value, but for those that hold programs in any case; and by whose name it is of data: of another
# one, such as OPENSSL_CONF or UCX_MODULE_DIR, a program may load code.
_VARIABLE = re.compile(
    r"(?!(BASH_ENV|MODULEPATH|PATH|LD_LIBRARY_PATH|LD_PRELOAD|LD_AUDIT|ENV|NCCL_\w+_PLUGIN|PERL5LIB|R_LIBS\w*|IPYTHONDIR"
    r"|JUPYTER_\w+|PYTHON(?!PYCACHEPREFIX=)\w+)=)[A-Za-z_][A-Za-z0-9_]*=[^\s;&|]*\Z",
    re.ASCII,
)
_OF_DATA = re.compile(
    r"(\w*_)?(CHECKPOINTS?|CKPT|CORPUS|DATA[A-Z]*|LOGS?|MODELS?|OUT(PUTS?)?|RESULTS?|SCRATCH|WEIGHTS?|WORK(DIR)?)(_\w*)?=",
    re.I,
)
# One of those in which programs look for code of their own, and which they make.
_OF_CODE = re.compile(
    r"(HF_HOME|HF_MODULES_CACHE|KERAS_HOME|TFHUB_CACHE_DIR|TORCH_HOME|TORCH_EXTENSIONS_DIR|TORCHINDUCTOR_CACHE_DIR|TRITON_\w+|NUMBA_CACHE_DIR|PYTHONPYCACHEPREFIX|XDG_\w+)=",
    re.ASCII,
)


def _login() -> str:
    """The user's name, as in a directory of each user; empty without one."""
    with suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_name
    return ""


def check_setup(setup: Setup, lines: Iterable[Iterable[str]] = ()) -> tuple[Path, ...]:
    """Refuse what a setup, or ``lines`` of a job's, name and a stranger has put, or could put, into a place where all
    may write, as a scratch: it is sourced. Of variables only what a stranger has put there. Returns what is
    there, but for what variables of one value name. Raises RefusedError.
    """
    places: list[Path] = []
    active = [each for each in (setup.activate.conda, setup.activate.virtualenv) if each]
    named = (setup.conda, *active, *(f"{each}/bin/python3" for each in active), *setup.use, *setup.modules)
    lines, login = (line for line in map(tuple, lines) if line[:1] != ("mkdir",)), _login()
    for word, path in ((each, Path(name)) for each in chain(named, *lines) for name in paths.within(each)):
        is_variable = _VARIABLE.match(word) is not None
        is_code = not is_variable or _OF_CODE.match(word) is not None or login in path.parts
        if _OF_DATA.match(word) and not is_code:
            continue
        places += [path] if not is_variable and path.exists() else []
        is_open = is_code and ownership.is_open(path)
        if is_open or (ownership.is_first_come(path, new=True) if is_variable else ownership.may_be_strangers(path)):
            whose, way_out = ownership.of_file(path, new=is_variable)
            what = f"what is there runs as you, and may be another user's{whose}"
            where, fix = str(path), "name one of your own where it is named, as in the site's setup"
            if is_variable:
                name = word.partition("=")[0]
                where, fix = f"{name}={path}", f"export {name}=DIR, or unset it, or change it in the site's setup"
            raise RefusedError(what, where=where, fix=f"{fix}; {way_out}")
    return tuple(places)


def is_installable(conda: Path) -> bool:
    """Whether conda may be installed there, or anew: not where others could say that one is unfinished, which is
    removed, and then take its name. Raises RefusedError: there is none to be used instead.
    """
    above, whose = conda.parent, ownership.exchangeable_by(conda, new=True)
    if not whose and ownership.is_open(above):
        whose = f"below {above}, which is {ownership.open_to(ownership.status_of(above), above)}"
    if whose and not os.access(conda / "bin/conda", os.X_OK):
        what = f"conda is not installed here: this is {whose}, and what is there runs as you"
        fix = "name a place in a directory of your own (site file: `conda` of `ways: native: setup:`)"
        raise RefusedError(what, where=str(conda), fix=f"{fix}; {ownership.way_out(conda, whose)}")
    return not whose


def beside(root: Path, name: str) -> Path:
    """Where something is kept for all environments beside ``root``; within that where others could put theirs there, or
    have. Raises OSError.
    """
    shared = root.parent / name
    is_there = os.path.lexists(shared)
    with suppress(FileNotFoundError):
        if not is_there and ownership.is_open(root.parent):
            return root / name
    return root / name if ownership.exchangeable_by(shared, new=not is_there) else shared


def directory_of(name: str, at: Path) -> Path:
    """The directory of the environment ``name`` below ``at``; raises UsageError if it cannot be a name."""
    if not PLAIN_NAME.match(name) or name in (".", ".."):
        raise UsageError(f"{name!r} cannot be an environment's name", fix=PLAIN_NAME_FIX)
    return at.absolute() / name


def check_path(root: Path) -> None:
    """Refuse a path with a character that the scripts in an environment would have to quote."""
    if not _PLAIN_PATH.match(str(root)):
        what = "an environment cannot work below this path: its own scripts do not quote it"
        raise UsageError(what, where=repr(str(root)), fix="--at a directory with only letters, digits and _@%+=:,./-")


def read(root: Path) -> Environment | None:
    """The environment there; None if there is none, or it is not finished. Raises UsageError: its record is another
    user's link.
    """
    return _read(Path(os.path.realpath(root)))


def _read(root: Path) -> Environment | None:
    """The same; raises UsageError also where such a link leads to the directory."""
    try:
        environment = msgspec.json.decode(files.read_named(root / RECORD), type=Environment)
    except (OSError, msgspec.DecodeError):
        return None
    whole = not environment.directory or os.access(Path(environment.directory) / "bin/python3", os.X_OK)
    return environment if whole else None


def find(name_or_directory: str, scratch: str, site: str) -> Environment:
    """The environment of a name or directory; of a directory also a virtual or conda environment that the user made.

    Raises:
        RefusedError: it is not there or not finished, or as ``user_directory``. UsageError: as ``directory_of``.
    """
    by_path = "/" in name_or_directory
    root = Path(name_or_directory).absolute() if by_path else directory_of(name_or_directory, user_directory(scratch))
    environment = read(root)
    if not by_path and (environment is not None or root.exists()):  # after it was read: it may come and go
        check_own(root, f"--env-name {root} if you trust its owner")
    if environment is None and by_path and not (root / SCRIPT).exists():
        environment = environment_of_directory(root)
    if environment is None:
        begun = (root / SCRIPT).exists()
        broken = fault(root) if by_path and not begun else ""
        if broken:
            fix = "make it anew, or name another one: --env-name DIR"
            raise RefusedError(f"{root.name} cannot be used: {broken}", where=str(root), fix=fix)
        at = f" --at {root.parent}" if by_path else ""
        raise RefusedError(
            f"the environment {root.name} is {'not finished, or has lost its Python' if begun else 'not there'}",
            where=str(root),
            fix=f"{PROGRAM} env create {root.name} --site {site}{at}",
        )
    return environment


def all_environments(at: Path, *, own: bool = False) -> Iterator[tuple[Path, Environment | None]]:
    """Every environment below a directory, with None for one that is not finished; none that another user's link leads
    to; ``own``: none that ``find`` would refuse by its name. Raises UsageError: such a link leads to the directory.
    """
    files.resolved(at)
    for root in sorted(at.iterdir()) if at.is_dir() else ():
        with suppress(UsageError):
            if root.is_dir() and (root / SCRIPT).exists() and not (own and ownership.exchangeable_by(root)):
                yield root, _read(root)


def is_free(root: Path) -> bool:
    """Whether an environment may be made there: there is nothing yet, or an environment made by this program."""
    return not root.exists() or (root.is_dir() and (not any(root.iterdir()) or any((root / n).exists() for n in _OURS)))


def home_above(directory: Path) -> Path | None:
    """The home directory that holds this one, by its path or with links resolved; None if none does."""
    homes = {Path.home()}
    with suppress(KeyError):  # a user id without a name
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    for home in homes - {Path("/")}:
        for called, above in ((directory, home), (Path(os.path.realpath(directory)), Path(os.path.realpath(home)))):
            if above == called or above in called.parents:
                return home
    return None
