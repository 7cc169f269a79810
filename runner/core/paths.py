"""Where things live: what ships with the package, and what is kept in the user's cache.

``RUNNER_CACHE`` overrides the cache directory (default: ``gpu-runner`` in that of the user, ``~/.cache``). Everything
expensive is kept there, keyed by a hash of its inputs, and all of it may be deleted while no engine or box uses it.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from runner.core import files, ownership
from runner.core.errors import InfrastructureError, RefusedError, UsageError

# https://bford.info/cachedir/: backups pass by a directory that holds this file, and `clean` knows it as ours.
MARKER = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
_OWNER = "# This is the cache directory of gpu-runner; `make clean` empties it."
PATIENCE_S = 5.0
_PACKAGE = Path(__file__).resolve().parents[1]


def cache_dir() -> Path:
    """The cache directory, absolute; not necessarily existing."""
    return _directory("RUNNER_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """What must outlive the cache: the list of runs. ``RUNNER_STATE`` overrides ``~/.local/state/gpu-runner``. Raises
    RefusedError: as ``cache``.
    """
    directory = _directory("RUNNER_STATE", "XDG_STATE_HOME", ".local/state")
    _check_own(directory, os.geteuid(), "the directory of your runs", "RUNNER_STATE")
    return directory


def state(name: str) -> Path:
    """What has that name there; it may not exist yet. Raises RefusedError: as ``cache``; or all may write to it."""
    at = _content(state_dir(), name)
    if ownership.is_open(at):
        raise RefusedError("all may write to this directory of yours", where=str(at), fix=ownership.closing(at))
    return at


def config_file() -> Path:
    """The user's own settings. ``RUNNER_CONFIG`` overrides ``~/.config/gpu-runner/config.yaml``. Raises RefusedError:
    another user has left that there.
    """
    if override := whole("RUNNER_CONFIG"):
        # Who reads it asks again, so that it may come later. Path.exists raises where a directory above is closed.
        return check_settings(Path(override)) if os.path.exists(override) else Path(override)  # noqa: PTH110
    return _content(_directory("", "XDG_CONFIG_HOME", ".config"), "config.yaml")


def config_files() -> tuple[Path, ...]:
    """The user's own settings, and below them the machine's, in ``gpu-runner`` of XDG_CONFIG_DIRS and of /etc. Beside
    each lie sites/ and recipes/. They may not exist. Raises RefusedError: another user could exchange one that
    RUNNER_CONFIG does not name; or the home directory does not answer.
    """
    _check_home(home())
    machine = (*os.environ.get("XDG_CONFIG_DIRS", "").split(":"), "/etc")
    below = (Path(each) / "gpu-runner" / "config.yaml" for each in machine if each.startswith("/"))
    found = tuple(dict.fromkeys((config_file(), *below)))
    others = [each.parent for each in found[bool(os.environ.get("RUNNER_CONFIG")) :]]
    own = _directory("", "XDG_CONFIG_HOME", ".config")
    # pip reads its settings there. Path.is_symlink raises where a directory above is closed.
    if os.environ.get("XDG_CONFIG_HOME") or os.path.islink(own.parent):  # noqa: PTH114
        others.append(own)
    for each in others:
        _check_own(each, os.geteuid(), "the directory of settings", "XDG_CONFIG_HOME, or XDG_CONFIG_DIRS,", make=False)
    return found


def configured(name: str) -> tuple[Path, ...]:
    """What is beside the settings under that name, such as ``sites/*.yaml``, the user's first; nothing of others beside
    a file that RUNNER_CONFIG names. Raises RefusedError: as ``config_files``; another user has left it in the user's
    directory.
    """
    named = config_file() if os.environ.get("RUNNER_CONFIG") else None
    beside = [(each, found) for each in config_files() for found in sorted(each.parent.glob(name))]
    own = _directory("", "XDG_CONFIG_HOME", ".config")
    for each, found in beside:
        if each.parent == own and each != named:
            _content(own, str(found.relative_to(own)))
    return tuple(at for each, at in beside if each != named or not ownership.exchangeable_by(at, used=True))


def site_of_shell() -> str:
    """The site, or its file, that RUNNER_SITE names; empty for none. Raises UsageError: as ``whole``."""
    named = os.environ.get("RUNNER_SITE", "")
    return str(check_settings(Path(whole("RUNNER_SITE")))) if is_site_file(named) else named


def check_settings(file: Path) -> Path:
    """A file that this user has named once for all commands, also by a link. Raises RefusedError: since then it may
    have become another user's, as in a scratch that is emptied, or may before it is read, as one that is closed.
    """
    if ownership.may_be_strangers(file) or any(map(ownership.left_by, (file, file.parent))):
        whose, way_out = ownership.of_file(file)
        what = "these settings are another user's, or may become so, where all may write, or cannot be looked at"
        raise RefusedError(f"{what}{whose}", where=str(file), fix=f"name one of your own; {way_out}")
    return file


def check_bare_name(name: str, place: Path, what: str, option: str, *, used: bool = False) -> None:
    """Refuse what is at the place that a name without a path means, where others can exchange it (``used``: as
    ``exchangeable_by``). Raises UsageError.
    """
    if "/" not in name and (whose := ownership.exchangeable_by(place, used=used)):
        fix = f"./{name} if you trust its owner; {ownership.way_out(place, whose)}"
        raise UsageError(f"{what} is {whose}, and says what runs as you", where=f"{option} {name}", fix=fix)


_PARTS = re.compile(r"[^\s=:,;'\"`&|()<>]+")
_WITHIN = re.compile(f"/{_PARTS.pattern}")


# Variables with the places of programs; without those of the first two a program runs all the same.
CODE = (
    *("PATH", "PYTHONPYCACHEPREFIX", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONHOME"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV"),
)


def within(word: str) -> list[str]:
    """Whole paths in any word: ``--code=/a/b.py``, ``PATH=/a:/b``, ``cd /a && python b.py``."""
    return [each.group() for each in _WITHIN.finditer(word)]


def paths_in(word: str, start: Path) -> list[Path]:
    """What is there of all that a word of a command line may name, whole or from ``start``, also in the middle of a
    shell's line: each as it is written and its real path.
    """
    parts = [word, *_PARTS.findall(word)]
    written = (start / each for each in (*parts, *(re.sub(r"^(-\w|[@!{])", "", part) for part in parts)) if each)
    there = [each for each in written if os.path.lexists(each)]
    return list(dict.fromkeys(each for path in there for each in (path, Path(os.path.realpath(path)))))


_INTERPRETER = re.compile(r"((ba|da|k|z)?sh|python[\d.]*|perl|Rscript|julia|source|\.)\Z")


# Of an interpreter: an option with a value as the next word; and what says that no file of the line is run.
_WITH_VALUE = re.compile(r"-[A-Za-z]*[WXo]\Z")
_NO_FILE = re.compile(r"-\Z|-[A-VYZa-z]*[cm]")


def named_code(program: Sequence[str], start: Path, where: Callable[[Path], bool]) -> Iterator[Path]:
    """What lies ``where``, of all that a command line names, and is run: the program, what an interpreter has for its
    first word behind its options, and files that are code by their names or as they begin. All else is data, which may
    lie anywhere.
    """
    is_next = True
    for before, word in zip(("", *program), program, strict=False):
        is_option = is_next and (word.startswith("-") or _WITH_VALUE.match(before) is not None)
        is_run = (is_next and not is_option) or word.partition("=")[0] in CODE
        yield from (each for each in paths_in(word, start) if where(each) and (is_run or _is_code(each)))
        is_next = _INTERPRETER.match(word.rpartition("/")[2]) is not None or (is_option and not _NO_FILE.match(word))


def _is_code(file: Path) -> bool:
    with suppress(OSError), files.open_regular(file) as opened:
        return file.name.endswith((".py", ".sh")) or opened.read(4).startswith((b"#!", b"\x7fELF"))
    return False


def split_list(variable: str, value: str) -> list[str]:
    """What one of CODE names; ld.so(8) takes blanks and semicolons, too."""
    return re.split("[:; ]" if variable.startswith("LD_") else ":", value)


def for_other_machines(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without what those of CODE name on this machine's own disk: there it may be another user's."""
    others = dict(environment)
    for name in environment.keys() & {*CODE}:
        parts = split_list(name, environment[name])
        if len(shared := [each for each in parts if not files.is_on_own_disk(Path(each))]) < len(parts):
            others[name] = ":".join(shared) or (os.defpath if name == "PATH" else "")
    return others


def are_this_machine(nodes: Iterable[str]) -> bool:
    """Whether this machine is all of these nodes, by their names; False without any."""
    names = {name.partition(".")[0] for name in nodes}
    return bool(names) and names <= {os.uname().nodename.partition(".")[0], "localhost"}


def with_ssh_config(file: str) -> tuple[str, ...]:
    """Options of ssh for this file, which names programs; none for the user's default. Raises as ``check_settings``."""
    return ("-F", str(check_settings(Path(file)))) if file else ()


def whole(variable: str) -> str:
    """The path that a variable holds; empty for none. Raises UsageError: in each working directory it would be another
    one, perhaps another user's.
    """
    path = os.environ.get(variable, "")
    if path.startswith("~"):
        return str(expanded(path))
    if path and not path.startswith("/"):
        what = f"{variable} names a path from where a command is called, which may be another user's directory"
        raise UsageError(what, where=path, fix=f"export {variable}={shlex.quote(str(Path(path).absolute()))}")
    return path


def is_site_file(name_or_path: str) -> bool:
    """Whether it stands for a site's file, and is no site's name."""
    return "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))


def _directory(override: str, variable: str, otherwise: str) -> Path:
    """Our directory in one of the user's, by the XDG Base Directory Specification: a relative path does not count."""
    named = os.environ.get(variable, "")
    if override and (given := whole(override)):
        return Path(given)
    return (Path(named) if named.startswith("/") else home() / otherwise) / "gpu-runner"


def expanded(text: str) -> Path:
    """The absolute path for what a user wrote, with ``~`` and ``~NAME`` replaced. Raises UsageError: there is no user
    of that name here.
    """
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{text}: no home directory of that name is known here", where=text) from error


# Our directories in the cache directory: `clean` removes them, and nothing else.
CACHES = frozenset(
    (
        "blobs", "box-roots", "boxes", "builds", "engine", "images", "locks", "matplotlib", "mount", "remote",
        "standin", "steps", "test-tools", "wheels",
    )
)  # fmt: skip


def cache(name: str) -> Path:
    """The directory of that name in the cache directory; it may not exist yet. Raises RefusedError: others may write to
    the cache directory, or exchange it, or another user has left that there.
    """
    assert name in CACHES, name
    directory = cache_dir()
    _check_cache(directory)
    return _content(directory, name)


def _content(own: Path, name: str) -> Path:
    """A path below a directory of this user's. Raises RefusedError: another one has left it, or a directory on the way,
    there before that was closed, as ``_check_found`` asks.
    """
    _check_content(own, name, os.geteuid())
    return own / name


@lru_cache
def _check_content(own: Path, name: str, _user: int) -> None:
    for at in reversed((own / name, *(own / name).parents[: len(Path(name).parts) - 1])):
        if whose := ownership.left_by(at):
            what = f"this is {whose}, who could put it into your directory, as that was open to others"
            fix = f"give it another name: mv {shlex.quote(str(at))} {shlex.quote(f'{at}.not-mine')}"
            raise RefusedError(what, where=str(at), fix=f"{fix}; {ownership.way_out(at, whose)}")


def check_output(path: Path, *, new: bool = False) -> None:
    """Raises UsageError: another user could exchange the file that this user has named to be written, or its directory;
    ``new``: it may not be there.
    """
    with suppress(OSError):  # who writes it will say what is wrong
        if whose := ownership.exchangeable_by(path, new=new):
            what = f"this file is {whose}: another user could exchange it, or lead it elsewhere"
            fix = f"name a file in a directory of your own; {ownership.way_out(path, whose)}"
            raise UsageError(what, where=str(path), fix=fix)


def write_output(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write a file that this user has named, in a directory that is there; ``mode``: as ``files.write``. Raises
    UsageError, as ``check_output``; InfrastructureError: it cannot be written.
    """
    check_output(path, new=True)
    try:
        path.parent.stat()
        check_output(path.parent)  # from here on no other one takes its place
        files.write(path, content, mode=mode)
    except OSError as error:
        raise InfrastructureError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _check_cache(directory: Path) -> None:
    _check_own(directory, os.geteuid(), "the cache directory", "RUNNER_CACHE")


def _check_own(directory: Path, user: int, what: str, variable: str, *, make: bool = True) -> None:
    """Once a process where it is there; ``make`` it where another user could else make it. Raises RefusedError: others
    may write to it, or exchange it.
    """
    # Path.exists raises where a directory above is closed.
    if not (is_there := os.path.exists(directory)):  # noqa: PTH110
        _check_found.__wrapped__(directory, user, what, variable, new=True)
        if is_there := make and ownership.may_be_strangers(directory):
            with suppress(OSError):  # as above
                files.make_closed(directory)
    if is_there:
        _check_found(directory, user, what, variable)


@lru_cache
def _check_found(directory: Path, _user: int, what: str, variable: str, *, new: bool = False) -> None:
    whose = ""
    with suppress(OSError):  # who uses it will say what is wrong
        whose = ownership.exchangeable_by(directory, new=new)
        if not whose and ownership.is_open(directory):
            whose = ownership.open_to(ownership.status_of(directory), directory)
    if whose:
        fix = f"set {variable} to one of your own; {ownership.way_out(directory, whose, put=True)}"
        raise RefusedError(f"{what} is {whose}: what is there could be another user's", where=str(directory), fix=fix)


def caches_ignored() -> bool:
    """Whether COLD=1 asks for everything to be made anew: caches are filled but never read."""
    return os.environ.get("COLD", "") not in ("", "0")


def ensure_directory(directory: Path) -> Path:
    """``directory``, created where it is absent; the cache directory above it is closed to others where it is made
    here, and marked as ours.

    A RUNNER_CACHE directory that already held something else is not marked: it belongs to another program.
    """
    above = cache_dir()
    if directory == above or above in directory.parents:
        files.make_closed(above)
        _check_cache(above)
        if not _is_marked(above) and (is_ours(above) or not any(above.iterdir())):
            (above / MARKER).write_text(f"{_SIGNATURE}\n{_OWNER}\n")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def is_ours(directory: Path) -> bool:
    """Whether this cache directory may be emptied: the platform's, which has our name, or one that we marked."""
    return not os.environ.get("RUNNER_CACHE") or _is_marked(directory)


def _is_marked(directory: Path) -> bool:
    try:
        return (directory / MARKER).read_text("utf-8", "replace").splitlines()[:2] == [_SIGNATURE, _OWNER]
    except OSError:
        return False


def home() -> Path:
    """The user's home directory; the root for a user id without one."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def refuse_silent(places: Iterable[str | Path], patience_s: float = PATIENCE_S) -> None:
    """Look at all paths at once and return when each has answered, even if only that nothing is there.

    A path on a dead server may never answer: the thread that waits for it ends with this process. Raises RefusedError:
    one has not answered within ``patience_s`` seconds in all.
    """

    def look(path: str, answered: threading.Event) -> None:
        with suppress(OSError, ValueError):
            Path(path).stat()
        answered.set()

    events = {str(path): threading.Event() for path in places}
    for path, answered in events.items():
        threading.Thread(target=look, args=(path, answered), daemon=True).start()
    deadline = time.monotonic() + patience_s
    for path, answered in events.items():
        if not answered.wait(max(0.0, deadline - time.monotonic())):
            what = f"the file system of {path} has not answered for {patience_s:g} s"
            fix = "wait until it does (`df`), or name another directory"
            raise RefusedError(what, where=path, fix=fix)


@lru_cache
def _check_home(home: Path) -> None:
    refuse_silent((home,))


def share(name: str) -> Path:
    """The shipped directory ``name`` (``containers``, ``recipes`` or ``docs``), from the checkout or from the wheel."""
    bundled = _PACKAGE / "_share" / name
    return bundled if bundled.is_dir() else _PACKAGE.parent / name


def source_root() -> Path | None:
    """The checkout that this package runs from; None when it runs from an installed wheel."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "containers").is_dir() else None


def repository_root() -> Path | None:
    """The same, where it is a git repository itself: one in a directory above it may be another user's."""
    root = source_root()
    return root if root is not None and (root / ".git").exists() else None
