"""Studies and caches of each test are its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"RUNNER_{name}", str(tmp_path / name))
