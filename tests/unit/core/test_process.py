"""Programs that are run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core import process


def test_no_program_is_run_from_where_others_could_put_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an empty or relative part of PATH, which means the working directory; neither by us nor by what we run."""
    for name in ("own", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "squeue-x").write_text("#!/bin/sh\necho $PATH\n")
        (tmp_path / name / "squeue-x").chmod(0o755)
    (tmp_path / "open").chmod(0o777)
    for parts in (":/usr/bin:/bin", "/usr/bin:/bin:", "/usr/bin:.:/bin"):
        for env in (None, {"PATH": parts}):
            monkeypatch.setenv("PATH", parts if env is None else os.defpath)
            monkeypatch.chdir(tmp_path / "open")
            assert process.find("squeue-x", None if env is None else parts) is None
            with pytest.raises(process.CommandNotFoundError):
                process.run(("squeue-x",), timeout_s=5.0, env=env)
            said = process.run(("sh", "-c", "echo $PATH"), timeout_s=5.0, env=env).out
            assert said == "/usr/bin:/bin\n"
            monkeypatch.chdir(tmp_path / "own")
            assert str(tmp_path / "own") in process.run(("squeue-x",), timeout_s=5.0, env=env).out
