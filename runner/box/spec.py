"""What a box is to be: Slurm, nodes, binds."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import msgspec

from runner.core.errors import UsageError
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX

# Slurm version -> the Debian suite whose packages have it (2026-11). That of unstable has no PMIx plugin.
SUITES: dict[str, str] = {"22.05": "bookworm", "24.11": "trixie", "26.05": "unstable"}
DEFAULT_SLURM = "22.05"
DEFAULT_NAME = "box"  # the one that the shipped site "box" means
MAX_NODES = 99

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")  # Debian Policy 5.6.7


class Bind(msgspec.Struct, frozen=True):
    """A host path seen inside the box: both absolute."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Bind:
        """``SRC`` or ``SRC:DST``.

        Raises:
            UsageError: not absolute, or with a tab or newline, which the box's start cannot carry.
        """
        source, _, target = text.partition(":")
        bind = cls(source, target or source)
        if not (PurePosixPath(bind.source).is_absolute() and PurePosixPath(bind.target).is_absolute()):
            raise UsageError(
                "a bind needs two absolute paths",
                where=f"--bind {text}",
                fix="--bind /SRC:/DST, or --bind /DIR",
            )
        if re.search(r"[\t\n\0]", text) or ".." in PurePosixPath(bind.target).parts:
            raise UsageError("a bind may hold no tab, newline or '..'", where=f"--bind {text!r}")
        return bind


class NodeShape(msgspec.Struct, frozen=True):
    """The hardware that each node reports; the default is a DGX A100 (facts: 2 x 64 cores, 2 threads, 8 GPUs).

    Attributes:
        memory_mb: RealMemory, MiB. Nothing of it is reserved on this machine.
        features: what a job may name in ``--constraint``.
    """

    sockets: int = 2
    cores_per_socket: int = 64
    threads_per_core: int = 2
    memory_mb: int = 1_000_000
    gpus: int = 8
    gpu_type: str = "a100"
    features: tuple[str, ...] = ()

    @property
    def cpus(self) -> int:
        """Hardware threads."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


class BoxSpec(msgspec.Struct, frozen=True):
    """One box: name, size, Slurm version, and what is put into it.

    Attributes:
        nodes: number of nodes, named dgx01 ....
        slurm: a key of SUITES.
        spank: lines for plugstack.conf.
        binds: host paths seen inside besides the host's own top-level directories.
        partition: name of the one partition, which all nodes are in.
        packages: Debian packages that its root has besides those of every box; such a root is made and kept apart.
    """

    name: str = DEFAULT_NAME
    nodes: int = 2
    slurm: str = DEFAULT_SLURM
    spank: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    shape: NodeShape = NodeShape()
    partition: str = "batch"
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError: no box can be like this."""
        check_name(self.name)
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"a box has 1 to {MAX_NODES} nodes, not {self.nodes}", where="--nodes")
        if self.slurm not in SUITES:
            raise UsageError(f"no Slurm {self.slurm!r} for a box", where="--slurm", fix=f"one of: {', '.join(SUITES)}")
        for word in (self.partition, *self.shape.features):
            if not PLAIN_NAME.match(word):
                raise UsageError(f"not a name of a partition or a feature: {word!r}", fix=PLAIN_NAME_FIX)
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                raise UsageError(f"not a name of a Debian package: {package!r}")
        for line in self.spank:
            if not re.fullmatch(r"(required|optional|include)\s+\S[^\n\0]*", line):
                raise UsageError(
                    f"not a line of plugstack.conf: {line!r}",
                    where="--spank",
                    fix="--spank 'required /path/to/plugin.so arguments'",
                )

    @property
    def node_names(self) -> tuple[str, ...]:
        """dgx01, dgx02, ..."""
        return tuple(f"dgx{number:02d}" for number in range(1, self.nodes + 1))


def check_name(name: str) -> None:
    """A box's name is also a directory's.

    Raises:
        UsageError.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"not a name for a box: {name!r}",
            where="--name",
            fix="up to 32 of a-z, 0-9 and '-', not '-' first",
        )
