"""Shifter: ``srun shifter`` with a registry's image (options and rules as in its source, 21.12)."""

from __future__ import annotations

import posixpath

from runner.backends.runtimes.common import (
    RANK,
    carried,
    host_directory,
    host_value,
    image_reference,
    launched_program,
    loads,
    mounted,
    prefixed,
    shell,
)
from runner.core.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.request import Mount
from runner.model.step import RUN_DIRECTORY, Argument, StepSpec, Text, Var, text

_CLOSED = ("/dev", "/etc", "/opt/udiImage", "/proc", "/var")  # validateVolumeMap_userRequest


def step(plan: Plan) -> StepSpec:
    """One ``shifter`` a rank, in the image that the head of the script has made ready on every node.

    The image's own variables win over the job's (its documented order), and TMPDIR and LD_* are dropped: all travel
    under a prefix. A mount point must exist in the image; ours have RESULTS. Where the site's containers show the
    host's paths, the run directory and the program's own need none.
    """
    image = f"docker:{image_reference(plan)}"
    modules = ",".join(plan.modules)
    run: Argument = (Var(RUN_DIRECTORY),)
    value = host_value if plan.host_paths else text
    start = host_directory(plan) if plan.host_paths else text(plan.workdir)
    return StepSpec(
        prelude=(*loads(plan), *(prefixed(name, value(content)) for name, content in carried(plan))),
        once_a_node=(),
        launcher=(),
        command=(
            text("shifter"),
            text(f"--image={image}"),
            *((text(f"--module={modules}"),) if modules else ()),
            *(() if plan.host_paths else ((Text("--volume="), *run, Text(f":{RESULTS}")),)),
            *(_volume(mount, option) for mount, option in mounted(plan) if not _is_shown(plan, mount)),
            (Text("--workdir="), *start),
            *(shell(run) if plan.host_paths else shell()),
            *(launched_program(plan, run=run) if plan.host_paths else launched_program(plan)),
        ),
        files=(RANK,),
        directives=(("image", image), *((("module", modules),) if modules else ())),
    )


def _is_shown(plan: Plan, mount: Mount) -> bool:
    """Whether a mount is needless, as the container shows the path."""
    same = posixpath.normpath(mount.source) == posixpath.normpath(mount.target)
    return plan.host_paths and not mount.read_only and (same or mount.target == plan.workdir)


def _volume(mount: Mount, value: str) -> Argument:
    target = posixpath.normpath(mount.target)
    if target == "/opt" or any(target == closed or target.startswith(f"{closed}/") for closed in _CLOSED):
        raise UsageError(
            f"Shifter mounts nothing at {target}",
            where=f"--mount {mount.source}:{mount.target}",
            fix="choose another mount point, which must exist in the image",
        )
    return text(f"--volume={value}")
