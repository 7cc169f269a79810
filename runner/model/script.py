"""A job's script, whole: what the scheduler gets, and the shell files that it reads from the run directory."""

from __future__ import annotations

import msgspec

LIBRARY = "lib"  # in the run directory: where the launcher and these files lie


class JobScript(msgspec.Struct, frozen=True):
    """A script.

    Attributes:
        text: of ``job.sh``.
        files: name in LIBRARY -> text, of the files that it reads or starts. It names the SHA-256 of each.
    """

    text: str
    files: dict[str, str]
