"""Every test of figures has a list of runs and a configuration of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
