"""Enroot without Pyxis: ``enroot start`` under any scheduler (options and file formats as in Enroot 4.1)."""

from __future__ import annotations

from runner.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.step import JOB_ID, RENDEZVOUS, RUN_DIRECTORY, Argument, Export, StepSpec, Text, Var, text, texts
from runner.runtimes.common import (
    PREFIX,
    STARTED,
    STARTERS,
    carried,
    image_file,
    launched_program,
    loads,
    mount_options,
    prefixed,
    shell,
)

# Stands for the image's command script, which would run its entry point first. A file: no pipe reaches Enroot's own
# namespace ("cp: cannot stat '/dev/fd/63'", 4.1.2). Each node writes the same one, whole.
_RC: Argument = (Var(RUN_DIRECTORY), Text("/enroot.rc"))
_CREATE = """printf '%s\\n' 'exec "$@"' >"$1.$(hostname)" && mv -f -- "$1.$(hostname)" "$1" && shift && exec "$@\""""
# enroot clears the environment, and --env NAME takes the host's value: those of each task are named in the task.
_TASK = (
    'runner_words=(--rc "$1"); shift; '
    + "for runner_i in "
    + " ".join((*(f'"${{!{prefix}@}}"' for prefix in (*STARTERS, PREFIX)), *STARTED))
    + ' CUDA_VISIBLE_DEVICES; do [ -z "${!runner_i+x}" ] || runner_words+=(--env "$runner_i"); done; '
    + 'exec enroot start "${runner_words[@]}" "$@"'
)


def step(plan: Plan) -> StepSpec:
    """The image is unpacked once a node, under the job's own name, and removed at the end.

    A name that another job has left would bring its root back. The root is read-only, home is not mounted.
    """
    env = carried(plan)
    for variable, value in env:
        if "\n" in value:
            raise UsageError(
                f"Enroot cannot carry {variable}: its environment files have a line for each variable",
                where=f"--env {variable}",
                fix="leave newlines out of the value",
            )
    name: Argument = (Text("runner-"), Var(JOB_ID))
    return StepSpec(
        prelude=(
            *loads(plan),
            Export("ENROOT_MOUNT_HOME", text("n")),
            Export("ENROOT_ROOTFS_WRITABLE", text("n")),
            *(prefixed(variable, text(_quoted(value))) for variable, value in env),
            *(prefixed(variable, (Var(variable),)) for variable in RENDEZVOUS),
        ),
        once_a_node=(
            *texts("/bin/bash", "-c", _CREATE, "bash"),
            _RC,
            *texts("enroot", "create", "--force", "--name"),
            name,
            image_file(plan),
        ),
        launcher=(),
        command=(
            *texts("/bin/bash", "-c", _TASK, "bash"),
            _RC,
            *(text("--mount"), (Var(RUN_DIRECTORY), Text(f":{RESULTS}:none:x-create=auto,rbind,rw"))),
            *mount_options(plan, "--mount"),
            name,
            *shell(plan, rename=True, change_directory=True),
            *launched_program(plan),
        ),
        at_end=(*texts("enroot", "remove", "--force"), name),
    )


def _quoted(value: str) -> str:
    """Enroot takes a pair of quotes, of either kind, off a value, and does so twice: one that has a pair gets two more
    (``common::envfmt``, before and after the hooks).
    """
    ends = value.rstrip(" \t\v\f\r")
    return f'""{value}""' if len(ends) > 1 and ends[0] in "\"'" and ends[-1] in "\"'" else value
