"""Classes of transport between nodes: what a site plans. Which name of NCCL's belongs to which."""

from __future__ import annotations

import re
from typing import Literal

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
