"""A lock is waited for aloud, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import InfrastructureError, UnknownStateError
from runner.files import lock


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_who_is_waited_for_is_said_and_the_wait_ends(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_SILENT_S", 0.05)
    path = tmp_path if kind == "directory" else tmp_path / "lock"
    said: list[str] = []
    with lock.held(path, said.append):
        assert said == []
        with pytest.raises(UnknownStateError) as caught, lock.held(path, said.append, limit_s=0.3):
            pass
    assert len(said) == 1
    assert str(path) in said[0]
    assert caught.value.where == str(path)
    with lock.held(path, said.append, limit_s=0):
        pass


def test_what_cannot_be_locked_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot lock"), lock.held(tmp_path / "no" / "lock", print):
        pass
