"""Slurm 24.11, Debian 13's: what the other integration tests see of 22.05, in short."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.placements import assert_placed_as_planned, submit_one_of_each
from tests.support.rank_records import has_started, records

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def newer(squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The command line against a box of that version."""
    assert squashfs.path.is_file()
    name = f"newer-{os.getpid()}"
    directory = tmp_path_factory.mktemp("newer")
    try:
        here = box.up(box.BoxSpec(name=name, slurm="24.11"))
        yield Runner(Path(here.site), directory / "my runs", directory / "state", here.bin_dir)
    finally:
        box.down(name)


def test_ranks_on_two_nodes_meet_however_a_site_asks_for_them(newer: Runner, tmp_path: Path) -> None:
    assert_placed_as_planned(newer, submit_one_of_each(newer, tmp_path))


def test_a_cancelled_job_is_reported_and_a_refusal_has_its_fix(newer: Runner) -> None:
    words = ("submit", "--recipe", "probe", "--gpus", "4", "--nodes", "2")
    child, run = newer.start_until(has_started(4), *words, "--", "--sleep", "300")
    assert child.wait(60) == 0
    assert "running" in newer("status", str(run), code=0).out
    newer("cancel", str(run), code=0)
    newer("wait", str(run), code=5)
    assert "the job was cancelled by" in json.loads((run / "verdict.json").read_text())["reasons"][0]
    assert sorted(records(run, "start")) == [0, 1, 2, 3]
    refused = newer(*words, "--queue", "nowhere", code=4).err
    assert "invalid partition" in refused.lower()
    assert "sinfo --summarize" in refused
