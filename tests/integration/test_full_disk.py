"""The command line on file systems that are too small for what it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.errors import Exit
from tests.support.installed import CHECKOUT
from tests.support.squashfs import SUPERBLOCK
from tests.support.submissions import IMAGE, sound

pytestmark = pytest.mark.integration
FULL, THROUGH = "No space left on device", "no Slurm client"


@pytest.mark.parametrize(
    ("kilobytes", "outcomes"),
    [
        *((size, {FULL}) for size in (4, 16, 64)),
        *((size, {FULL, THROUGH}) for size in (128, 160, 192, 256)),
        (1024, {THROUGH}),
    ],
)
def test_a_disk_that_fills_at_any_moment_is_reported(tmp_path: Path, kilobytes: int, outcomes: set[str]) -> None:
    """A run directory on a file system of this size, in a mount namespace that goes with the command."""
    Path(IMAGE).write_bytes(SUPERBLOCK)
    words = [sys.executable, "-m", "runner", *sound("--runs", str(tmp_path))]
    script = f'mount -t tmpfs -o size={kilobytes}k tmpfs "$1" && cd / && shift && exec "$@"'
    own = {"RUNNER_CACHE": str(tmp_path / "cache"), "RUNNER_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", tmp_path, *words],
        capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "PYTHONPATH": str(CHECKOUT), **own},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    codes = {FULL: (Exit.USAGE, Exit.INFRASTRUCTURE), THROUGH: (Exit.NOT_ACCEPTED,)}
    outcome = {words for words, allowed in codes.items() if words in done.stderr and done.returncode in allowed}
    assert outcome, done.stderr
    assert outcome <= outcomes
