"""Every test of the command line has a cache and a list of runs of its own, and names no site."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"RUNNER_{name}", str(tmp_path / name.lower()))
    for name in ("RUNNER_SITE", "RUNNER_STORE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
