"""A user who is not root runs jobs on a cluster whose daemons are root's."""

import os

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.daemons import Daemons
from tests.support.ordinary_user import probe

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="a box of root's, and to become another user"),
]


def test_a_probe(daemons: Daemons, squashfs: StoredImage) -> None:
    assert probe(daemons, squashfs.path, "charliecloud")["outcome"] == "ran"


def test_a_probe_from_a_staged_copy(daemons: Daemons, squashfs: StoredImage) -> None:
    assert probe(daemons, squashfs.path, "charliecloud", "--stage")["outcome"] == "ran"
