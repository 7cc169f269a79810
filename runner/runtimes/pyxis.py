"""Pyxis: ``srun --container-image`` (options as in Pyxis 0.24, ``args.c``)."""

from __future__ import annotations

from runner.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.step import RUN_DIRECTORY, StepSpec, Text, Var, Word, text, texts
from runner.runtimes.common import WORKDIR, exports, launched_program, passed_names, shell


def mount_problem(path: str) -> str | None:
    """Pyxis splits mounts at ',' and ':' and knows no escape."""
    for character in (",", ":"):
        if character in path:
            return f"Pyxis cannot mount a path with {character!r} in it: {path!r}"
    if not path.startswith(("/", "./")):
        return f"Pyxis wants an absolute path to mount: {path!r}"
    return None


def step(plan: Plan) -> StepSpec:
    """A named container, unpacked by one task per node, entered by every rank."""
    container = (
        (Text("--container-name="), *_name(plan)),
        _mounts(plan),
        text(f"--container-workdir={WORKDIR}"),
        *texts("--no-container-mount-home", "--no-container-entrypoint", "--no-container-remap-root"),
        text("--container-env=" + ",".join(passed_names(plan))),
    )
    return StepSpec(
        prelude=exports(plan),
        once_a_node=(text(f"--container-image={_image(plan)}"), *container, text("/bin/true")),
        launcher=container,
        command=(*shell(), *launched_program(plan)),
    )


def _name(plan: Plan) -> Word:
    """Job id and digest: an old root of the same name must never be reused for another image."""
    digest = plan.image.digest.partition(":")[2][:12] or "file"
    return (Text(f"runner_{digest}_"), Var("SLURM_JOB_ID"))


def _image(plan: Plan) -> str:
    if not plan.image.path.startswith("/"):
        raise UsageError(
            f"Pyxis would take {plan.image.path!r} for a registry's image",
            where="--image",
            mend="use an absolute path",
        )
    return plan.image.path


def _mounts(plan: Plan) -> Word:
    words: list[Text | Var] = [Text("--container-mounts="), Var(RUN_DIRECTORY), Text(f":{RESULTS}")]
    for mount in plan.mounts:
        for path in (mount.source, mount.target):
            problem = mount_problem(path)
            if problem:
                raise UsageError(problem, where="--mount", mend="mount a directory above it, or make a link to it")
        words.append(Text(f",{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")))
    return tuple(words)
