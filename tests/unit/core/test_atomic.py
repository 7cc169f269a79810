"""A file has its old content or its new one, and nothing is left beside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from runner.core import files, process_identity


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    files.write_private(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_private(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["f"]


def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.replacement(path) as temporary:
        temporary.write_text("half")
        assert process_identity.state(files.temporary_owner(temporary)) == "alive"
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert files.temporary_owner(path) == ""


def test_permissions_are_the_named_ones_or_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "open", b"x")
        files.write(tmp_path / "named", b"x", mode=0o664)
        files.write_private(tmp_path / "private", "x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"open": 0o640, "named": 0o664, "private": 0o600}


def test_a_name_of_the_greatest_length_is_replaced_too(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    files.write(path, b"x")
    assert path.read_bytes() == b"x"
