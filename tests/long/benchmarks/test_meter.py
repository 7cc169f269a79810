"""What the meter costs: ``make bench-meter`` prints it; the figure belongs in docs/meter.md."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.metered import SCRIPT

pytestmark = pytest.mark.integration
LARGEST_SHARE = 0.005  # of the window, in the meter's calls


def test_the_share_of_a_step_that_the_meter_takes(tmp_path: Path, squashfs: StoredImage, ch_run: Path) -> None:
    assert squashfs.path.is_file()
    path = {"PATH": f"{ch_run}:{os.environ['PATH']}"}
    local = Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path, path)
    local("submit", "--gpus", "1", "--wait", "--", "python3", "cost.py", "100", code=0, cwd=SCRIPT)
    run = local.newest()
    report = json.loads((run / "ranks" / "0.report.json").read_text())
    share = report["instrumentation_s"] / report["ends_s"][-1]
    print("\n" + (run / "logs" / "rank-0.out").read_text() + f"in the meter's calls: {100 * share:.3f} % of the window")
    assert share < LARGEST_SHARE
