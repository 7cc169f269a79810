"""Options of the scheduler that the site gives every job and the user gives one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

# How much memory a job gets of each node, or for each processor or GPU: sbatch takes one of them (sbatch(1)).
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_SECONDS = re.compile(r"[0-9]{1,9}\Z", re.ASCII)


class Directives(msgspec.Struct, frozen=True):
    """What is left of them for the scheduler.

    Attributes:
        options: name and value, sorted.
        wait_s: ``-S wait=SECONDS``, which is an option of the step (srun), and not of the job; None where not given.
    """

    options: tuple[tuple[str, str], ...]
    wait_s: int | None = None


def merge(site: Mapping[str, str], job: Mapping[str, str], *, starter: str) -> Directives:
    """The site's options and the job's, which win; an option of memory replaces any other of memory.

    Args:
        starter: what starts the tasks.
    """
    if any(option in job for option in MEMORY):
        site = {option: value for option, value in site.items() if option not in MEMORY}
    merged = {**site, **job}
    wait = merged.get("wait", "")
    if starter == "srun" and _SECONDS.match(wait):
        del merged["wait"]
        return Directives(tuple(sorted(merged.items())), int(wait))
    return Directives(tuple(sorted(merged.items())))
