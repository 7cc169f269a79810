"""Flux: a skeleton. Its scripts can be read with ``--dry-run``; nothing is submitted, as no Flux has ever run one."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from runner.errors import RefusedError


def connect(clients: Path | None) -> NoReturn:
    """Refuse.

    Raises:
        RefusedError: always.
    """
    raise RefusedError(
        "jobs are not submitted to Flux: its scripts are UNPROVEN, and no client is written",
        where=str(clients) if clients else "scheduler: flux",
        fix="read the script with --dry-run, and submit a copy by hand with `flux batch`",
    )
