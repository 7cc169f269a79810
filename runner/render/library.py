"""The shell files of a script: kept as they are in the package, copied beside the script, checked before they are read.

What is equal in many jobs stands in them; the script itself has what differs, and each line that starts a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from runner.core.files import sha256
from runner.model.exit_codes import NOT_LOADED
from runner.model.step import LIBRARY, JobScript


def job_script(parts: Iterable[str], files: Iterable[Path]) -> JobScript:
    """A script of these parts, each one whole lines, that reads these files."""
    return JobScript("\n".join(parts), {path.name: _text(path) for path in files})


def checked(files: Iterable[Path], *sourced: Path) -> str:
    """Shell code that ends with NOT_LOADED unless all files are there as they are now, and reads some of them."""
    sums = "\n".join(f"{sha256(_text(path).encode())}  {LIBRARY}/{path.name}" for path in dict.fromkeys(files))
    read = " && ".join(f". {LIBRARY}/{path.name}" for path in sourced)
    return f"""\
# What this script calls is in these files, with the reasons. If one was changed since, the job ends with {NOT_LOADED}.
sha256sum --check --quiet >&2 <<'END' || exit {NOT_LOADED}
{sums}
END
{read} || exit {NOT_LOADED}
"""


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")
