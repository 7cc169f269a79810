"""Apptainer, and Singularity by its older name: ``exec`` from a SIF (options that both have, since Singularity 3.5)."""

from __future__ import annotations

import re

from runner.backends import LEFTOVERS
from runner.backends.runtimes import common
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, MountSyntax, RuntimeFacts
from runner.model.plan import Plan
from runner.model.step import StepSpec, Var, library_file, text, texts

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

_SHELL = common.SHELL / "apptainer.sh"


def step(plan: Plan) -> StepSpec:
    """One ``exec`` a rank; the kernel shares the image's pages between those of a node.

    Not ``--cleanenv``: what a clean environment needs goes through APPTAINERENV_, whose values a shell evaluates
    (``$`` and backslashes; Apptainer 1.4, ``injectEnvHandler``; ``--no-eval`` is too new for many sites), and the
    variables of each task would have to be carried by name. The host's environment passes as it is instead, the batch
    script has cleaned it, and what the image might override travels under a prefix.

    Raises:
        UsageError: bytes that are no UTF-8 in the environment or the program's arguments.
    """
    env = common.carried(plan)
    for where, value in (*((f"--env {name}", value) for name, value in env),
                         *(("-- (the program's arguments)", word) for word in plan.program)):  # fmt: skip
        # Its own shell, through which both pass, puts U+FFFD for a byte that is no UTF-8 (seen with 1.4.5).
        if byte := re.search("[\udc80-\udcff]", value):
            what = f"Apptainer cannot carry the byte {byte[0]!r}, which is no UTF-8"
            raise UsageError(what, where=where, fix="leave it out")
    values = {name: text(value) for name, value in env}
    if plan.library_variable:
        own = text(f"{plan.library_path}:") if plan.library_path else ()
        values["RUNNER_LIBRARY_PATH"] = (*own, Var(plan.library_variable))
    return StepSpec(
        prelude=(*common.loads(plan), *(common.prefixed(name, value) for name, value in values.items())),
        command=(
            *library_file(_SHELL),
            *texts(RUNTIMES[plan.runtime].program, "exec", *(("--nv",) if plan.device == "cuda" else ())),
            *texts(*plan.runtime_options, "--no-home", "--pwd", plan.workdir),
            *(text("--bind"), common.RUN_AT_RESULTS, *common.mount_options(plan, "--bind")),
            *(common.image_file(plan), *common.shell(), *common.launched_program(plan)),
        ),
        files=(_SHELL, LEFTOVERS, *common.RANK_FILES),
    )
