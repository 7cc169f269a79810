"""What a site's GPU nodes are made of, as far as an image must fit it."""

from __future__ import annotations

import msgspec

# A feature of Slurm nodes whose GPUs are fake, so that any client sees that ranks compute on CPUs there.
FAKE_GPUS = "fake-gpus"
DEMONSTRATION = "CPU, fake GPUs: demonstration, no performance claim"


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
