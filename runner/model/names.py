"""Names that stand in directory names, job names and lists: plain on purpose."""

from __future__ import annotations

import re

PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
PLAIN_NAME_MEND = "use 1 to 64 of A-Z a-z 0-9 . _ -"
