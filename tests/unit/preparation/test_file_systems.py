"""A file system that never answers is reported within seconds."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import RefusedError, UsageError
from runner.model.plan import WORKSPACE
from runner.model.request import Mount, Request
from runner.preparation import request as stage


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
        stage.refuse_silent([tmp_path, tmp_path / "none", tmp_path / "dead"], 0.2)
    hangs.set()
    assert caught.value.where == str(tmp_path / "dead")
    assert time.monotonic() - began < 5
    stage.refuse_silent([tmp_path, tmp_path / "none", "\0", "x" * 5000])


def test_the_files_of_a_program_must_answer_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(stage, "refuse_silent", lambda paths: looked_at.extend(map(str, paths)))
    program = ("python3", "-u", "/dead/train.py", "--log", "/dead/log.txt")
    stage.check_answers(Request(gpus=1, runs=str(tmp_path), program=program))
    assert "/dead/train.py" in looked_at
    assert "/dead/log.txt" not in looked_at


def refuse(directory: Path, line: str, *mounts: Mount, runs: Path | None = None, runs_here: bool = False) -> None:
    mounted = (Mount(str(directory), WORKSPACE), *mounts)
    stage.refuse_missing_script(line.split(), directory, mounted, runs or directory / "runs", runs_here=runs_here)


@pytest.mark.parametrize(
    "line", ["python trian.py", "/usr/bin/python3.11 -u -W ignore ./a/trian.py --lr 1", "python3 -Xdev t.py"]
)
def test_a_script_that_is_not_there_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"there is no file (\./a/)?tr?i?a?n?\.py in this directory") as caught:
        refuse(tmp_path, line)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize(
    "line",
    ["python train.py", "python ./train.py", "python -m trian.py", "python -c trian.py", "python - trian.py", "python",
     "python tool --config new.py", "python ../trian.py", "python /opt/trian.py", "bash run.py", "torchrun trian.py",
     "python link.py", ""],
)  # fmt: skip
def test_what_may_be_there_is_not_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "link.py").symlink_to("/only/on/the/nodes.py")
    refuse(tmp_path, line)


def test_a_script_is_not_refused_where_the_job_may_see_other_files(tmp_path: Path) -> None:
    line = "python trian.py"
    refuse(tmp_path, line, Mount("/data", f"{WORKSPACE}/sub"))
    refuse(tmp_path, line, runs=Path("/proc"))  # another file system
    refuse(tmp_path / "gone" / "\0", line)
    with pytest.raises(UsageError, match=r"no file trian\.py"):
        refuse(tmp_path, line, Mount("/data", "/data"), runs=Path("/proc"), runs_here=True)
