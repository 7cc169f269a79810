"""Programs that start ranks themselves, as torchrun and mpirun do, in front of a user's program. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.core.text import counted

TORCHRUN = "torchrun"
_NAMES = frozenset(
    (TORCHRUN, "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "srun")
)
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "horovod.runner": "horovodrun",
    "horovod.runner.launch": "horovodrun",
}
# Options of torchrun that take no value (torch.distributed.run).
_FLAGS = (
    *("--standalone", "-m", "--module", "--no-python", "--run-path", "--use-env", "--virtual-local-rank"),
    *("-h", "--help"),
)
_RANKS, _NODES = "--nproc-per-node", "--nnodes"
# Programs that start the command after their own options.
_WRAPPERS = frozenset(
    ("env", "nice", "ionice", "nohup", "setsid", "stdbuf", "time", "timeout", "numactl", "taskset", "uv", "poetry")
)
# Of Python's options the one that ends them (-c, -m), or takes a value (-W, -X), and what is attached to it.
_PYTHON_OPTION = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)


@dataclass(frozen=True)
class Starter:
    """A program that starts ranks.

    Attributes:
        name: as it is called, without directories; of ``python -m MODULE`` the program that the module is.
        arguments: what follows it.
    """

    name: str
    arguments: tuple[str, ...]

    @property
    def plain(self) -> tuple[str, ...]:
        """The Python program that it would start, without it; empty where none is seen."""
        for place, word in enumerate(self.arguments):
            if _is_python(word):
                return self.arguments[place:]
            if word.endswith(".py"):
                return ("python", *self.arguments[place:])
            if word in ("-m", "--module"):
                return ("python", "-m", *self.arguments[place + 1 :])
        return ()


def starter(program: Sequence[str]) -> Starter | None:
    """The one that an argument list begins with, by any path, behind ``python``, ``python -m`` or ``env``, too; else
    None.
    """
    words = iter(program[_wrapped(program) :])
    name = _base(next(words, ""))
    if _is_python(name):
        name = _run_by_python(words)
    return Starter(name, tuple(words)) if name in _NAMES else None


def conflict(torchrun: Starter, nodes: int, gpus: int, *, by_gpu: bool) -> str:
    """Why torchrun's own arguments would form another world than one rank for each GPU; empty where they would not.

    Args:
        nodes, gpus: of the job, and of each of its nodes.
        by_gpu: torch sees GPUs there, so that it can count them.
    """
    options = dict(_options(torchrun.arguments))
    ranks, count = options.get(_RANKS), options.get(_NODES)
    if ranks is not None and ranks != str(gpus) and not (by_gpu and ranks in ("gpu", "auto")):
        return f"--nproc-per-node is {ranks}, and the job has {counted(gpus, 'GPU')} on each node"
    if count is not None and count not in (str(nodes), f"{nodes}:{nodes}"):
        return f"--nnodes is {count}, and the job has {counted(nodes, 'node')}"
    if "--standalone" in options and nodes > 1:
        return f"--standalone is for one node, and the job has {nodes} nodes"
    return ""


def _wrapped(program: Sequence[str]) -> int:
    """Where the command begins that a wrapper starts: at Python or a starter, unless that is an option's value."""
    if not program or _base(program[0]) not in _WRAPPERS:
        return 0
    for place in range(1, len(program)):
        if (_is_python(program[place]) or _base(program[place]) in _NAMES) and program[place - 1][:2] != "--":
            return place
    return 0


def _run_by_python(words: Iterator[str]) -> str:
    """What Python runs: a module's program, or a script's name; takes it and Python's options from ``words``."""
    for word in words:
        option = _PYTHON_OPTION.fullmatch(word)
        if option is not None:
            value = option[2] or next(words, "")
            if option[1] in "cm":
                return _MODULES.get(value, "") if option[1] == "m" else ""
        elif not word.startswith("-") or word == "-":
            return _base(word)
    return ""


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """torchrun's options before the script: ``_`` reads as ``-``, a beginning as the whole name, as argparse has it."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            return
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name[:2] == "--":
            name = next((known for known in (*_FLAGS, _RANKS, _NODES) if known.startswith(name)), name)
        attached = equals or (len(name) > 2 and name[1] != "-")
        yield name, value if attached or name in _FLAGS else next(words, "")


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _is_python(word: str) -> bool:
    return _base(word).startswith("python")
