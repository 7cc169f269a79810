"""Caches of a job on one node: a directory of the user's and the job's own, made safely and removed at the end.

Nodes are shared, and often containers see the host's /tmp: a fixed path there could be another user's, or a link. All
is in the user's ``gpu-runner-UID``, closed to others, which no job removes: processes outlive jobs, and in /tmp itself
any user could take the names that are free by then, and put there what those load. In it all ranks of a node share
``NODE+JOB``. Each launcher holds a shared flock(2) on it, and the last one removes it; what a killed job has left is
removed by the user's next one on that node. The node is in the name because TMPDIR may lie on a file system that nodes
share, where each of them may see its own locks only (Lustre's localflock, BeeGFS's default): another node's directory
is never touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from typing import Iterable, Iterator, Mapping

from gpu_runner_inside.launcher import places

# Of compilers: many ranks write them at once, which home directories on network file systems do not stand. CUTLASS's
# else is in /tmp/USER, which another user may have made.
ALWAYS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cutlass",
}
# Where torch leaves what its ranks were at when NCCL timed out: older versions else write /tmp/nccl_trace_rank_N, which
# another user may have made, or have led elsewhere. The second name is that of newer ones, which know both.
TRACES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
# Of all programs that ask for a directory for temporary files, and have code there by a fixed name (torch: inductor,
# quack; TensorFlow Hub). It lies beside the directory of caches: its name is short, as those of sockets have at most
# 107 bytes, of which Ray needs 65 below it.
TEMPORARY = {"TMPDIR": "tmp"}
# Keras else has its settings, models and data sets in /tmp/.keras where it may not write to the home directory; its
# older kind, tf_keras, has data sets there also where there is no ~/.keras, whatever KERAS_HOME says.
# W&B looks in /tmp/.config/wandb then for the host that its key is sent to.
UNWRITABLE = {"KERAS_HOME": "home/.keras", "WANDB_CONFIG_DIR": "wandb"}
# Of all other programs, where the home directory is not there. HF and torch.hub keep theirs below XDG_CACHE_HOME.
HOME = {"XDG_CACHE_HOME": "", "MPLCONFIGDIR": "matplotlib", **UNWRITABLE}
# Replaced only where they name a directory that is not there, as a login shell's in a container without the home, or
# another user's, as a name in this node's /tmp may be.
PLACED = {
    "HF_HOME": "huggingface",
    "HF_HUB_CACHE": "huggingface/hub",
    "HF_DATASETS_CACHE": "huggingface/datasets",
    "TORCH_HOME": "torch",
    "TFHUB_CACHE_DIR": "tfhub",
    "NUMBA_CACHE_DIR": "numba",
}
# Replaced only where another user's, or all may write to it, and never set.
CODE = {
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "HF_MODULES_CACHE": "huggingface/modules",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "PYTHONPYCACHEPREFIX": "pycache",
}
# Replaced also where all may write: code comes from these. A team's directory of models and data is used.
OF_CODE = (*ALWAYS, *CODE, "NUMBA_CACHE_DIR", "TFHUB_CACHE_DIR", "MPLCONFIGDIR")
_OF_A_JOB = re.compile(r"/gpu-runner-(?:\d+(?:\+\w+)?/[^/]*\+|cache-|tmp-)")  # the last two: of earlier versions
_BASES = ("/tmp", "/var/tmp")  # after TMPDIR


class Caches:
    """The directory of this rank's caches, from ``prepare`` to ``leave``.

    Attributes:
        path: the directory. variables: those that were not set, and now lie in it; of_others: those of them that were,
            and led to what another user may have put there.
    """

    def __init__(self, path: str, *handles: int) -> None:
        self.path = path
        self.variables: dict[str, str] = {}
        self.of_others: tuple[str, ...] = ()
        self._handles = handles

    def place(self, below: str) -> str:
        """Where that is of which a variable names ``below``, a value of the tables above."""
        return _temporary(self.path) if below == TEMPORARY["TMPDIR"] else os.path.join(self.path, below).rstrip("/")

    def leave(self) -> None:
        """Remove the directory, unless another rank of the node still uses it."""
        _remove_unused(self.path, self._handles[0])
        for handle in self._handles:
            os.close(handle)


def apart(env: Mapping[str, str], run_dir: str | None) -> dict[str, str]:
    """The variable that keeps torch's traces from /tmp; none that is set."""
    if run_dir is None or not env.keys().isdisjoint(TRACES):
        return {}
    return {TRACES[0]: os.path.join(run_dir, "nccl", "trace_rank_")}


def prepare(
    env: Mapping[str, str], node: str, job: str, run_dir: str | None = None, *, home: bool, image: bool = False
) -> Caches | None:
    """The caches of this rank; None where every variable is set, or no directory can be made. TMPDIR is set as it is
    where no other user may write to it; else it is in theirs. What another job's launcher has set counts as not set.

    Args:
        node, job: parts of the directory's name. run_dir: where it is, if in no place of the node one can be made.
        home: the program sees the user's home directory and may use it. image: it is in an image's container.
    """
    given = {name: value for name, value in env.items() if value and not _OF_A_JOB.search(value)}
    own_home = os.path.expanduser("~")
    is_open = os.path.isdir(own_home) and os.stat(own_home).st_mode & 0o002 != 0  # others may have put what is there
    is_writable = os.access(own_home, os.W_OK) and not is_open
    wanted = {**ALWAYS, **(HOME if not home else {} if is_writable else UNWRITABLE)}
    missing = {name: below for name, below in wanted.items() if name not in given}
    temporary = given.get("TMPDIR", "")
    real = os.path.realpath(temporary) if temporary.startswith("/") else ""
    is_kept = places.is_closed(real) and _has_room(real)
    missing.update({} if is_kept else TEMPORARY)
    placed = {**HOME, **PLACED}
    named = {name: below for name, below in {**ALWAYS, **placed, **CODE}.items() if name in given}
    others = {
        name: below
        for name, below in named.items()
        if places.is_others(given[name], image=image) or (name in OF_CODE and places.is_open(given[name], image=image))
    }
    for name, below in placed.items():
        if (env.get(name) and name not in given) or not (home or _usable(given.get(name, "/"))):
            missing[name] = below
    missing = {**({} if home or is_writable else {"HOME": "home"}), **missing, **others}
    made = directory(env, node, job, run_dir, missing.values()) if missing or (is_kept and real != temporary) else None
    if made is None:
        return None
    made.variables = {name: made.place(below) for name, below in missing.items()}
    if is_kept and real != temporary:  # by its real path: a link may lead elsewhere by then
        made.variables["TMPDIR"] = real
    is_moved = not is_kept and os.path.isdir(temporary) and not made.path.startswith(os.path.join(real, ""))
    made.of_others = (*sorted(others), *(["TMPDIR"] if is_moved else []))
    if not home and is_writable:
        with suppress(OSError):
            os.makedirs(os.path.join(own_home, ".keras"), 0o700, exist_ok=True)
    if "HOME" in missing and not is_open:
        _link_below(own_home, os.path.join(made.path, "home"))
    return made


def _link_below(home: str, place: str) -> None:
    """What the image has in the home directory is seen in ``place``, too."""
    with suppress(OSError):
        for name in os.listdir(home):
            with suppress(OSError):  # another rank was first
                os.symlink(os.path.join(home, name), os.path.join(place, name))


def directory(
    env: Mapping[str, str], node: str, job: str, run_dir: str | None = None, below: Iterable[str] = ()
) -> Caches | None:
    """The directory of the node's ranks alone, others ``below`` it, no variables; in the first place that is not
    full; None where none can be made.
    """
    of_node = f"{_plain(node)}+"
    for base in places.safe_places((_OF_A_JOB.split(env.get("TMPDIR", ""))[0], *_BASES, run_dir or "")):
        if (found := of_user(base)) is None:
            continue
        path = os.path.join(found[0], of_node + _plain(job))
        _sweep(os.path.join(found[0], of_node), path)
        if (handle := _opened(path)) is None:
            os.close(found[1])
            continue
        made = Caches(path, handle, found[1])
        with suppress(OSError):
            for each in below:
                os.makedirs(made.place(each), 0o700, exist_ok=True)
            if _has_room(path):
                return made
        made.leave()
    return None


def of_user(base: str) -> tuple[str, int] | None:
    """The user's directory there, open, with a shared lock, as what cleans /tmp leaves such a one (systemd-tmpfiles).
    Where another user has taken its name, it has one that could not be guessed. None where none can be made.
    """
    user = os.geteuid()
    with suppress(OSError, ValueError):
        user = places.outside(user)  # a container's root is who has started it
    plain = os.path.join(base, f"gpu-runner-{user}")
    found = _first_made(f"{plain}+") or _with_handle(plain)
    if found is None:
        with suppress(OSError), _turn(base):  # of ranks that begin at once, the first makes it for all
            found = _first_made(f"{plain}+")
            found = found or _with_handle(tempfile.mkdtemp(prefix=f"gpu-runner-{user}+", dir=base))
    return found


def _first_made(start: str) -> tuple[str, int] | None:
    """This user's that mkdtemp has named. None is made: another user would choose its name."""
    made = (path for path in _beginning(start) if re.fullmatch(r"[a-z0-9_]{8}", path[len(start) :]))
    return next(filter(None, (_with_handle(path, make=False) for path in made)), None)


def _with_handle(path: str, *, make: bool = True) -> tuple[str, int] | None:
    handle = _opened(path, make=make)
    return None if handle is None else (path, handle)


@contextmanager
def _turn(base: str) -> Iterator[None]:
    """One process after the other; but any user may hold the lock of a directory that all may read: for a second."""
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(20):
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _beginning(path: str) -> list[str]:
    """Those that begin so, sorted; none of a directory that cannot be read."""
    base, start = os.path.split(path)
    with suppress(OSError):
        return [os.path.join(base, each) for each in sorted(os.listdir(base)) if each.startswith(start)]
    return []


def _temporary(path: str) -> str:
    """The directory of TMPDIR of a job with caches at ``path``."""
    return os.path.join(os.path.dirname(path), f"+{hashlib.sha256(os.path.basename(path).encode()).hexdigest()[:8]}")


def _has_room(path: str) -> bool:
    """Whether a file can be written there, as ``tempfile`` asks it; else it takes another place."""
    with suppress(OSError), tempfile.TemporaryFile(dir=path, buffering=0) as file:
        return file.write(b"\0" * 4096) == 4096
    return False


def _plain(text: str) -> str:
    """As part of a name in which "+" separates the node from the job."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:100]


def _usable(path: str) -> bool:
    """Whether it is a directory, or could be made."""
    while not os.path.lexists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    return os.path.isdir(path) and (path == "/" or os.access(path, os.W_OK | os.X_OK))


def _opened(path: str, *, make: bool = True) -> int | None:
    """Handle of this user's closed directory of that name, with a shared lock; made where there is none. None where
    something else has the name, or it is not there and is not to be made.
    """
    for _ in range(20):  # a rank that leaves may remove it between two calls
        try:
            if make:
                os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError:
            return None
        handle = _own(path)
        if handle is None and (not make or os.path.lexists(path)):
            return None
        if handle is None:
            continue
        with suppress(OSError):  # a file system without locks: the directory stays until it is swept
            fcntl.flock(handle, fcntl.LOCK_SH)
        if _names(path, handle):
            return handle
        os.close(handle)
    return None


def _own(path: str) -> int | None:
    """Descriptor of a directory that is this user's, and closed to all others; None for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    about = places.status_of(handle)
    if places.owner_of(about) == os.geteuid() and not about.st_mode & 0o077:
        return handle
    os.close(handle)
    return None


def _sweep(of_node: str, kept: str) -> None:
    """Remove what this user's other jobs have left on this node that are dead: no process holds its lock."""
    for path in _beginning(of_node):
        if path != kept and (handle := _own(path)) is not None:
            _remove_unused(path, handle)
            os.close(handle)


def _remove_unused(path: str, handle: int) -> None:
    """Remove the directory if no other process holds its lock; whoever comes meanwhile makes another."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    both = (_temporary(path), path)
    if _names(path, handle) and not any(map(_has_mounts, both)):
        for each in both:
            shutil.rmtree(each, ignore_errors=True)  # which follows no link


def _has_mounts(path: str) -> bool:
    """Whether a program has left file systems mounted there: what is on them is no cache."""
    return any(each.startswith(f"{path}/") for each in places.mount_points())


def _names(path: str, handle: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except OSError:
        return False
