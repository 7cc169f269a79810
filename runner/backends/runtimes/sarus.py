"""Sarus: ``srun sarus run`` with an image of its own repository (CSCS; options as in its user guide, 1.7).

The image is there before the job: ``sarus pull REFERENCE``, or ``sarus load FILE.tar NAME``, once for all nodes.
"""

from __future__ import annotations

from runner.backends.runtimes.common import (
    RANK,
    carried,
    image_reference,
    launched_program,
    loads,
    mount_options,
    prefixed,
    shell,
)
from runner.model.plan import RESULTS, Plan
from runner.model.runtimes import MountSyntax, RuntimeFacts
from runner.model.step import RUN_DIRECTORY, StepSpec, Text, Var, text, texts

FACTS = RuntimeFacts(
    title="Sarus",
    image="registry",
    # --mount splits at ',' and refuses a second '=' in a value (parseMap, common/Utility.cpp).
    mounts=MountSyntax(forbidden=",=", pair="type=bind,source={source},destination={target}", read_only=",readonly"),
    program="sarus",
    driver="the site's NVIDIA hook for Sarus brings the driver, where CUDA_VISIBLE_DEVICES is set; ask the site",
    versions={"sarus": ("sarus", "--version")},
    preference=25,
)


def step(plan: Plan) -> StepSpec:
    """One container a rank. It starts with the host's environment, over which the image's own variables win: all of the
    plan's travel under a prefix.

    The entry point is removed by a separate empty argument: ``--entrypoint=`` is not supported. GPUs come by the site's
    hook, from CUDA_VISIBLE_DEVICES; the network, IPC and process numbers are the host's.
    """
    return StepSpec(
        prelude=(*loads(plan), *(prefixed(name, text(value)) for name, value in carried(plan))),
        once_a_node=(),
        launcher=(),
        command=(
            *texts("sarus", "run", *(f"--{module}" for module in plan.modules), "--entrypoint", ""),
            text(f"--workdir={plan.workdir}"),
            text("--mount"),
            (Text("type=bind,source="), Var(RUN_DIRECTORY), Text(f",destination={RESULTS}")),
            *mount_options(plan, "--mount"),
            text(image_reference(plan)),
            *shell(),
            *launched_program(plan),
        ),
        files=(RANK,),
    )
