"""The shell files that job scripts read, for a test's own code, by real bash."""

import subprocess
from pathlib import Path

from runner.backends import LEFTOVERS
from runner.backends.runtimes.common import SHELL as RUNTIMES
from runner.backends.schedulers.script_parts import SHELL as SCHEDULERS


def library(directory: Path, **changed: tuple[str, str]) -> Path:
    """All of them in ``directory/lib``; of a file, by its name's stem, one text replaced."""
    (directory / "lib").mkdir(exist_ok=True)
    for path in (LEFTOVERS, *SCHEDULERS.glob("*.sh"), *RUNTIMES.glob("*.sh")):
        text = path.read_text()
        if path.stem in changed:
            old, new = changed[path.stem]
            assert old in text
            text = text.replace(old, new)
        (directory / "lib" / path.name).write_text(text)
    return directory


def bash(directory: Path, code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run code as a script does that has read some of the files, in a directory with a library."""
    read = " && ".join(f". lib/{name}.sh" for name in ("common", "slurm", "supervise"))
    return subprocess.run(
        ["/bin/bash", "-c", f"set -uo pipefail\n{read}\n{code}"],
        cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def stand_in(directory: Path, program: str, body: str) -> None:
    """A program of that name: a shell script."""
    (directory / program).write_text(f"#!/bin/sh\n{body}\n")
    (directory / program).chmod(0o755)
