"""Enroot without Pyxis: ``enroot start`` under any scheduler (options and file formats as in Enroot 4.1)."""

from __future__ import annotations

from runner.backends import LEFTOVERS
from runner.backends.runtimes import common
from runner.core.errors import UsageError
from runner.model.backends import MountSyntax, RuntimeFacts
from runner.model.plan import RESULTS, Plan
from runner.model.step import RENDEZVOUS, Argument, Export, StepSpec, Text, Var, library_file, text

# Enroot's hook reads these variables as NVIDIA's container runtime does (Enroot 4.1, conf/hooks/98-nvidia.sh).
BY_ENROOTS_HOOK = (
    "Enroot's hook 98-nvidia.sh brings the driver, if the image sets NVIDIA_VISIBLE_DEVICES=all and "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility, as NVIDIA's do; if it does, ask the site for the hook and for "
    "nvidia-container-cli (libnvidia-container)"
)
FACTS = RuntimeFacts(
    title="Enroot",
    image="squashfs",
    # --mount is a line of an fstab whose fields are separated by ':' (4.1, runtime.sh).
    mounts=MountSyntax(
        forbidden=": \t\n\v\f\r\\",
        pair="{source}:{target}:none:x-create=auto,rbind",
        read_only=",ro",
        writable=",rw",
    ),
    program="enroot",
    user_namespaces=True,
    driver=BY_ENROOTS_HOOK,
    failure=r"(?:^|[\s/])enroot(?:-\w+)?: |/enroot/\S+\.sh: line",
    versions={"enroot": ("enroot", "version")},
    preference=40,
)

_SHELL = common.SHELL / "enroot.sh"


def step(plan: Plan) -> StepSpec:
    """The image is unpacked once a node, under a name of the job and the node, and removed at the end.

    The root is read-only, home is not mounted.
    """
    env = common.carried(plan)
    for variable, value in env:
        if "\n" in value:
            raise UsageError(
                f"Enroot cannot carry {variable}: its environment files have a line for each variable",
                where=f"--env {variable}",
                fix="leave newlines out of the value",
            )
    script, rc = library_file(_SHELL), (*common.RUN, Text("/enroot.rc"))
    name: Argument = (Text("runner-"), *common.node_job(plan))
    mounts = (
        *(text("--mount"), (*common.RUN, Text(f":{RESULTS}:none:x-create=auto,rbind,rw"))),
        *common.mount_options(plan, "--mount"),
    )
    # Patterns of the names that each task's container gets.
    names = (*(f"{prefix}*" for prefix in (*common.starters(plan), common.PREFIX)), *common.started(plan))
    return StepSpec(
        prelude=(
            *common.loads(plan),
            *(Export(f"ENROOT_{setting}", text("n")) for setting in ("MOUNT_HOME", "ROOTFS_WRITABLE", "REMAP_ROOT")),
            *(common.prefixed(variable, text(_quoted(value))) for variable, value in env),
            *(common.prefixed(variable, (Var(variable),)) for variable in RENDEZVOUS),
        ),
        once_a_node=(*script, text("create"), rc, name, common.image_file(plan), *common.live_jobs(plan)),
        command=(
            *(*script, text("start"), rc, name),
            *(text(" ".join((*names, "CUDA_VISIBLE_DEVICES"))), text(str(len(mounts))), *mounts),
            *(*common.shell(directory=text(plan.workdir)), *common.launched_program(plan)),
        ),
        at_end=(*script, text("remove"), name),
        does="unpacks the image",
        files=(_SHELL, LEFTOVERS, *common.RANK_FILES),
    )


def _quoted(value: str) -> str:
    """Enroot takes a pair of quotes, of either kind, off a value, and does so twice: one that has a pair gets two more
    (``common::envfmt``, before and after the hooks).
    """
    ends = value.rstrip(" \t\v\f\r")
    return f'""{value}""' if len(ends) > 1 and ends[0] in "\"'" and ends[-1] in "\"'" else value
