"""What every runtime needs: the launcher's command line, mounts, staged images, and what is left on nodes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec

from runner.backends import LEFTOVERS
from runner.backends.runtimes import Runtime
from runner.core import paths
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, SCHEDULERS
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
    Run,
    Statement,
    StepSpec,
    Text,
    Unset,
    Var,
    library_file,
    text,
    texts,
)  # fmt: skip

SHELL = Path(__file__).parent / "shell"
RANK = SHELL / "rank.sh"
RANK_FILES = (RANK, paths.share("recipes") / "lib" / "launch.py")  # what a rank is started with
# Where a runtime would let the image's value win, or could not carry a value, it travels under a prefix, and RANK gives
# it its name back: no value is on a command line, and every byte arrives.
PREFIX = "RUNNER_ENV_"
# What the scripts that start ranks themselves (supervise.sh, hosts.sh of the schedulers) tell each rank.
_STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RUNNER_JOB_ID", "RUNNER_NODE")
RUN: Argument = (Var(RUN_DIRECTORY),)
RUN_AT_RESULTS: Argument = (*RUN, Text(f":{RESULTS}"))  # the value of most runtimes' mount option

_RESULTS = text(RESULTS)
_STAGE = SHELL / "stage.sh"
_STAGED = "runner_stage"  # variable of the batch script: the directory of this job on every node
_PLACEHOLDER = "/\0image"  # no value of a user can contain a NUL


def starters(plan: Plan) -> tuple[str, ...]:
    """The beginnings of the names of variables that each task has from what starts it, or from its job: what the
    launcher reads (gpu_runner_inside.launcher.world).
    """
    return ("SLURM", "PMI_", "PALS_", "PBS_", *SCHEDULERS[plan.scheduler].variables)


def started(plan: Plan) -> tuple[str, ...]:
    """Names of variables that each rank has from the job's script."""
    return (*_STARTED, *(("RUNNER_TRUST",) if plan.trust else ()))


def load_lines(plan: Plan) -> tuple[Statement, ...]:
    """The site's modules, conda or virtual environment, as the plan has them."""
    lines = Load(tuple(texts(*argv) for argv in plan.load), NOT_LOADED)
    return (lines, Run(texts("runner_whole_paths"), NOT_LOADED)) if plan.load else ()


def loads(plan: Plan) -> tuple[Statement, ...]:
    """What makes a container runtime available; nothing of the loaded environment may reach Python in a container."""
    return (*load_lines(plan), Unset(("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD"))) if plan.load else ()


def carried(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The variables that must reach every rank: the plan's, and what RANK reads."""
    return (*plan.env, *((("RUNNER_LIBRARY_PATH", plan.library_path),) if plan.library_path else ()))


def launched_program(plan: Plan, *options: str, run: Argument = _RESULTS) -> tuple[Argument, ...]:
    """The launcher, with further options of its own, and below it the program.

    Args:
        run: the run directory as the rank sees it.
    """
    words, starts, without = _started(plan)
    wireups = {"rendezvous": (), "torchrun": ("--wireup", "torchrun"),
               "own": ("--wireup", "own", "--gpus", str(plan.gpus_per_node))}  # fmt: skip
    bind = ("--bind", "none") if plan.bind == "none" else ("--bind", "gpu-share") if plan.launch else ()
    first = ("--first-gpu", str(plan.launch.first_gpu)) if plan.launch and plan.launch.first_gpu else ()
    hidden = (*plan.unset, *without)
    unset = ("--unset", ",".join(hidden)) if hidden else ()
    return (
        # A home directory in /tmp may have another user's modules, and a directory of compiled ones that is not judged
        # yet (caches.py): the program gets what is left of PYTHONPYCACHEPREFIX.
        *texts("python3", "-s", "-u", "-X", "pycache_prefix="),
        *((*run, Text("/lib/launch.py")), text("--run"), run),
        *texts("--umask", f"{plan.umask:03o}", "--caches", plan.caches, "--world", str(plan.tasks)),
        *texts("--local-sizes", ",".join(map(str, plan.tasks_per_node))),
        *texts(*wireups.get(plan.wireup, ("--wireup", "env")), *starts, *bind, *first, *unset, *options, "--", *words),
    )


def _started(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The program with the arguments that a starter gets, the launcher's options that complete them, and the variables
    that the starter must not see.
    """
    from runner.planning.starters import KINDS, additions, starts_of  # not for a look at a run

    without = tuple(dict.fromkeys(name for each in plan.starters if not each.line for name in KINDS[each.name].without))
    calls: list[str] = []
    for each in plan.starters:
        given = additions(each, *starts_of(plan, each), by_gpu=plan.device == "cuda")
        if not each.line:
            fill = ("--fill", f"{each.at},{len(given)}")
            return (*plan.program[: each.at], *given, *plan.program[each.at :]), fill, without
        if each.call and given:
            calls += ["--call", shlex.join((str(len(each.call)), *each.call, *given))]
    has_all = ("--fill", "0,0") * bool(plan.starters)  # an empty place: no argument is missing
    return plan.program, tuple(calls) or has_all, without


def shell(run: Argument = _RESULTS, *, directory: Argument = ()) -> tuple[Argument, ...]:
    """A bash that replaces itself by the words after it.

    Args:
        run: the run directory as the rank sees it.
        directory: where to start, for a runtime that has no option for that.
    """
    start = (text("--cd"), directory) if directory else ()
    return (text("/bin/bash"), (*run, Text(f"/{LIBRARY}/{RANK.name}")), *start)


def prefixed(name: str, value: Argument) -> Export:
    """An export under the prefix."""
    return Export(PREFIX + name, value)


def image_file(plan: Plan) -> Argument:
    """The image's file, as a path that no runtime mistakes for something else. Raises UsageError: the path is not
    absolute.
    """
    if not plan.image.path.startswith("/"):
        what = f"{RUNTIMES[plan.runtime].title} would take {plan.image.path!r} for a registry's image"
        raise UsageError(what, where="--image", fix="use an absolute path")
    return text(plan.image.path)


def image_reference(plan: Plan) -> str:
    """The image's reference, for a runtime that has images of its own. Raises UsageError: the image was given as a
    file.
    """
    if plan.image.reference.startswith((".", "/", "~")) or plan.image.reference.endswith((".sqsh", ".sif")):
        raise UsageError(
            f"{RUNTIMES[plan.runtime].title} runs images of a registry, not the file {plan.image.reference!r}",
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
    """The plan's mounts, each with the value of the runtime's mount option. Raises UsageError: the runtime cannot mount
    a path, or not read-only.
    """
    facts = RUNTIMES[plan.runtime]
    values = []
    for mount in plan.mounts:
        for path in (mount.source, mount.target):
            if why := mount_problem(plan.runtime, path):
                raise UsageError(why, where="--mount", fix="mount a directory above it, or make a link to it")
        if mount.read_only and not facts.mounts.read_only:
            what = f"{facts.title} cannot mount read-only"
            raise UsageError(what, where=f"--mount {mount.source}", fix="leave ':ro' out")
        ends = facts.mounts.read_only if mount.read_only else facts.mounts.writable
        values.append((mount, facts.mounts.pair.format(source=mount.source, target=mount.target) + ends))
    return tuple(values)


def mount_options(plan: Plan, option: str) -> tuple[Argument, ...]:
    """The plan's mounts as ``OPTION VALUE``; raises UsageError as ``mounted``."""
    return tuple(word for _, value in mounted(plan) for word in texts(option, value))


def host_value(value: str) -> Argument:
    """A variable's value, where a rank sees the run directory under its own path: what is below RESULTS (such as NCCL's
    logs) is there.
    """
    below = value.removeprefix(f"{RESULTS}/")
    return text(value) if below == value else (*RUN, Text(f"/{below}"))


def host_directory(plan: Plan) -> Argument:
    """Where the program starts, as the host knows it."""
    source = next((mount.source for mount in plan.mounts if mount.target == plan.workdir), "")
    return text(source) if source else (*RUN, Text(plan.workdir.removeprefix(RESULTS)))


def node_job(plan: Plan) -> Argument:
    """The job in the name of a thing on a node: several runs in one allocation have different ones."""
    return (Var("SLURM_JOB_ID"), Text("."), Var(JOB_ID)) if _shares_job(plan) else (Var(JOB_ID),)


def live_jobs(plan: Plan) -> tuple[Argument, Argument]:
    """The second and third argument of ``is_left`` in LEFTOVERS."""
    shared = plan.settings.lets_share_nodes(dict(plan.directives))
    alone = plan.whole_nodes and not _shares_job(plan) and not shared
    return (Var(LIVE),) if SCHEDULERS[plan.scheduler].has_srun else text(""), text("yes" if alone else "no")


def _shares_job(plan: Plan) -> bool:
    """Whether several runs have Slurm's number of one job."""
    of_study = plan.launch is not None and SCHEDULERS[plan.scheduler].has_srun
    return plan.existing_allocation is not None or of_study


def staged_step(plan: Plan, runtime: Runtime) -> StepSpec:
    """The runtime's step; where the plan stages (``--stage``), from a copy of the image on each node's own disk: the
    runtime makes its step for a placeholder, which is replaced by the copy's path.

    Raises:
        UsageError: the runtime takes no image file; or as the runtime's own step.
    """
    if not plan.stage:
        return runtime.step(plan)
    image = msgspec.structs.replace(plan.image, path=_PLACEHOLDER)
    made = runtime.step(msgspec.structs.replace(plan, image=image))
    launcher, command = (tuple(map(_with_copy, words)) for words in (made.launcher, made.command))
    if made.at_end or (launcher, command) == (made.launcher, made.command):
        why = f"{plan.runtime} does not start from an image file, so there is nothing to stage"
        raise UsageError(why, where="--stage", fix="leave it out")
    number = (Text("~"), Var("RANDOM"), Var("RANDOM"))  # bash's: no other user can take the name before
    copy = (
        *(*library_file(_STAGE), (Var(_STAGED),), *live_jobs(plan)),
        *texts(plan.image.path, str(plan.image.size_bytes), plan.image.sha256),
    )
    return msgspec.structs.replace(
        made,
        prelude=(*made.prelude, Export(_STAGED, (Text(f"{plan.stage}/gpu-runner-stage-"), *node_job(plan), *number))),
        once_a_node=(*copy, *made.once_a_node),
        launcher=launcher,
        command=command,
        at_end=(*texts("rm", "-rf", "--"), (Var(_STAGED),)),
        does=f"copies the image to its disk{', ' if made.does else ''}{made.does}",
        files=(_STAGE, LEFTOVERS, *(path for path in made.files if path != LEFTOVERS)),
    )


def _with_copy(word: Argument) -> Argument:
    parts: list[Text | Var] = []
    for part in word:
        if isinstance(part, Var) or _PLACEHOLDER not in part.value:
            parts.append(part)
            continue
        before, _, after = part.value.partition(_PLACEHOLDER)
        parts += [*(text(before) if before else ()), Var(_STAGED), Text(f"/image.sqsh{after}")]
    return tuple(parts)
