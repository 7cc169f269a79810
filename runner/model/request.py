"""What a user asks for: one job; a recipe's own words; and the names that stand in both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

import msgspec

# How ranks find each other; ``torchrun``: by our rendezvous, too, under torchrun's variable names; ``own``: the program
# starts processes of its own, and is the only task.
Wireup = Literal["rendezvous", "torchrun", "pmix", "pmi2", "mpich", "own"]
# How many devices are in one world: so many, ``any`` number, or ``none``, as programs work each for itself.
World = Literal["none", "any"] | int
# Where caches are that no variable places. ``shell``: as in this shell; ``home``: in the home directory, and
# those of compilers on each node; ``node``: on each node, as programs do not see the home directory.
Caches = Literal["shell", "home", "node"]
# A file, a file, a name that the runtime resolves, or no image at all.
ImageForm = Literal["squashfs", "sif", "registry", "none"]

PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
PLAIN_NAME_FIX = "use 1 to 64 of A-Z a-z 0-9 . _ -"


Transport = Literal["verbs", "libfabric", "sockets"]
# full: training as it is. coordination: as many tensors negotiated, a few bytes each. uncoupled: every rank for itself.
RunArm = Literal["full", "coordination", "uncoupled"]
ARMS: tuple[RunArm, ...] = get_args(RunArm)

# Names as NCCL's log gives them. ``IBext_v8`` and the like: NVIDIA's HPC-X plugin. ``Libfabric``, ``AWS Libfabric``:
# aws-ofi-nccl, newer and older. ``gIB``: Google's, over RoCE. UCX and other plugins run over several transports: their
# names tell none.
_NAMES: tuple[tuple[str, Transport], ...] = (
    (r"g?IB|IBext\w*|Spectrum-?X\w*", "verbs"),
    (r"(AWS )?Libfabric|OFI|AWS OFI", "libfabric"),
    (r"Socket", "sockets"),
)


def transport_of(network: str) -> Transport | None:
    """The class of a network that NCCL names; None where the name does not tell."""
    return next((made for names, made in _NAMES if re.fullmatch(names, network, re.IGNORECASE)), None)


Option = str | int | float | bool | None


def written(value: Option) -> str:
    """A value as ``--set``, and ``limits``, take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder with ``recipe.yaml`` and the program that it runs.

    Attributes:
        image: image reference; the site chooses the tag where it has none.
        program: argument list; it starts in the recipe's own directory.
        framework: what forms the world: ``horovod``, or ``none`` for programs that only read the environment.
        result: ``throughput`` where the program must leave a measured result, ``none`` where it only runs, ``if-left``
            where it may leave one, which is then held to the same proof.
        needs: Python modules that the program imports besides the standard library; the image holds them, and where
            there is no image this machine must.
        processes: ``per-gpu`` where a rank is started for each GPU, ``own`` where the program starts its own on a node.
        options: each becomes ``--key value`` (true: ``--key``; false or null: left out), overridden by ``--set``.
        choices: the values that an option may have, where they are few; `submit` refuses any other.
        limits: option -> its value -> the values that other options may have with it.
        samples_option: option that holds the samples (images) of a rank and step; empty where there is none.
        env: environment of every rank; null takes away what the site sets.
    """

    name: str
    description: str
    image: str
    program: tuple[str, ...]
    framework: Literal["horovod", "none"] = "horovod"
    result: Literal["throughput", "none", "if-left"] = "none"
    needs: tuple[str, ...] = ()
    processes: Literal["per-gpu", "own"] = "per-gpu"
    options: dict[str, Option] = {}
    choices: dict[str, tuple[str | int, ...]] = {}
    limits: dict[str, dict[str, dict[str, tuple[str | int | bool, ...]]]] = {}
    samples_option: str = ""
    env: dict[str, str | None] = {}


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory or file of the host, seen in the container."""

    source: str
    target: str
    read_only: bool = False


def parse_mount(text: str) -> Mount:
    """``SRC:DST[:ro]``; a relative SRC stays relative. Raises ValueError: it is something else, or begins with
    ``~NAME`` of an unknown user.
    """
    parts = text.split(":")
    read_only = len(parts) == 3 and parts[2] in ("ro", "rw") and parts.pop() == "ro"
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{text!r} is not SRC:DST[:ro]")
    try:
        source = Path(parts[0]).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{text!r}: {error}") from None
    return Mount(str(source), parts[1], read_only)


def parse_duration_s(text: str) -> int:
    """``M:S``, ``H:M:S`` or ``D-H:M:S`` into seconds.

    Slurm would read a lone number as minutes; to prevent surprises, a lone number is refused.

    Raises:
        ValueError: it is something else, or no time at all.
    """
    if not re.fullmatch(r"(\d{1,3}-)?\d{1,4}(:\d{1,2}){1,2}", text, re.ASCII):
        raise ValueError(f"{text!r} is not M:S, H:M:S or D-H:M:S (10:00 is ten minutes, 2:00:00 two hours)")
    days, _, clock = text.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    seconds += int(days or 0) * 86400
    if seconds == 0:
        raise ValueError("a time limit of zero")
    return seconds


def parse_sbatch_time_s(text: str) -> int:
    """``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``, as sbatch reads a time limit, into seconds.

    Raises:
        ValueError: it is something else, or no limit.
    """
    if not re.fullmatch(r"(\d{1,4}-)?\d{1,6}(:\d{1,2}){0,2}", text, re.ASCII):
        raise ValueError(f"{text!r} is no time of sbatch: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S (30 is 30 minutes)")
    days, dash, clock = text.rpartition("-")
    parts = [*map(int, clock.split(":"))]
    units = (3600, 60, 1) if dash or len(parts) > 2 else (60, 1)
    seconds = int(days or 0) * 86400 + sum(unit * part for unit, part in zip(units, parts, strict=False))
    if seconds == 0:
        raise ValueError("no time limit: every job has one here")
    return seconds


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job as asked for, by the command line, from Python, or again; None means "the recipe or the site decides".

    It means the same in every directory and shell: paths are absolute, except names of the store or of what is
    shipped. ``runner.preparation.options`` declares those fields that a user gives.

    Attributes:
        directory: the working directory of the call; the user's program starts there.
        site: a shipped site or a file. recipe: a shipped one or a directory.
        program: the user's program and its arguments, where no recipe is named; empty for a recipe.
        arguments: of the recipe's program, appended as they are.
        runs: where the run directory is made.
        step: it becomes a step of the allocation that the shell holds.
        gpu_type: GRES type (``a100``, or a MIG slice's ``a100_1g.5gb``). walltime_s: time limit, seconds.
        scheduler_options: further options for the scheduler, name -> value; they override the site's.
        env: name and value of variables, in order; None takes the variable away.
        env_of_shell: of these, the names whose value is that of the shell which submits; ``complete`` puts it in.
        options: ``--set key=value`` pairs, in order.
        hosts: name, as ssh takes it, and ranks of each node, where there is no scheduler. hostfile: the same as a file.
        modules: that a job without a container loads, in this order, after those of the site's setup.
        meter_batch: samples of a rank in a step of its optimizer; None leaves them to what the meter sees.
        copied: directory of the run whose copy is copied again, instead of those files as they are now.
        copied_start: where the program starts in that copy, relative to its top; None where it starts in ``directory``.
        umask, trust, home, caches: of the shell that submits: the program gets this umask; RUNNER_TRUST; the user's
            home directory, empty where unknown; variables that place caches, name -> value. Not asked for: ``complete``
            adds them.
        swept: name and value of what a sweep gives it.
    """

    gpus: int
    nodes: int | None = None
    site: str | None = None
    recipe: str | None = None
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    directory: str = ""
    runs: str = "runs"
    step: bool = False
    runtime: str | None = None
    image: str | None = None
    job_name: str | None = None
    queue: str | None = None
    gpu_type: str | None = None
    cpus_per_gpu: int | None = None
    account: str | None = None
    project: str | None = None
    scratch: str | None = None
    field: str | None = None
    walltime_s: int | None = None
    wireup: Wireup | None = None
    world: World | None = None
    scheduler_options: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    env_of_shell: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    stage: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    hostfile: str | None = None
    bind: Literal["auto", "none"] = "auto"
    env_name: str | None = None
    modules: tuple[str, ...] = ()
    meter: bool = False
    meter_batch: int | None = None
    force: tuple[str, ...] = ()
    snapshot: bool = False
    copied: str | None = None
    no_diff: bool = False
    copied_start: str | None = None
    umask: int = 0o022
    trust: str = ""
    home: str = ""
    caches: tuple[tuple[str, str], ...] = ()
    swept: tuple[tuple[str, str], ...] = ()

    @property
    def starts_in(self) -> str | None:
        """The host directory of the user's program; None for a recipe, which has its own directory."""
        return self.directory if self.program else None

    @property
    def mounted_directory(self) -> str | None:
        """The host directory that the program starts in; None where it starts below the run directory."""
        return self.starts_in if self.copied_start is None else None


class RequestRecord(msgspec.Struct, frozen=True):
    """``request.json`` of a run, and in ``study.json``.

    Attributes:
        site: that was used, where the request names none. of_others: ``PATH: WHOSE`` of what the request names, and
            other users could exchange then. there: what it names that was there.
    """

    request: Request
    site: str = ""
    of_others: tuple[str, ...] = ()
    there: tuple[str, ...] = ()
    schema: Literal["1"] = "1"
