"""Apptainer, and Singularity by its older name: ``exec`` from a SIF (options that both have, since Singularity 3.5)."""

from __future__ import annotations

from runner.model.names import ImageForm
from runner.model.plan import RESULTS, Plan
from runner.model.step import RUN_DIRECTORY, StepSpec, Text, Var, Word, text, texts
from runner.runtimes.common import (
    WORKDIR,
    carried,
    expressible_mounts,
    forbidden,
    image_file,
    launched_program,
    loads,
    prefixed,
    shell,
)

IMAGE: ImageForm = "sif"


def mount_problem(path: str) -> str | None:
    """``--bind`` splits at ',' and ':', and newer versions take a backslash for an escape."""
    return forbidden(path, "Apptainer", ",:\\")


def step(plan: Plan) -> StepSpec:
    """One ``exec`` a rank; the kernel shares the image's pages between those of a node.

    Not ``--cleanenv``: what a clean environment needs goes through APPTAINERENV_, whose values a shell evaluates
    (``$`` and backslashes; Apptainer 1.4, ``injectEnvHandler``; ``--no-eval`` is too new for many sites), and the
    variables of each task would have to be carried by name. The host's environment passes as it is instead, the batch
    script has cleaned it, and what the image might override travels under a prefix.
    """
    return StepSpec(
        prelude=(*loads(plan), *(prefixed(name, text(value)) for name, value in carried(plan))),
        once_a_node=(),
        launcher=(),
        command=(
            text("singularity" if plan.runtime == "singularity" else "apptainer"),
            text("exec"),
            *texts(*(("--nv",) if plan.device == "cuda" else ()), "--no-home", "--pwd", WORKDIR),
            *_binds(plan),
            image_file(plan, "Apptainer"),
            *shell(plan, rename=True),
            *launched_program(plan),
        ),
    )


def _binds(plan: Plan) -> tuple[Word, ...]:
    words: list[Word] = [text("--bind"), (Var(RUN_DIRECTORY), Text(f":{RESULTS}"))]
    for mount in expressible_mounts(plan, mount_problem):
        words += [text("--bind"), text(f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else ""))]
    return tuple(words)
