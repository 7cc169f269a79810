"""Which runtimes serve on a machine with no scheduler and no root, and by which program each is found there.

A further one is a line in ALONE, beside its module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Alone:
    """A runtime on its own.

    Attributes:
        program: it is there if this is in PATH.
        brings_driver: GPUs of the host can be used in it with no further steps.
        install: what provides it.
    """

    program: str
    brings_driver: bool
    install: str


ALONE: dict[str, Alone] = {
    # ch-run mounts nothing of the host's GPU driver; ch-fromhost changes the image, which our store does not do.
    "charliecloud": Alone("ch-run", brings_driver=False, install="apt-get install charliecloud-runtime squashfuse"),
    "native": Alone("python3", brings_driver=True, install="apt-get install python3"),
}


def choose(wanted: Iterable[str], device: str, there: Callable[[str], bool]) -> str | None:
    """The first of ``wanted`` that is on this machine and can use the device; None if none is.

    Args:
        there: whether a program is in PATH.
    """
    for name in wanted:
        facts = ALONE.get(name)
        if facts and there(facts.program) and (facts.brings_driver or device == "cpu"):
            return name
    return None
