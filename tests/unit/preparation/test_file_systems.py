"""A file system that never answers is reported within seconds."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runner.errors import RefusedError
from runner.model.request import Request
from runner.preparation import file_systems
from runner.preparation.request import JobOptions


def test_a_file_system_that_does_not_answer_is_reported_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, stat = threading.Event(), Path.stat

    def slow(self: Path, **options: Any) -> os.stat_result:
        if self.name == "dead":
            hangs.wait(30)
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", slow)
    began = time.monotonic()
    with pytest.raises(RefusedError, match="has not answered for") as caught:
        file_systems.refuse_silent([tmp_path, tmp_path / "none", tmp_path / "dead"], 0.2)
    hangs.set()
    assert caught.value.where == str(tmp_path / "dead")
    assert time.monotonic() - began < 5
    file_systems.refuse_silent([tmp_path, tmp_path / "none", "\0", "x" * 5000])


def test_the_files_of_a_program_must_answer_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(file_systems, "refuse_silent", lambda paths: looked_at.extend(map(str, paths)))
    program = ("python3", "-u", "/dead/train.py", "--log", "/dead/log.txt")
    file_systems.check_answers(JobOptions(None, None, Request(gpus=1), tmp_path, program))
    assert "/dead/train.py" in looked_at
    assert "/dead/log.txt" not in looked_at
