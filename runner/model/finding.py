"""The result of a check of a plan."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One finding.

    Attributes:
        code: stable name, lower case with dashes; ``--force CODE`` names it.
        severity: ``refuse`` stops a submission (exit 3), ``warn`` does not.
        forced: it would have refused, and the user has overridden it.
        what: what is wrong.
        fix: what to do.
        who: who can fix it.
    """

    code: str
    severity: Literal["refuse", "warn"]
    what: str
    fix: str
    who: Literal["user", "administrator"] = "user"
    forced: bool = False
