"""Shifter: ``srun shifter`` with a registry's image (options and rules as in its source, 21.12)."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from runner.backends.runtimes import answer_of, common
from runner.core.errors import UsageError
from runner.model.backends import MountSyntax, RuntimeFacts
from runner.model.plan import RESULTS, Plan
from runner.model.request import Mount
from runner.model.step import Argument, StepSpec, Text, text, texts

FACTS = RuntimeFacts(
    title="Shifter",
    image="registry",
    mounts=MountSyntax(only="A-Z a-z 0-9 _ . + / -"),  # userInputPathFilter drops all else without a message
    program="shifter",
    driver="Shifter's module for GPUs brings the driver (`gpu` at NERSC: `ways.shifter.modules` of the site file); "
    "ask the site for its name",
    srun_option="image",
    shows_home=True,
    versions={"shifter": ("shifter", "--version")},
    preference=20,
)

_MISSING = 'for d in "$@"; do [ -d "$d" ] || printf "%s\\n" "$d"; done'
_CLOSED = ("/dev", "/etc", "/opt/udiImage", "/proc", "/var")  # validateVolumeMap_userRequest


def step(plan: Plan) -> StepSpec:
    """One ``shifter`` a rank, in the image that the head of the script has made ready on every node.

    The image's own variables win over the job's (its documented order), and TMPDIR and LD_* are dropped: all travel
    under a prefix. A mount point must exist in the image; ours have RESULTS. Where the site's containers show the
    host's paths, the run directory and the program's own need none.
    """
    image = f"docker:{common.image_reference(plan)}"
    modules = ",".join(plan.modules)
    run, value, start = common.RUN, common.host_value, common.host_directory(plan)
    if not plan.host_paths:
        run, value, start = text(RESULTS), text, text(plan.workdir)
    return StepSpec(
        prelude=(
            *common.loads(plan),
            *(common.prefixed(name, value(content)) for name, content in common.carried(plan)),
        ),
        command=(
            *texts("shifter", f"--image={image}", *((f"--module={modules}",) if modules else ())),
            *(() if plan.host_paths else ((Text("--volume="), *common.RUN_AT_RESULTS),)),
            *(_volume(mount, option) for mount, option in common.mounted(plan) if not _is_shown(plan, mount)),
            (Text("--workdir="), *start),
            *(*common.shell(run), *common.launched_program(plan, run=run)),
        ),
        files=common.RANK_FILES,
        directives=(("image", image), *((("module", modules),) if modules else ())),
    )


def _is_shown(plan: Plan, mount: Mount) -> bool:
    """Whether a mount is needless, as the container shows the path."""
    same = posixpath.normpath(mount.source) == posixpath.normpath(mount.target)
    return plan.host_paths and not mount.read_only and (same or mount.target == plan.workdir)


def _volume(mount: Mount, value: str) -> Argument:
    target = posixpath.normpath(mount.target)
    if target == "/opt" or any(target == closed or target.startswith(f"{closed}/") for closed in _CLOSED):
        raise UsageError(
            f"Shifter mounts nothing at {target}",
            where=f"--mount {mount.source}:{mount.target}",
            fix="choose another mount point, which must exist in the image",
        )
    return text(f"--volume={value}")


def image_problem(reference: str, mount_points: Sequence[str], *, local: bool) -> tuple[str, str]:
    """The image is on the site's shelf, and has the mount points: Shifter makes none."""
    shelf = answer_of("shifterimg", "lookup", reference)
    if shelf is not None and (shelf.code or not shelf.out.strip()):
        return f"Shifter has no image {reference}", f"shifterimg pull {reference}"
    look = (f"--image=docker:{reference}", "/bin/sh", "-c", _MISSING, "sh", *mount_points)
    seen = answer_of("shifter", *look) if mount_points else None
    lacking = seen.out.split() if seen is not None and not seen.code else []
    if not lacking:
        return "", ""
    return (
        f"{reference} lacks the mount points {', '.join(lacking)}, and Shifter makes none",
        f"add `RUN mkdir -p {' '.join(lacking)}` to its Dockerfile, or mount at directories that it has",
    )
