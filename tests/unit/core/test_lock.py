"""A lock is waited for aloud, and not for ever."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.core import lock
from runner.core.errors import InfrastructureError, UnknownStateError


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_the_holder_that_is_waited_for_is_named_and_the_wait_ends(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_SILENT_S", 0.05)
    path = tmp_path if kind == "directory" else tmp_path / "lock"
    said: list[str] = []
    with lock.locked(path, said.append):
        assert said == []
        with pytest.raises(UnknownStateError) as caught, lock.locked(path, said.append, limit_s=0.3):
            pass
    assert len(said) == 1
    assert str(path) in said[0]
    assert caught.value.where == str(path)
    with lock.locked(path, said.append, limit_s=0):
        pass


def test_what_cannot_be_locked_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot lock"), lock.locked(tmp_path / "no" / "lock", print):
        pass


def test_a_waiter_locks_the_next_file_where_the_holder_removed_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ThreadPoolExecutor(1) as pool:

        def wait() -> bool:
            with lock.locked(path, print):
                return path.exists()

        with lock.locked(path, print):
            waiting = pool.submit(wait)
            time.sleep(0.3)
            assert not waiting.done()
            path.unlink()
        assert waiting.result(10)
