"""Our command for a batch script, and what of the script it leaves out, and why. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.backends.schedulers.slurm.options import OTHER_NAMES, PLANNED, REFUSED
from runner.batch_scripts.placement import Placement, placement
from runner.batch_scripts.reading import BatchScript, Launch
from runner.core.text import counted, first_of, gpus_text
from runner.model.backends import NATIVE
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, parse_mount, parse_sbatch_time_s
from runner.planning.shell_text import Command
from runner.planning.shell_words import UNREAD, as_written, unclosed
from runner.planning.starters import KINDS, plain

# What the launcher gives to each rank.
_MEETS = re.compile(
    r"MASTER_(ADDR|PORT)|(LOCAL_)?WORLD_SIZE|(LOCAL_|NODE_|GROUP_)?RANK|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|NNODES|SLURM_\w+"
    r"|SRUN_CPUS_PER_TASK"
)
_HERE = (*REFUSED, "container-image", "container-mounts", "exclusive")
_MOST_LINES = 8  # that a reason names
_QUIET = frozenset(
    ("set", "echo", "cd", ":", "[", "[[", "exit", "wait", "return", "tee", "true", "false", "clear", "printf", "trap")
)


@dataclass(frozen=True)
class Translation:
    """Our command.

    Attributes:
        values: of a request (``runner.preparation.request.make_request``); empty where ``refused`` says why there is
            no command.
        dropped: line (0 for none), what is left out, and why.
        placed: as the script places it; None where that is unknown.
    """

    values: dict[str, Any]
    dropped: tuple[tuple[int, str, str], ...]
    refused: str
    placed: Placement | None


def translation(script: BatchScript) -> Translation:
    """Our command for the script's one plain launch line."""
    launch = next(iter(script.launches), None)
    if launch is None:
        return Translation({}, (), "no line is seen that starts a program", None)
    placed = placement(launch)
    why = _obstacle(script, launch, placed)
    known = placed if isinstance(placed, Placement) else None
    if why or known is None:
        return Translation({}, (), why, known)
    gpus = known.gpus if launch.starter is None and known.processes == 1 else known.processes
    values: dict[str, Any] = {"gpus": known.nodes * gpus, "nodes": known.nodes}
    if launch.starter is None and known.processes == 1 and gpus > 1:
        values["wireup"] = "own"
    values |= dict(_options(script, launch))
    own = _own(launch, known)
    values["arguments"] = _program(own)
    return Translation(values, tuple(_dropped(script, launch, values, own)), "", known)


def _obstacle(script: BatchScript, launch: Launch, placed: Placement | str) -> str:
    """Why there is no command of ours; empty where there is one."""
    if isinstance(placed, str):
        return placed
    lines = first_of([str(line) for line in sorted({each.line for each in script.launches})], _MOST_LINES)
    shared = launch.starter is None and placed.processes > placed.gpus > 0
    reasons = (
        (unclosed(script.text) > 0, "a quote or a bracket is not closed"),
        (len(script.launches) > 1, f"it starts several programs, in lines {lines}: one `submit` for each"),
        (
            not launch.command.is_plain,
            f"only a run tells whether line {lines} is reached: a condition, a loop or a function",
        ),
        ("array" in script.header.options, "it is an array, and a run is one job: --sweep makes several"),
        (UNREAD in launch.words[0], f"only the job knows the program's name: {as_written(launch.words[0])}"),
        (launch.starter is not None and placed.starts > 1, f"it starts {launch.name} {placed.starts} times on a node"),
        (not _own(launch, placed), f"a run starts its ranks without {launch.name}, and what that starts is no Python"),
        (not placed.gpus, "it asks for no GPU, and a run has a rank for each"),
        (shared, f"{counted(placed.processes, 'task')} share {gpus_text(placed.gpus)}: a run has a rank for each GPU"),
    )
    return next((text for holds, text in reasons if holds), "")


def _options(script: BatchScript, launch: Launch) -> Iterator[tuple[str, Any]]:
    given = script.header.options
    names = {"job-name": "job_name", "account": "account", "partition": "queue"}
    if not PLAIN_NAME.match(given.get("job-name", "")):
        del names["job-name"]
    yield from ((ours, given[name]) for name, ours in names.items() if given.get(name))
    if "time" in given:
        with suppress(ValueError):  # refused by sbatch, too
            yield "walltime_s", parse_sbatch_time_s(given["time"])
    kind = re.search(
        r"(?:^|gpu:)([A-Za-z][\w.-]*):\d", given.get("gpus-per-node") or given.get("gres") or given.get("gpus", "")
    )
    if kind and kind[1] != "gpu":
        yield "gpu_type", kind[1]
    if launch.container and launch.container not in ("shifter", "singularity_wrapper", "apptainer_wrapper"):
        yield "image", as_written(launch.container)
    mounts = launch.options.get("container-mounts", "")
    with suppress(ValueError):  # listed as left out
        if mounts and UNREAD not in mounts:
            places = [(each if ":" in each else f"{each}:{each}") for each in mounts.split(",")]
            yield "mounts", tuple(map(parse_mount, places))
    if not launch.container:
        yield "runtime", NATIVE
    if not launch.container and (modules := [name for each in script.commands for name in _modules(each)]):
        yield "modules", tuple(modules)
    more = [(name, value) for name, value in given.items() if name not in PLANNED and name not in _HERE]
    if more:
        yield "scheduler_options", tuple(more)
    env = [(name, value) for name, value in launch.env.items() if _passes(name, value)]
    if env:
        yield "env", tuple(env)


def _modules(command: Command) -> tuple[str, ...]:
    """The modules that a command loads: ``module load A B``, ``ml A B``."""
    name, *rest = command.words or ("",)
    if name == "ml" and rest[:1] not in (["load"], ["add"], ["purge"], ["use"], ["restore"]):
        rest = ["load", *rest]
    is_loading = name in ("module", "ml") and rest[:1] in (["load"], ["add"])
    return tuple(rest[1:]) if is_loading and not any(each.startswith("-") or UNREAD in each for each in rest) else ()


def _passes(name: str, value: str) -> bool:
    """Whether a variable is for the program: known, and neither the launcher's nor a part of the line itself."""
    return not _MEETS.fullmatch(name) and UNREAD not in value and not re.search(r"[\n\0]|\s--?\w|\.py\b", value)


def _own(launch: Launch, placed: Placement) -> tuple[str, ...]:
    """The program with its starter, without counts: without a starter that forms no world of several nodes here."""
    is_left = launch.starter is not None and placed.nodes > 1 and not KINDS[launch.starter.name].several
    return plain(launch.starter) if is_left and launch.starter else launch.own


def _program(own: tuple[str, ...]) -> tuple[str, ...]:
    """Where only the job knows a word, a shell there fills it in."""
    if not any(UNREAD in word for word in own):
        return own
    parts = (re.split(rf"{UNREAD}+", word) for word in own)
    text = " ".join(
        "".join(part if at % 2 else part and shlex.quote(part) for at, part in enumerate(each)) for each in parts
    )
    return ("bash", "-c", text)


def _dropped(
    script: BatchScript, launch: Launch, values: Mapping[str, Any], own: tuple[str, ...]
) -> Iterator[tuple[int, str, str]]:
    for each in script.header.directives:
        if each.name == "job-name" and not PLAIN_NAME.match(each.value):
            yield each.line, f"--{each.name}={each.value}", f"a run's name: {PLAIN_NAME_FIX}"
        if each.name in REFUSED or each.name == "exclusive":
            yield each.line, f"--{each.name}", REFUSED.get(each.name, "a job with all GPUs of its nodes has them alone")
    for name in launch.options:
        is_taken = name in (*PLANNED, "container-image") or (name == "container-mounts" and "mounts" in values)
        if not is_taken:
            yield launch.line, f"srun --{name}", OTHER_NAMES.get(f"--{name}", "a run has its own srun")
    if own != launch.own:
        before = " ".join(launch.words[: len(launch.words) - len(own)])
        yield launch.line, as_written(before), "a run starts a rank for each GPU itself"
    elif launch.stated:
        yield launch.line, f"{launch.name}'s counts and rendezvous", "a run gives them to it"
    for command in script.commands:
        if command.line != launch.line:
            yield from ((command.line, what, why) for what, why in _around(command, in_image=bool(launch.container)))


def _around(command: Command, *, in_image: bool) -> Iterator[tuple[str, str]]:
    """What of a command around the launch is left out, and why."""
    name, text = "".join(command.words[:1]), as_written(" ".join(command.words))
    if not name:
        for variable, value in ((name, value) for name, value in command.env if name in command.environment):
            if _MEETS.fullmatch(variable):
                yield variable, "the launcher gives it to each rank"
            elif UNREAD in value and not re.search(r"\s--?\w|\.py\b", value):
                yield variable, f"only the job knows its value: {as_written(value)}"
    elif name in ("module", "ml", "source", ".", "conda", "micromamba", "mamba"):
        if in_image or not _modules(command):
            where = "the image's own" if in_image else "that of the shell that submits, or --env-name"
            yield text, f"a run's environment is {where}"
    elif name not in _QUIET:
        yield text[:80], "a run starts the program alone; do it before"
