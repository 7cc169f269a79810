"""podman-hpc: ``podman-hpc run`` with an image of its own (NERSC; options as in podman-hpc 1.1 and Podman 4)."""

from __future__ import annotations

from runner.backends.runtimes.common import (
    RANK,
    STARTED,
    STARTERS,
    carried,
    image_reference,
    launched_program,
    loads,
    mount_options,
    shell,
)
from runner.model.plan import RESULTS, Plan
from runner.model.step import RENDEZVOUS, RUN_DIRECTORY, Export, StepSpec, Text, Var, text, texts


def step(plan: Plan) -> StepSpec:
    """One container a rank. It starts with the image's variables alone, so each is named: ``--env NAME`` takes the
    host's value, whatever bytes it has, over the image's; ``NAME*`` those of each task.

    Without the host's network the rendezvous cannot connect, without its IPC the ranks of a node share no memory.
    No rank may pull: the image is there (``podman-hpc pull``, ``migrate``), or the job ends.
    """
    env = carried(plan)
    names = (*RENDEZVOUS, *STARTED, *(name for name, _ in env), "CUDA_VISIBLE_DEVICES")
    return StepSpec(
        prelude=(*loads(plan), *(Export(name, text(value)) for name, value in env)),
        once_a_node=(),
        launcher=(),
        command=(
            *texts("podman-hpc", "run", "--rm", "--pull=never", "--entrypoint="),
            *texts(*(("--gpu",) if plan.device == "cuda" else ()), *(f"--{module}" for module in plan.modules)),
            *texts("--network=host", "--ipc=host", f"--workdir={plan.workdir}"),
            text("--volume"),
            (Var(RUN_DIRECTORY), Text(f":{RESULTS}")),
            *mount_options(plan, "--volume"),
            *(text(f"--env={prefix}*") for prefix in STARTERS),
            *(text(f"--env={name}") for name in names),
            text(image_reference(plan)),
            *shell(),
            *launched_program(plan),
        ),
        files=(RANK,),
    )
