"""podman-hpc: ``podman-hpc run`` with an image of its own (NERSC; options as in podman-hpc 1.1 and Podman 4)."""

from __future__ import annotations

from collections.abc import Sequence

from runner.backends.runtimes import answer_of, common
from runner.model.backends import RUNTIMES, MountSyntax, RuntimeFacts
from runner.model.plan import Plan
from runner.model.step import RENDEZVOUS, Export, StepSpec, text, texts

FACTS = RuntimeFacts(
    title="podman-hpc",
    image="registry",
    # --volume splits at ':' and has no escape; a relative path would name a volume of Podman's.
    mounts=MountSyntax(forbidden=":"),
    program="podman-hpc",
    driver="--gpu, which the job has, brings the driver (podman-hpc's module `gpu`); ask the site",
    versions={"podman-hpc": ("podman-hpc", "--version")},
    user_namespaces=True,
    builds_images=True,
    preference=50,
)


def step(plan: Plan) -> StepSpec:
    """As ``podman_step``."""
    by_gpu, by_pmi = ("--gpu",) * (plan.device == "cuda"), ("--openmpi-pmi2",) * (plan.mpi == "pmi2")
    return podman_step(plan, *by_gpu, *(f"--{module}" for module in plan.modules), *by_pmi)


def podman_step(plan: Plan, *options: str) -> StepSpec:
    """One container a rank. It starts with the image's variables alone, so each is named: ``--env NAME`` takes the
    host's value, whatever bytes it has, over the image's; ``NAME*`` those of each task.

    Without the host's network the rendezvous cannot connect, without its IPC the ranks of a node share no memory.
    No rank may pull: the image is there (``podman-hpc pull``, ``migrate``), or the job ends.
    """
    env = common.carried(plan)
    names = (*RENDEZVOUS, *common.started(plan), *(name for name, _ in env), "CUDA_VISIBLE_DEVICES")
    return StepSpec(
        prelude=(*common.loads(plan), *(Export(name, text(value)) for name, value in env)),
        command=(
            *texts(RUNTIMES[plan.runtime].program, "run", "--rm", "--pull=never", "--entrypoint=", *options),
            *texts("--network=host", "--ipc=host", f"--workdir={plan.workdir}"),
            *(text("--volume"), common.RUN_AT_RESULTS, *common.mount_options(plan, "--volume")),
            *texts(*(f"--env={prefix}*" for prefix in common.starters(plan)), *(f"--env={name}" for name in names)),
            *(text(common.image_reference(plan)), *common.shell(), *common.launched_program(plan)),
        ),
        files=common.RANK_FILES,
    )


def image_problem(reference: str, mount_points: Sequence[str], *, local: bool) -> tuple[str, str]:
    """Nodes see only what was made a squashfs on scratch: such images are read-only there."""
    listed = answer_of("podman-hpc", "images", "--filter", f"reference={reference}", "--format", "{{.ReadOnly}}")
    if listed is None or listed.code:
        return "", ""
    read_only = listed.out.split()
    if not read_only:
        build = f"podman-hpc build -t {reference} ..., then podman-hpc migrate {reference}"
        return f"podman-hpc has no image {reference}", build if local else f"podman-hpc pull {reference}"
    if "true" not in read_only:
        return f"the nodes do not see {reference}: it is on this machine alone", f"podman-hpc migrate {reference}"
    return "", ""
