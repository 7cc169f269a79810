"""An image that a job of the queue has is never pruned; when the job has ended, it may be."""

from __future__ import annotations

import signal

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.planted_faults import RECIPE
from tests.support.rank_records import has_started

pytestmark = pytest.mark.integration


def needed(runner: Runner) -> list[str]:
    """What pruning all of the store would keep. Only said: the store is everybody's."""
    said = result(runner("images", "prune", "--max-size", "0", "--dry-run", "--json", code=0).out)
    assert set(said["removed"]).isdisjoint(said["needed"])
    return list(said["needed"])


def test_a_running_jobs_image_stays_until_its_end(runner: Runner, squashfs: StoredImage) -> None:
    words = ("submit", "--gpus", "2", "--recipe", str(RECIPE), "--wait", "--cancel-on-interrupt")
    child, run = runner.start_until(has_started(2), *words, "--", "--fault", "hang")
    assert needed(runner) == [str(squashfs.path)]
    child.send_signal(signal.SIGINT)
    assert child.wait(90) == 130
    runner("wait", run.name, code=5)
    assert needed(runner) == []
    listed = result(runner("images", "list", "--json", code=0).out)
    assert [run.name] == [row["runs"][0] for row in listed if row["path"] == str(squashfs.path)]
