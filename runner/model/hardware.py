"""What a site's GPU nodes are made of, as far as an image must fit it."""

from __future__ import annotations

import msgspec


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Empty where unknown; then nothing is checked.

    Attributes:
        driver: NVIDIA's, of the oldest node: ``535.104.05``.
        compute_capability: of the GPUs: ``8.0``.
        cpu: architecture as ``uname -m`` says: ``x86_64``, ``aarch64``.
    """

    driver: str = ""
    compute_capability: str = ""
    cpu: str = ""
