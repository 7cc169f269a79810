"""File systems that other machines change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from runner.core.files import UnusableFileError, again_if_stale, is_local, magic, names_in, read_bytes


def failing(times: int, number: int) -> list[OSError]:
    return [OSError(number, os.strerror(number)) for _ in range(times)]


def test_a_stale_handle_is_read_again() -> None:
    left = failing(4, errno.ESTALE)

    def read() -> str:
        if left:
            raise left.pop()
        return "whole"

    assert again_if_stale(read) == "whole"


@pytest.mark.parametrize(("times", "number"), [(9, errno.ESTALE), (1, errno.EIO)])
def test_what_stays_stale_or_fails_otherwise_is_an_error(times: int, number: int) -> None:
    left = failing(times, number)

    def read() -> str:
        raise left.pop()

    with pytest.raises(OSError, match=os.strerror(number)):
        again_if_stale(read)
    assert len(left) == max(times - 5, 0)


def test_local_file_systems_are_known() -> None:
    assert is_local(Path("/dev/shm"))
    assert magic(Path("/proc")) == 0x9FA0  # linux/magic.h; no place for a run, so not among the local ones
    assert not is_local(Path("/proc"))
    assert magic(Path("/nowhere/at/all")) is None
    assert not is_local(Path("/nowhere/at/all"))


def test_a_directory_is_listed_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    assert names_in(tmp_path) == {"a", "b"}
    assert names_in(tmp_path / "none") == names_in(tmp_path / "a") == frozenset()


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(tmp_path / "f", most=5) == b"12345"
    with pytest.raises(UnusableFileError, match="longer than 4 bytes"):
        read_bytes(tmp_path / "f", most=4)
