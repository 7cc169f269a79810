"""A user's training script in PyTorch, measured in a container; `make test-recipes` has its peculiarities."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.metered import measure, states
from tests.support.rank_records import records
from tests.support.schema import check

pytestmark = pytest.mark.integration


def test_a_script_is_measured_and_not_changed(tmp_path: Path, squashfs: StoredImage, ch_run: Path) -> None:
    """It trains twice, with the meter and without: all that training changes is the same, bit for bit."""
    assert squashfs.path.is_file()
    path = {"PATH": f"{ch_run}:{os.environ['PATH']}"}
    local = Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path, path)
    run, verdict = measure(local, "twice", "script", "--wireup", "torchrun")
    assert (verdict["outcome"], verdict["unit"]) == ("measured", "samples")
    assert any("synchronised" in sentence for sentence in verdict["proven"])
    assert any(sentence.startswith("waiting for data: ") for sentence in verdict["remarks"])
    for rank, (first, second) in enumerate(states(run)):
        assert first == second, rank
    for kind in ("report", "meter"):
        for record in records(run, kind).values():
            check(record)
    check(json.loads((run / "result.json").read_text()))
