"""The squashfs maker: the time that a squashfs carries."""

from __future__ import annotations

import pytest

from runner.images.conversion.squashfs import created_at


@pytest.mark.parametrize("created", ["9999-12-31T23:59:59Z", "2107-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "never"])
def test_a_time_that_no_squashfs_holds_is_none(created: str) -> None:
    assert created_at(created) == 0
    assert created_at("2026-01-01T00:00:00Z") == 1767225600
