"""Names: those that stand in directory names, job names and lists, plain on purpose."""

from __future__ import annotations

import re
from typing import Literal

# How ranks find each other; ``torchrun``: by our rendezvous, too, under torchrun's variable names; ``own``: the program
# starts processes of its own, and is the only task.
Wireup = Literal["rendezvous", "torchrun", "pmix", "pmi2", "mpich", "own"]
# Where caches are that no variable places. ``shell``: as in this shell; ``home``: in the home directory, and
# those of compilers on each node; ``node``: on each node, as programs do not see the home directory.
Caches = Literal["shell", "home", "node"]
# A file, a file, a name that the runtime resolves, or no image at all.
ImageForm = Literal["squashfs", "sif", "registry", "none"]

PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
PLAIN_NAME_FIX = "use 1 to 64 of A-Z a-z 0-9 . _ -"


Transport = Literal["verbs", "libfabric", "sockets"]

# Names as NCCL's log gives them. ``IBext_v8`` and the like: NVIDIA's HPC-X plugin. ``Libfabric``, ``AWS Libfabric``:
# aws-ofi-nccl, newer and older. UCX and other plugins run over several transports: their names tell none.
_NAMES: tuple[tuple[str, Transport], ...] = (
    (r"IB|IBext\w*|Spectrum-?X\w*", "verbs"),
    (r"(AWS )?Libfabric|OFI|AWS OFI", "libfabric"),
    (r"Socket", "sockets"),
)


def transport_of(network: str) -> Transport | None:
    """The class of a network that NCCL names; None where the name does not tell."""
    return next((made for names, made in _NAMES if re.fullmatch(names, network, re.IGNORECASE)), None)
