"""How much: what the user asked for on the command line."""

from __future__ import annotations

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """A directory or file of the host, seen in the container."""

    source: str
    target: str
    read_only: bool = False


class Request(msgspec.Struct, frozen=True):
    """One submission as asked for; None means "the recipe or the site decides".

    Attributes:
        walltime_s: time limit, seconds.
        options: ``--set key=value`` pairs, in order.
        arguments: program arguments after ``--``, appended as they are.
    """

    gpus: int
    nodes: int | None = None
    runtime: str | None = None
    image: str | None = None
    job_name: str | None = None
    partition: str | None = None
    account: str | None = None
    walltime_s: int | None = None
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
