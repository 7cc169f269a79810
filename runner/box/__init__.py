"""The box: a real Slurm in a private root on this machine, for trying and testing jobs.

All of a box lives in namespaces of its own (mounts, network, processes, names): nothing listens on the host,
nothing of the host changes, and ending its first process ends all of it.
"""

from runner.box.config import DEFAULT_NAME, DEFAULT_SLURM, SUITES, Bind, BoxSpec, NodeShape
from runner.box.lifecycle import Box, down, find, inside, names, up

__all__ = [
    "DEFAULT_NAME",
    "DEFAULT_SLURM",
    "SUITES",
    "Bind",
    "Box",
    "BoxSpec",
    "NodeShape",
    "down",
    "find",
    "inside",
    "names",
    "up",
]
