"""A user's cache, state and image store of a test's own."""

from pathlib import Path

import pytest


def own_state(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all that commands leave on this machine in ``directory``, and name no site."""
    for name in ("CACHE", "STATE", "STORE"):
        monkeypatch.setenv(f"RUNNER_{name}", str(directory / name))
    monkeypatch.delenv("RUNNER_SITE", raising=False)
