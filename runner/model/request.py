"""How much: what the user asked for on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from runner.model.names import Wireup


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory or file of the host, seen in the container."""

    source: str
    target: str
    read_only: bool = False


def parse_mount(text: str) -> Mount:
    """``SRC:DST[:ro]``; SRC becomes absolute where it is relative to the working directory.

    Raises:
        ValueError: it is something else, or begins with ``~NAME`` of an unknown user.
    """
    parts = text.split(":")
    read_only = len(parts) == 3 and parts[2] in ("ro", "rw") and parts.pop() == "ro"
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{text!r} is not SRC:DST[:ro]")
    try:
        source = Path(parts[0]).expanduser().absolute()
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
        raise ValueError(f"{text!r} is not M:S, H:M:S or D-H:M:S (10:00 is ten minutes)")
    days, _, clock = text.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    seconds += int(days or 0) * 86400
    if seconds == 0:
        raise ValueError("a time limit of zero")
    return seconds


class Request(msgspec.Struct, frozen=True):
    """One submission as asked for; None means "the recipe or the site decides".

    Attributes:
        queue: queue, partition or QOS, depending on the site.
        gpu_type: GRES type (``a100``, or a MIG slice's ``a100_1g.5gb``).
        cpus_per_gpu: schedulable CPUs of each rank.
        account, project, scratch: whom to charge, and where the user's own directories are.
        field: field of research, where the site asks for it.
        walltime_s: time limit, seconds.
        scheduler_options: further options for the scheduler, name -> value; they override the site's.
        wireup: how ranks find each other.
        stage: copy the image to each node's own disk first.
        env_name: name or directory of an environment that ``env create`` has made.
        env: name and value of variables, in order; None takes the variable away.
        options: ``--set key=value`` pairs, in order.
        arguments: program arguments after ``--``, appended as they are.
        hosts: name, as ssh takes it, and ranks of each node, where there is no scheduler.
        bind: whether ranks are bound to the processors near their GPUs.
        umask: of the submitting shell, which the program gets.
        meter: measure the user's program, which need not change.
        meter_batch: samples of a rank in a step of its optimizer; None leaves them to what the meter sees.
        home: the user's home directory; empty where unknown.
        caches: variables of the submitting shell that place caches, name -> value.
        directory: host directory in which the user's program starts; None for a recipe, which has its own directory.
        copied_start: where it starts in the run directory's copy of the user's tracked files, relative to their top;
            None where it starts in ``directory`` itself.
    """

    gpus: int
    nodes: int | None = None
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
    scheduler_options: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    directory: str | None = None
    copied_start: str | None = None
    stage: bool = False
    hosts: tuple[tuple[str, int], ...] = ()
    bind: Literal["auto", "none"] = "auto"
    env_name: str | None = None
    umask: int = 0o022
    home: str = ""
    meter: bool = False
    meter_batch: int | None = None
    caches: tuple[tuple[str, str], ...] = ()

    @property
    def mounted_directory(self) -> str | None:
        """The host directory that the program starts in; None where it starts below the run directory."""
        return self.directory if self.copied_start is None else None
