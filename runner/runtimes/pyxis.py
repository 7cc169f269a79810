"""Pyxis: ``srun --container-image`` (options as in Pyxis 0.24, ``args.c``)."""

from __future__ import annotations

from runner.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.step import RENDEZVOUS, RUN_DIRECTORY, Export, StepSpec, Text, Var, Word, text, texts
from runner.runtimes.common import WORKDIR, expressible_mounts, launched_program, prefixed, shell


def mount_problem(path: str) -> str | None:
    """Pyxis splits mounts at ',' and ':', and hands them to Enroot through a shell's double quotes (0.24)."""
    for character in (",", ":", '"', "$", "`", "\\"):
        if character in path:
            return f"Pyxis cannot mount a path with {character!r} in it: {path!r}"
    if not path.startswith("/"):
        return f"Pyxis wants an absolute path to mount: {path!r}"
    return None


def step(plan: Plan) -> StepSpec:
    """One step with an unnamed container: Pyxis unpacks it once a node (or mounts it), and removes it at the end.

    A named one would outlive the job where containers are global, which is Pyxis's default.
    """
    # --container-env puts values into a file of lines, so one with a newline would set variables of its own.
    carried = [(name, value) for name, value in plan.env if "\n" not in value]
    renamed = [(name, value) for name, value in plan.env if "\n" in value]
    return StepSpec(
        prelude=(
            *(Export(name, text(value)) for name, value in carried),
            *(prefixed(name, text(value)) for name, value in renamed),
        ),
        once_a_node=(),
        launcher=(
            text(f"--container-image={_image(plan)}"),
            _mounts(plan),
            text(f"--container-workdir={WORKDIR}"),
            *texts("--no-container-mount-home", "--no-container-entrypoint", "--no-container-remap-root"),
            text("--container-env=" + ",".join((*RENDEZVOUS, *(name for name, _ in carried)))),
        ),
        command=(*shell(rename=bool(renamed)), *launched_program(plan)),
    )


def _image(plan: Plan) -> str:
    if not plan.image.path.startswith("/"):
        raise UsageError(
            f"Pyxis would take {plan.image.path!r} for a registry's image", where="--image", mend="use an absolute path"
        )
    return plan.image.path


def _mounts(plan: Plan) -> Word:
    words: list[Text | Var] = [Text("--container-mounts="), Var(RUN_DIRECTORY), Text(f":{RESULTS}")]
    for mount in expressible_mounts(plan, mount_problem):
        words.append(Text(f",{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")))
    return tuple(words)
