"""What each Python of a user's program runs before that: PYTHONPATH begins with a copy of it on the node's own disk.

It waits for the modules by which processes form a world, and leaves for the launcher what they say of it, and which
files were opened; with ``submit --meter`` the meter's hook waits here, too. Python has one ``sitecustomize``, so that
the one that would have been imported without this is imported after it. No program ends for this. Every process pays
for it: it imports what Python has.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

_HERE = os.path.dirname(os.path.abspath(__file__))
_METER = os.environ.get("RUNNER_METER")
_MOST_FILES = 20_000  # with data, a program opens more
# In the command lines of programs that start ranks: what they start still needs this.
_STARTERS = (b"torchrun", b"torch.distributed", b"accelerate", b"deepspeed", b"composer", b"fabric", b"horovod")


def _quietly(do: Callable[..., object], *args: Any) -> None:
    try:
        do(*args)
    except Exception:  # another version of what it looks at: then nothing is seen
        return


class AfterImport:
    """Finds nothing itself: it lets the others find a module, and then calls who waits for it."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[Any], None]]] = {}  # by the module's name

    def wait(self, name: str, attach: Callable[[Any], None]) -> None:
        """Call ``attach`` with the module of this name once it is executed."""
        self.waiting.setdefault(name, []).append(attach)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As importlib asks finders."""
        if name not in self.waiting:
            return None
        finders = (getattr(each, "find_spec", None) for each in sys.meta_path if each is not self)
        specs = (find(name, path, target) for find in finders if find is not None)
        spec = next((each for each in specs if each is not None), None)
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if spec is None or execute is None:
            return spec

        def exec_module(module: Any) -> None:
            execute(module)
            for attach in self.waiting[name]:
                _quietly(attach, module)

        spec.loader.exec_module = exec_module
        return spec


def _leave(kind: str, rank: int, size: int) -> None:
    """For the launcher, which reads it at the end: of each local rank the largest world that it was in."""
    directory = os.environ.get("RUNNER_WORLDS")
    if not directory:
        return
    place = os.path.join(directory, os.environ.get("LOCAL_RANK") or str(rank))
    if os.path.exists(place):
        with open(place) as file:
            if int(file.read().split()[2]) >= size:
                return
    with open(f"{place}.{os.getpid()}", "w") as file:
        file.write(f"{kind} {rank} {size}")
    os.replace(f"{place}.{os.getpid()}", place)


class _Watched:
    """In the place of ``open``, or of another function of ``module``: as a built-in function, it becomes no method of a
    class that has it as an attribute, as one of pathlib has in Python 3.10, and is pickled by its name.
    """

    def __init__(self, original: Callable[..., Any], note: Callable[..., None], module: str = "io") -> None:
        self.__name__ = self.__qualname__ = original.__name__
        self.__module__, self.__doc__ = module, original.__doc__
        self.__wrapped__, self._note = original, note

    def __call__(self, file: Any, *args: Any, **named: Any) -> Any:
        made = self.__wrapped__(file, *args, **named)
        _quietly(self._note, made, file, *args)
        return made

    def __reduce__(self) -> str:
        return self.__name__


def _watch_files(directory: str) -> None:
    """Keep how each file was when the program first read it, and which it wrote, for ``gpu_runner_inside.inputs``."""
    import atexit
    import builtins
    import io
    import time

    SourceFileLoader: Any = sys.modules["_frozen_importlib_external"].SourceFileLoader  # importlib itself takes time

    places = tuple(sys.path)  # without that of the program, or '' for where it is
    pid, base = os.getpid(), (os.getcwd(), time.time_ns(), dict(os.environ))
    read: dict[str, tuple[int, ...]] = {}  # size, time of change in ns, inode
    written: set[str] = set()

    def keep(path: str, state: os.stat_result) -> None:
        read.setdefault(path, (state.st_size, state.st_mtime_ns, state.st_ino))

    def note(made: Any, file: Any, *_: Any) -> None:
        if not isinstance(file, int) and len(read) + len(written) < _MOST_FILES:
            path, state = os.path.abspath(os.fsdecode(file)), os.fstat(made.fileno())
            if made.writable():
                written.add(path)
            else:
                keep(path, state)

    def note_target(_none: None, _source: Any, target: Any) -> None:
        """Of what is written beside and then renamed."""
        if len(read) + len(written) < _MOST_FILES:
            written.add(os.path.abspath(os.fsdecode(target)))

    def leave(*, measured: bool = False) -> None:
        if not measured:  # at the end: modules that the program did not import are not taken from where it is
            sys.path[:] = [each for each in places if each]
        from gpu_runner_inside import inputs  # PYTHONPATH ends with its place

        if os.getpid() == pid:
            inputs.leave(directory, base, read, written, measured=measured)

    def note_input() -> None:
        """``python train.py <config.json``."""
        path = os.readlink("/proc/self/fd/0")
        if os.path.isfile(path):
            keep(path, os.stat(path))

    def watch(name: str) -> None:
        """Of modules, which may be a configuration in no ``sys.modules``, and what ``pkgutil`` reads beside them."""
        original = getattr(SourceFileLoader, name)

        def watched(loader: Any, path: str) -> Any:
            if "-packages/" not in path and not path.startswith(library) and not path.endswith(".pyc"):
                _quietly(lambda: keep(os.path.abspath(path), os.stat(path)))
            return original(loader, path)

        setattr(SourceFileLoader, name, watched)

    _quietly(note_input)
    library = os.path.dirname(os.__file__) + "/"
    watch("path_stats")
    watch("get_data")
    builtins.open = io.open = _Watched(io.open, note)
    io.open_code = _Watched(io.open_code, note)  # type: ignore[assignment]
    for name in ("rename", "replace"):
        setattr(os, name, _Watched(getattr(os, name), note_target, "os"))
    builtins.open.runner_leave = leave  # type: ignore[attr-defined]
    atexit.register(_quietly, leave)


def _after(owner: Any, name: str, kind: str, world: Callable[..., tuple[int, int]]) -> None:
    """Let a function that forms a world leave it: ``world`` says rank and size when it has returned."""
    original = getattr(owner, name)

    def formed(*args: Any, **named: Any) -> Any:
        made = original(*args, **named)
        _quietly(lambda: _leave(kind, *world(*args)))
        return made

    from functools import update_wrapper  # which has been imported by now

    setattr(owner, name, update_wrapper(formed, original))


def _torch(module: Any) -> None:
    def world(*_args: Any) -> tuple[int, int]:
        if module.get_backend() == "fake":
            raise ValueError
        return module.get_rank(), module.get_world_size()

    _after(module, "init_process_group", "torch", world)


def _jax(module: Any) -> None:
    _after(module.State, "initialize", "jax", lambda state, *_: (state.process_id, state.num_processes))


def _horovod(module: Any) -> None:
    _after(module.HorovodBasics, "init", "horovod", lambda basics, *_: (basics.rank(), basics.size()))


def _mpi(module: Any) -> None:
    if module.Is_initialized():
        _leave("mpi", module.COMM_WORLD.Get_rank(), module.COMM_WORLD.Get_size())


def _install() -> None:
    after = AfterImport()
    for name, attach in {
        "torch.distributed.distributed_c10d": _torch,
        "jax._src.distributed": _jax,
        "horovod.common.basics": _horovod,
        "mpi4py.MPI": _mpi,
    }.items():
        after.wait(name, attach)
    sys.meta_path.insert(0, after)
    if os.environ.get("RUNNER_WORLDS"):
        _watch_files(os.environ["RUNNER_WORLDS"])
    if _METER:
        sys.path.append(os.environ["RUNNER_LIB"])
        from gpu_runner_inside.meter import hook

        hook.install(after.wait)
    elif "RANK" in os.environ:
        with open("/proc/self/cmdline", "rb") as file:
            command = file.read()
        if not any(name in command for name in _STARTERS):  # a rank: what it starts is none
            rest = [each for each in os.environ["PYTHONPATH"].split(os.pathsep) if each != _HERE]
            os.environ["PYTHONPATH"] = os.pathsep.join(rest)


def _next() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # there is no other: Python looks for this one when it has run


try:
    _install()
except Exception as error:  # the program runs without
    if _METER:
        print(f"runner_meter: --meter measures nothing: {error!r}", file=sys.stderr)
_next()
