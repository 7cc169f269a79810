"""Shifter: ``srun shifter`` with a registry's image (options and rules as in its source, 21.12)."""

from __future__ import annotations

import posixpath

from runner.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.request import Mount
from runner.model.step import RUN_DIRECTORY, Argument, StepSpec, Text, Var, text
from runner.runtimes.common import (
    carried,
    image_reference,
    launched_program,
    loads,
    mounted,
    prefixed,
    shell,
)

_CLOSED = ("/dev", "/etc", "/opt/udiImage", "/proc", "/var")  # validateVolumeMap_userRequest


def step(plan: Plan) -> StepSpec:
    """One ``shifter`` a rank, in the image that the head of the script has made ready on every node.

    The image's own variables win over the job's (its documented order), and TMPDIR and LD_* are dropped: all travel
    under a prefix. A mount point must exist in the image; ours have RESULTS.
    """
    image = f"docker:{image_reference(plan)}"
    modules = ",".join(plan.modules)
    return StepSpec(
        prelude=(*loads(plan), *(prefixed(name, text(value)) for name, value in carried(plan))),
        once_a_node=(),
        launcher=(),
        command=(
            text("shifter"),
            text(f"--image={image}"),
            *((text(f"--module={modules}"),) if modules else ()),
            (Text("--volume="), Var(RUN_DIRECTORY), Text(f":{RESULTS}")),
            *(_volume(mount, value) for mount, value in mounted(plan)),
            text(f"--workdir={plan.workdir}"),
            *shell(plan, rename=True),
            *launched_program(plan),
        ),
        directives=(("image", image), *((("module", modules),) if modules else ())),
    )


def _volume(mount: Mount, value: str) -> Argument:
    target = posixpath.normpath(mount.target)
    if target == "/opt" or any(target == closed or target.startswith(f"{closed}/") for closed in _CLOSED):
        raise UsageError(
            f"Shifter mounts nothing at {target}",
            where=f"--mount {mount.source}:{mount.target}",
            fix="choose another mount point, which must exist in the image",
        )
    return text(f"--volume={value}")
