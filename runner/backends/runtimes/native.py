"""No container: the program runs in an environment that the site prepares, or in the submitting shell's."""

from __future__ import annotations

import posixpath

from runner.backends.runtimes import common
from runner.core.errors import UsageError
from runner.model.backends import NATIVE, MountSyntax, RuntimeFacts
from runner.model.plan import Plan
from runner.model.step import Export, StepSpec

FACTS = RuntimeFacts(
    title=NATIVE,
    image="none",
    mounts=MountSyntax(absolute=False),  # host paths are visible under the same path
    program="python3",
    shows_home=True,
    without_scheduler=True,
    driver="the node itself has the driver: `nvidia-smi` must work there, and `ldconfig -p` list libcuda; some "
    "sites have a module for it",
    brings_driver=True,
    install="apt-get install python3",
    preference=100,
)


def step(plan: Plan) -> StepSpec:
    """The launcher and program straight from the run directory. ``RESULTS`` and mounts are names of containers. Raises
    UsageError: a mount that only a container can make.
    """
    for mount in plan.mounts:
        if mount.target == plan.workdir:
            continue  # the program's own directory: it starts there
        if mount.read_only or posixpath.normpath(mount.source) != posixpath.normpath(mount.target):
            raise UsageError(
                f"without a container {mount.source!r} cannot be mounted as {mount.target!r}"
                + (", or read-only" if mount.read_only else ""),
                where="--mount",
                fix="leave it out and use the host path, or use a container (--runtime)",
            )
    return StepSpec(
        prelude=(*common.load_lines(plan), *(Export(name, common.host_value(value)) for name, value in plan.env)),
        command=(
            *common.shell(common.RUN, directory=common.host_directory(plan)),
            *common.launched_program(plan, run=common.RUN),
        ),
        inherits=not plan.load,
        files=common.RANK_FILES,
    )
