"""What a program ran with: its variables, its processors, the files that it read. It tells launches of one program from
those of another; values and contents are digests.
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections import defaultdict
from contextlib import suppress
from io import FileIO
from typing import Any, Collection, Iterator, Mapping, Tuple

from gpu_runner_inside.launcher import environment

# Where, when (in ns) and with which variables a process began: what it sets itself follows from its code.
Base = Tuple[str, int, Mapping[str, str]]
State = Tuple[int, ...]  # of a file: size in bytes, time of change in ns; of one that was read its inode, too
Read = Mapping[str, State]  # by path

_LEFT = "ran-"  # and the number of the process
_MOST_BYTES = 1 << 20  # what is larger is data; of modules, which may be compiled:
_MOST_OF_A_MODULE = 1 << 26
_OF_AN_END = 1 << 16
_EDITED = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env", ".json")  # by a user, where Python wrote none
_MOST_READ = 2000  # files; more are data
_MOST_LARGE = 100  # of these, the newest: was one made by another launch?
_FEW = 200  # modules of a package that are read, as they may be made anew for each job
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
_SYSTEM = re.compile(r"/(proc|sys|run|etc)/|/dev/(?!shm/)|/usr/(?!local/share/|src/)")
# What else is no program's own: ours, git's, and what compilers keep.
_PASSING = re.compile(
    r".*/gpu_runner_inside/|.*/runner_meter\.py\Z|.*\.pyc\Z"
    r"|.*/(__pycache__|\.git|\.cache(?!/huggingface/(accelerate|modules)/)|\.triton|\.nv|torchinductor_[^/]*)/"
)
# A number of something, such as tokens or key points, and no secret; or another word that only sounds like one.
_NO_SECRET = re.compile(
    r"(\w*TOKENS\w*|TOKEN_\w+|(N|NUM|MAX|MIN)_\w+|\w+_(BATCH|COUNT|DEPTH|DIM|HEADS|LAYERS|LEN|LENGTH|SIZE))"
    r"=(\d[\d.eE+]{0,8}[kKmMbB]?|true|false)|(\w*TOKENIZERS?(_\w+)?|PASSES|BYPASS\w*|KEYPOINTS?(_\w+)?|\w+_(PASSES|KEYPOINTS))=.*",
    re.IGNORECASE | re.DOTALL,
)
_DAYS = 7
_RANDOM = r"(?<=/)tmp[._]?\w{6,12}(?=[/\0]|\Z)|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of mktemp, uuidgen
_OF_A_NODE = r"gpu-runner-(\d+(\+\w+)?/[^/]*\+|cache-|tmp-)[^/]*"  # launcher.caches; a short job number is not masked
# Among arguments.
_NAME = (
    r"(?<=[-_.+\0])(?i:(wandb|run|exp(eriment)?|job)[-_.](name|id|dir|group)|(out(put)?|log(ging)?|save)[-_.]?dir)"
    r"[=\0][^\0\s]*"
)
_CHOSEN = rf"(?<=[-_.\0](?i:port|seed))[=\0]\d+|{_NAME}"
_TIME = r"20\d\d[-_.]?[01]\d[-_.]?[0-3]\d[-_T ]?[0-2]\d[-_:.]?[0-5]\d([-_:.]?[0-5]\d)?|1[6-9]\d{8}"
_DATE = "%Y[-_./]?%m[-_./]?%d|%d[-_.]?%m[-_.]?%Y"
_SHORT_DATE = "%y[-_.]?%m[-_.]?%d|%m[-_.]?%d|%b[-_.]?%d|%d[-_.]?%b"  # as TensorBoard's, Nov27_18-40-00
_CLOCK = r"[-_.T/][0-2]\d[-_.:]?[0-5]\d([-_.:]?[0-5]\d)?"
_CACHE = re.compile(r".*CACHE|(HF|TORCH|KERAS)_HOME\Z|MPLCONFIGDIR\Z")
_PLACES = ("RUNNER_RUN_DIR", "RUNNER_WORLDS", "TMPDIR", "HOSTNAME", "RUNNER_HOST", "SLURMD_NODENAME")


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Name -> digest of its value without times and what is the job's own: number, directories, hosts. Of a name that
    may be a secret's nothing.
    """
    masked = own_to_a_job(env)
    return {
        name: "" if _is_secret(name, value) else _digest(os.fsencode(masked.sub("#", value)))
        for name, value in sorted(env.items())
    }


def own_to_a_job(env: Mapping[str, str]) -> re.Pattern[str]:
    """What each job has of its own."""
    job = env.get("RUNNER_JOB_ID") or env.get("SLURM_JOB_ID") or env.get("PBS_JOBID")
    own = {*(env.get(name, "") for name in _PLACES), os.path.basename(env.get("RUNNER_RUN_DIR", ""))}
    parts = [re.escape(each) for each in sorted(own, key=len, reverse=True) if len(each) > 1]
    parts += [rf"(?<!\d){re.escape(job)}(?!\d)"] if job and len(job) > 3 else []  # a short one may be a batch
    days = [time.localtime(time.time() + 86400 * day) for day in range(-_DAYS, 2)]  # a study may take some
    whole, short = ("|".join(time.strftime(form, day) for day in days) for form in (_DATE, _SHORT_DATE))
    parts += [rf"(?<!\d)(({whole})({_CLOCK})?|({short}){_CLOCK})(?!\d)"]
    return re.compile("|".join((_OF_A_NODE, _TIME, *parts, _RANDOM, _CHOSEN)))


def _is_secret(name: str, value: str) -> bool:
    return environment.may_be_secret(name) and not _NO_SECRET.fullmatch(f"{name}={value}")


def leave(directory: str, base: Base, read: Read, written: Collection[str], *, measured: bool) -> None:
    """Leave for the launcher what this process ran with. ``measured``: the figure is its.

    Raises:
        OSError: it cannot be written.
    """
    env, place = os.environ, os.path.join(directory, f"{_LEFT}{os.getpid()}")
    made: dict[str, Any] = {} if measured else _read(place)
    is_first = {env.get("RUNNER_RANK", "0"), env.get("RANK", "0")} == {"0"}
    places = (os.path.join(base[0], value, "") for name, value in env.items() if value and _CACHE.match(name))
    caches = tuple(each for each in (*places, f"{directory}/") if not f"{base[0]}/".startswith(each))
    names = _Names(base[0], env.get("RUNNER_RUN_DIR", ""), caches, own_to_a_job(env))
    if not made.get("measured"):  # else it has gone on, and may have written more
        own = variables({**base[2], "sys.argv": "\0".join(sys.argv), "nice": str(os.nice(0)), "python": sys.version})
        made = {"measured": measured, "variables": own, "cpus": len(os.sched_getaffinity(0))}
        if is_first:
            made["modules"], made["installed"] = _modules(names, base[1], written, read)
            states = {**_main(base[1]), **read}
            found = [(path, name, state) for path, state in states.items() for name in [names.of(path)] if name]
            small = [each for each in found if each[2][0] <= _MOST_BYTES][:_MOST_READ]
            made["read"] = {path: [name, _content(path, state), state[1]] for path, name, state in small}
            large = sorted((state[1], path, name) for path, name, state in found if state[0] > _MOST_BYTES)[
                -_MOST_LARGE:
            ]
            made["read"].update((path, [name, "", changed_ns]) for changed_ns, path, name in large)
    if is_first:
        made["written"] = list(filter(None, map(names.of, set(written))))
    with open(f"{place}.tmp", "w") as file:
        json.dump(made, file)
    os.replace(f"{place}.tmp", place)


def leave_measured() -> None:
    """As ``leave``, of a process that has a figure; without files where another sitecustomize came before ours."""
    with suppress(Exception):
        own = getattr(builtins.open, "runner_leave", None)
        if own is not None:
            own(measured=True)
        else:
            leave(os.environ["RUNNER_WORLDS"], (os.getcwd(), time.time_ns(), os.environ), {}, (), measured=True)


def collected(directory: str | None, given: Mapping[str, str]) -> dict[str, Any]:
    """What the program's processes left, for the exit record (schema.json): files of all, else what the one with the
    figure had. ``given``: as of ``variables``, what the program was started with.
    """
    made: dict[str, Any] = {"given": given, "variables": {}, "cpus": len(os.sched_getaffinity(0))}
    made.update(read={}, written=[], modules={}, installed={})
    names = os.listdir(directory) if directory is not None and os.path.isdir(directory) else []
    every = [_read(os.path.join(directory or "", name)) for name in names if name.startswith(_LEFT)]
    has_figure = any(each.get("measured") for each in every)
    for each in every:
        if each.get("measured") or len(every) == 1:
            own = each.get("variables", {})  # a full disk may have cut it off
            made["variables"] = {name: own.get(name) for name in {*own, *given} if own.get(name) != given.get(name)}
            made["cpus"] = each.get("cpus", made["cpus"])
        for path, (name, digest, changed_ns) in each.get("read", {}).items():
            made["read"].setdefault(name, [digest, changed_ns / 1e9])
            if _changed_ns(path) != changed_ns and name not in each.get("modules", ()) and not name.endswith(_EDITED):
                made["written"].append(name)
        if each.get("measured") or not has_figure:
            for kind in ("modules", "installed"):
                made[kind].update(each.get(kind, {}))
        made["written"] += each.get("written", [])
    made["written"] = sorted({*made["written"]})
    return made


class _Names:
    """Names of files: below the place where the program began, or below its run directory; else their paths."""

    def __init__(self, base: str, run_dir: str, caches: tuple[str, ...], own: re.Pattern[str]) -> None:
        self.base, self._run_dir, self._caches, self._own = base + "/", run_dir.rstrip("/") + "/", caches, own

    def of(self, path: str) -> str:
        """Empty for what is no program's own."""
        if self._run_dir != "/" and path.startswith(self._run_dir):
            name = path[len(self._run_dir) :]
            return name if name.startswith(("code/", "recipe/")) else ""
        below = path[len(self.base) :] if path.startswith(self.base) else ""
        if _PASSING.match(f"/{below}" if below else path) or path.startswith(self._caches):
            return ""
        if not below and _SYSTEM.match(path):
            return ""
        if found := _INSTALLED.match(path):  # what packages they are, their modules tell
            return "" if path.endswith(".py") or "-info/" in path else path[found.end() :]
        return self._own.sub("#", below or path)


def _main(began_ns: int) -> Read:
    """The program itself, which is opened before anything is watched; empty where it was changed since."""
    loader = getattr(sys.modules.get("__main__"), "__loader__", None)
    path = str(getattr(loader, "path", ""))  # at the end it has no __file__
    with suppress(OSError):
        status = os.stat(path)
        if status.st_mtime_ns < began_ns and not path.startswith(f"{sys.prefix}/"):  # no torchrun
            return {os.path.abspath(path): (status.st_size, status.st_mtime_ns)}
    return {}


def _modules(
    names: _Names, began_ns: int, written: Collection[str], read: Read
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Own modules by their contents, and those of installed packages by package and digests of names; of large ones, as
    there are thousands, by size and time of change. Of an own one that was changed since it was imported, only its
    state is left; where that is not known (``read``), since the process began.
    """
    own: dict[str, str] = {}
    packages: defaultdict[str, dict[str, tuple[str, State]]] = defaultdict(dict)
    for module in list(sys.modules.values()):
        of_module = getattr(module, "__dict__", {})
        path = getattr(of_module.get("__loader__"), "archive", None) or of_module.get(
            "__file__"
        )  # of a zip file, or it
        if not isinstance(path, str) or (
            path.startswith(os.path.dirname(os.__file__) + "/") and "-packages/" not in path
        ):
            continue
        path = os.path.abspath(path)
        with suppress(OSError):
            status = os.stat(path)
            state: State = (status.st_size, status.st_mtime_ns)
            if found := _INSTALLED.match(path):
                name = path[found.end() :]
                packages[name.partition("/")[0]][_digest(os.fsencode(name))] = path, state
            elif name := names.of(path):
                imported = read.get(path, state if state[1] < began_ns or path in written else (0, 0))
                own[name] = _content(path, imported, _MOST_OF_A_MODULE)
    known = {path for each in packages.values() for path, _ in each.values()}
    installed = {
        package: {name: _mark(path, state, began_ns, len(each)) for name, (path, state) in each.items()}
        for package, each in packages.items()
    }
    installed[_EVERY_PACKAGE] = _installed_names(began_ns)
    for path, state in _libraries(known):
        found = _INSTALLED.match(path)
        if found or path.startswith(f"{sys.prefix}/lib/"):  # of pip, of conda
            folder, name = os.path.split(path[found.end() :]) if found else ("lib", os.path.basename(path))
            installed.setdefault(folder, {})[name] = _ends(path) if state[1] < began_ns else _changed(state)
        elif path.startswith(f"{sys.base_prefix}/lib/"):  # Python's own, whose version is recorded
            continue
        elif state[1] < began_ns and (name := names.of(path)):  # else compiled meanwhile
            own[name] = _content(path, state, _MOST_OF_A_MODULE) if path.startswith(names.base) else _ends(path)
    return own, installed


_EVERY_PACKAGE = "*"  # stands for no package, but for the names of all that are installed


def _installed_names(began_ns: int) -> dict[str, str]:
    """Digests of the names in each place of packages: one that is imported where it is installed may not be there."""
    made: dict[str, str] = {}
    for at, place in enumerate(each for each in dict.fromkeys(sys.path) if _INSTALLED.match(f"{each}/")):
        with suppress(OSError):
            status = os.stat(place)
            names = sorted(name for name in os.listdir(place) if name != "__pycache__")
            is_whole = status.st_mtime_ns < began_ns
            made[str(at)] = _digest(os.fsencode("\0".join(names))) if is_whole else _changed((0, status.st_mtime_ns))
    return made


def _mark(path: str, state: State, began_ns: int, modules: int) -> str:
    """What stands for a module of a package that has so many: what was imported, as far as that is still there."""
    if state[1] >= began_ns:
        return _changed(state)
    if modules > _FEW:
        return f"{state[0]} {_state(state)}"
    return _content(path, state) if state[0] <= _MOST_BYTES else _ends(path)


def _changed(state: State) -> str:
    """Of what was changed since the process began: it may be another than what was imported, and is equal to none."""
    return f"changed {_digest(str((state, time.time_ns(), os.getpid())).encode())}"


def _libraries(known: Collection[str]) -> Iterator[tuple[str, State]]:
    """Paths and states of the compiled libraries of this process that are no modules (``known``), such as NCCL's."""
    lines: list[bytes] = []
    with suppress(OSError), FileIO("/proc/self/maps") as file:
        lines = file.readall().splitlines()
    for path in sorted({os.fsdecode(line.split(None, 5)[5]) for line in lines if b".so" in line}):
        with suppress(OSError):
            status = os.stat(path)
            if path not in known:
                yield path, (status.st_size, status.st_mtime_ns)


def _content(path: str, state: State, most: int = _MOST_BYTES) -> str:
    """Digest of a file's content; of what is large, or another one by now, of this state."""
    with suppress(OSError), regular(path) as file:
        now = os.fstat(file.fileno())
        if state[0] <= most and (now.st_size, now.st_mtime_ns, now.st_ino)[: len(state)] == state:
            content = file.read(state[0])
            return ("" if b"\0" in content[:8192] else "text ") + _digest(content, 16)
    return _state(state)


def regular(path: str) -> FileIO:
    """The file, which is not watched: another user's could be a pipe by now. Raises OSError: it is none."""
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)


def _ends(path: str) -> str:
    """Of what is compiled: its size, its begin, where a linker leaves the build's number, and its end."""
    with suppress(OSError), regular(path) as file:
        begin, size = file.read(_OF_AN_END), file.seek(0, os.SEEK_END)
        file.seek(max(size - _OF_AN_END, 0))
        return _digest(b"%d " % size + begin + file.read(_OF_AN_END), 16)
    return ""


def _state(state: State) -> str:
    return f"state {_digest(str(state[:2]).encode())}"


def _changed_ns(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _digest(content: bytes, length: int = 8) -> str:
    return hashlib.sha256(content).hexdigest()[:length]


def _read(place: str) -> dict[str, Any]:
    try:
        with open(place, "rb") as file:
            made = json.load(file)
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) else {}
