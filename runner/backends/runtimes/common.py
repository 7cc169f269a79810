"""What every runtime needs: the launcher's command line, mounts, staged images, and what is left on nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from runner.backends.runtimes import Runtime
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, SCHEDULERS, RuntimeFacts
from runner.model.exit_codes import NOT_LOADED
from runner.model.plan import RESULTS, Plan
from runner.model.request import Mount
from runner.model.step import (
    JOB_ID,
    LIBRARY,
    LIVE,
    RUN_DIRECTORY,
    Argument,
    Export,
    Load,
    Statement,
    StepSpec,
    Text,
    Unset,
    Var,
    library_file,
    text,
    texts,
)

SHELL = Path(__file__).parent / "shell"
RANK = SHELL / "rank.sh"
# Where a runtime would let the image's value win, or could not carry a value, it travels under a prefix, and RANK gives
# it its name back: no value is on a command line, and every byte arrives.
PREFIX = "RUNNER_ENV_"
LIBRARY_PATH = "RUNNER_LIBRARY_PATH"

# The launcher's options for a wireup.
_LAUNCHERS: dict[str, tuple[str, ...]] = {
    "rendezvous": (),
    "torchrun": ("--wireup", "torchrun"),
    "own": ("--wireup", "own"),
}

# What the starters of tasks tell each task, and the launcher reads (gpu_runner_inside.launcher.world): name prefixes.
STARTERS = ("SLURM", "PMI_", "PALS_", "PBS_")
# The same of the scripts that start ranks themselves (supervise.sh, hosts.sh of the schedulers): whole names.
STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RUNNER_JOB_ID", "RUNNER_NODE")


def starters(plan: Plan) -> tuple[str, ...]:
    """The beginnings of the names of variables that each task has of its own, or of its job."""
    return (*STARTERS, *SCHEDULERS[plan.scheduler].variables)


def load_lines(plan: Plan) -> tuple[Statement, ...]:
    """The site's modules, conda or virtual environment, as the plan has them."""
    return (Load(tuple(texts(*argv) for argv in plan.load), NOT_LOADED),) if plan.load else ()


def loads(plan: Plan) -> tuple[Statement, ...]:
    """What makes a container runtime available; nothing of the loaded environment may reach Python in a container."""
    lines = load_lines(plan)
    return (*lines, Unset(("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD"))) if lines else ()


def carried(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The variables that must reach every rank: the plan's, and what RANK reads."""
    return (*plan.env, *(((LIBRARY_PATH, plan.library_path),) if plan.library_path else ()))


_RESULTS = text(RESULTS)


def launched_program(plan: Plan, *options: str, run: Argument = _RESULTS) -> tuple[Argument, ...]:
    """The launcher, with further options of its own, and below it the program.

    Args:
        run: the run directory as the rank sees it.
    """
    sizes = ",".join(str(count) for count in plan.tasks_per_node)
    wireup = _LAUNCHERS.get(plan.wireup, ("--wireup", "env"))
    own = ("--gpus", str(plan.gpus_per_node)) if plan.wireup == "own" else ()
    bind = ("--bind", "none") if plan.bind == "none" else ("--bind", "gpu-share") if plan.launch else ()
    first = ("--first-gpu", str(plan.launch.first_gpu)) if plan.launch and plan.launch.first_gpu else ()
    unset = ("--unset", ",".join(plan.unset)) if plan.unset else ()
    return (
        *texts("python3", "-u"),
        (*run, Text("/lib/launch.py")),
        text("--run"),
        run,
        *texts("--umask", f"{plan.umask:03o}", "--caches", plan.caches),
        *texts(
            "--world",
            str(plan.tasks),
            "--local-sizes",
            sizes,
            *wireup,
            *own,
            *bind,
            *first,
            *unset,
            *options,
        ),
        *texts("--", *plan.program),
    )


def shell(run: Argument = _RESULTS, *, directory: Argument = ()) -> tuple[Argument, ...]:
    """A bash that replaces itself by the words after it.

    Args:
        run: the run directory as the rank sees it.
        directory: where to start, for a runtime that has no option for that.
    """
    return (
        text("/bin/bash"),
        (*run, Text(f"/{LIBRARY}/{RANK.name}")),
        *((text("--cd"), directory) if directory else ()),
    )


def prefixed(name: str, value: Argument) -> Export:
    """An export under the prefix."""
    return Export(PREFIX + name, value)


def image_file(plan: Plan) -> Argument:
    """The image's file, as a path that no runtime mistakes for something else.

    Raises:
        UsageError: the path is not absolute.
    """
    if not plan.image.path.startswith("/"):
        raise UsageError(
            f"{_facts(plan).title} would take {plan.image.path!r} for a registry's image",
            where="--image",
            fix="use an absolute path",
        )
    return text(plan.image.path)


def image_reference(plan: Plan) -> str:
    """The image's reference, for a runtime that has images of its own.

    Raises:
        UsageError: the image was given as a file.
    """
    if plan.image.reference.startswith((".", "/", "~")) or plan.image.reference.endswith((".sqsh", ".sif")):
        raise UsageError(
            f"{_facts(plan).title} runs images of a registry, not the file {plan.image.reference!r}",
            where="--image",
            fix="push the image to a registry that the site can reach, and give its reference",
        )
    return plan.image.reference


def mount_problem(runtime: str, path: str) -> str | None:
    """Why a runtime cannot mount a host path, by its row in the table; None if it can."""
    facts = RUNTIMES[runtime]
    syntax = facts.mounts
    for character in syntax.forbidden:
        if character in path:
            return f"{facts.title} cannot mount a path with {character!r} in it: {path!r}"
    if syntax.only and not re.match(rf"/[{syntax.only.replace(' ', '')}]*\Z", path, re.ASCII):
        return f"{facts.title} cannot mount {path!r}: only {syntax.only} may stand in it"
    if syntax.absolute and not path.startswith("/"):
        return f"{facts.title} wants an absolute path to mount: {path!r}"
    return None


def mounted(plan: Plan) -> tuple[tuple[Mount, str], ...]:
    """The plan's mounts, each with the value of the runtime's mount option.

    Raises:
        UsageError: the runtime cannot mount a path, or not read-only.
    """
    syntax = _facts(plan).mounts
    values = []
    for mount in plan.mounts:
        for path in (mount.source, mount.target):
            why = mount_problem(plan.runtime, path)
            if why:
                raise UsageError(why, where="--mount", fix="mount a directory above it, or make a link to it")
        if mount.read_only and not syntax.read_only:
            what = f"{_facts(plan).title} cannot mount read-only"
            raise UsageError(what, where=f"--mount {mount.source}", fix="leave ':ro' out")
        value = syntax.pair.format(source=mount.source, target=mount.target)
        values.append((mount, value + (syntax.read_only if mount.read_only else syntax.writable)))
    return tuple(values)


def mount_options(plan: Plan, option: str) -> tuple[Argument, ...]:
    """The plan's mounts as ``OPTION VALUE``; raises UsageError as ``mounted``."""
    return tuple(word for _, value in mounted(plan) for word in texts(option, value))


def host_value(value: str) -> Argument:
    """A variable's value, where a rank sees the run directory under its own path: what is below RESULTS (such as NCCL's
    logs) is there.
    """
    below = value.removeprefix(f"{RESULTS}/")
    return text(value) if below == value else (Var(RUN_DIRECTORY), Text(f"/{below}"))


def host_directory(plan: Plan) -> Argument:
    """Where the program starts, as the host knows it."""
    for mount in plan.mounts:
        if mount.target == plan.workdir:
            return text(mount.source)
    return (Var(RUN_DIRECTORY), Text(plan.workdir.removeprefix(RESULTS)))


def _facts(plan: Plan) -> RuntimeFacts:
    return RUNTIMES[plan.runtime]


LEFTOVERS = Path(__file__).parent / "shell" / "leftovers.sh"


def node_job(plan: Plan) -> Argument:
    """The JOB of a name: several runs in one allocation have different ones."""
    return (Var("SLURM_JOB_ID"), Text("."), Var(JOB_ID)) if _shares_job(plan) else (Var(JOB_ID),)


def live_jobs(plan: Plan) -> tuple[Argument, Argument]:
    """The second and third argument of ``is_left``."""
    of_slurm = SCHEDULERS[plan.scheduler].launcher == "srun"
    shared = plan.settings.lets_share_nodes(dict(plan.directives))
    alone = plan.whole_nodes and not _shares_job(plan) and not shared
    return (Var(LIVE),) if of_slurm else text(""), text("yes" if alone else "no")


def _shares_job(plan: Plan) -> bool:
    """Whether several runs have Slurm's number of one job."""
    of_study = plan.launch is not None and SCHEDULERS[plan.scheduler].launcher == "srun"
    return plan.existing_allocation is not None or of_study


DIRECTORY = "runner_stage"  # variable of the batch script: the directory of this job on every node
_PREFIX = "gpu-runner-stage-"
_NAME = "/image.sqsh"
_PLACEHOLDER = "/\0image"  # no value of a user can contain a NUL
_STAGE = SHELL / "stage.sh"


def staged_step(plan: Plan, runtime: Runtime) -> StepSpec:
    """The runtime's step, from the staged file where the plan stages.

    Raises:
        UsageError: the runtime takes no image file; or as the runtime's own step.
    """
    if not plan.stage:
        return runtime.step(plan)
    image = msgspec.structs.replace(plan.image, path=_PLACEHOLDER)
    made = runtime.step(msgspec.structs.replace(plan, image=image))
    launcher, command = (tuple(map(_staged, words)) for words in (made.launcher, made.command))
    if made.at_end or (launcher, command) == (made.launcher, made.command):
        why = f"{plan.runtime} does not start from an image file, so there is nothing to stage"
        raise UsageError(why, where="--stage", fix="leave it out")
    copy = (
        *library_file(_STAGE),
        (Var(DIRECTORY),),
        *live_jobs(plan),
        *texts(plan.image.path, str(plan.image.size_bytes), plan.image.sha256),
    )
    return msgspec.structs.replace(
        made,
        prelude=(*made.prelude, Export(DIRECTORY, (Text(f"{plan.stage}/{_PREFIX}"), *node_job(plan)))),
        once_a_node=(*copy, *made.once_a_node),
        launcher=launcher,
        command=command,
        at_end=(*texts("rm", "-rf", "--"), (Var(DIRECTORY),)),
        does=f"copies the image to its disk{', ' if made.does else ''}{made.does}",
        files=(_STAGE, LEFTOVERS, *(path for path in made.files if path != LEFTOVERS)),
    )


def _staged(word: Argument) -> Argument:
    return tuple(part for old in word for part in _parts(old))


def _parts(part: Text | Var) -> Iterator[Text | Var]:
    if isinstance(part, Var) or _PLACEHOLDER not in part.value:
        yield part
        return
    before, _, after = part.value.partition(_PLACEHOLDER)
    yield from text(before) if before else ()
    yield from (Var(DIRECTORY), Text(_NAME + after))
