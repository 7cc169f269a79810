"""What of a run's logs goes into a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.figures.bundle.bag import files_of


@pytest.mark.parametrize(("name", "whole"), [("logs/batch.err", "last"), ("nccl/n0.log", "first")])
def test_a_long_log_is_cut_between_lines(tmp_path: Path, name: str, whole: str) -> None:
    """In a line that is cut a secret would not be known as one."""
    log = tmp_path / name
    log.parent.mkdir()
    log.write_text("first\n" + "a secret that is long\n" * 100_000 + "last\n")
    ((_, content),) = files_of(tmp_path)
    lines = content.decode().splitlines()
    assert len(lines) > 1_000
    assert set(lines) == {whole, "a secret that is long"}
    log.write_text("short, without an end")
    assert dict(files_of(tmp_path)) == {name: b"short, without an end"}
