"""Where things lie, and whether what is cached there is read."""

from __future__ import annotations

import pytest

from runner import paths


def test_cold_means_no_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("COLD", value)
        assert paths.caches_ignored() is wanted
