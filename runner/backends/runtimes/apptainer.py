"""Apptainer, and Singularity by its older name: ``exec`` from a SIF (options that both have, since Singularity 3.5)."""

from __future__ import annotations

from runner.backends.runtimes.common import (
    RANK,
    carried,
    image_file,
    launched_program,
    loads,
    mount_options,
    prefixed,
    shell,
)
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, MountSyntax, RuntimeFacts
from runner.model.plan import RESULTS, Plan
from runner.model.step import RUN_DIRECTORY, StepSpec, Text, Var, text, texts

# Not listed with user_namespaces: it may be installed set-uid instead.
FACTS = RuntimeFacts(
    title="Apptainer",
    image="sif",
    mounts=MountSyntax(forbidden=",:\\"),  # --bind splits at ',' and ':'; newer versions take '\' for an escape
    program="apptainer",
    driver="--nv, which the job has, brings the driver: on that node `nvidia-smi` must work, and `ldconfig -p` list "
    "libcuda",
    versions={"apptainer": ("apptainer", "--version")},
    preference=30,
)


def step(plan: Plan) -> StepSpec:
    """One ``exec`` a rank; the kernel shares the image's pages between those of a node.

    Not ``--cleanenv``: what a clean environment needs goes through APPTAINERENV_, whose values a shell evaluates
    (``$`` and backslashes; Apptainer 1.4, ``injectEnvHandler``; ``--no-eval`` is too new for many sites), and the
    variables of each task would have to be carried by name. The host's environment passes as it is instead, the batch
    script has cleaned it, and what the image might override travels under a prefix.

    Raises:
        UsageError: bytes that are no UTF-8 in the environment or the program's arguments.
    """
    env = carried(plan)
    for name, value in env:
        _refuse_bytes(value, f"--env {name}")
    for argument in plan.program:
        _refuse_bytes(argument, "-- (the program's arguments)")
    return StepSpec(
        prelude=(*loads(plan), *(prefixed(name, text(value)) for name, value in env)),
        once_a_node=(),
        launcher=(),
        command=(
            text(RUNTIMES[plan.runtime].program),
            text("exec"),
            *texts(*(("--nv",) if plan.device == "cuda" else ()), "--no-home", "--pwd", plan.workdir),
            *(text("--bind"), (Var(RUN_DIRECTORY), Text(f":{RESULTS}"))),
            *mount_options(plan, "--bind"),
            image_file(plan),
            *shell(),
            *launched_program(plan),
        ),
        files=(RANK,),
    )


def _refuse_bytes(value: str, where: str) -> None:
    """Its own shell, through which both pass, puts U+FFFD for a byte that is no UTF-8 (seen with 1.4.5)."""
    for character in value:
        if "\udc80" <= character <= "\udcff":
            raise UsageError(
                f"Apptainer cannot carry the byte {character!r}, which is no UTF-8", where=where, fix="leave it out"
            )
