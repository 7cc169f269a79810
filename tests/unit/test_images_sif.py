"""SIF files: whether a builder is here, and which file a reference stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli import run
from runner.errors import Exit, RefusedError
from runner.images import sif
from tests.unit.test_command_line import sound


def says(directory: Path, name: str, version: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\necho '{version}'\n")
    (directory / name).chmod(0o755)


def test_a_game_is_no_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    says(tmp_path, "singularity", "Endgame: Singularity 1.00")
    with pytest.raises(RefusedError):
        sif.program()
    says(tmp_path, "singularity", "singularity-ce version 4.1.0")
    assert sif.program() == "singularity"
    says(tmp_path, "apptainer", "apptainer version 1.4.5")
    assert sif.program() == "apptainer"


def test_a_reference_stands_for_the_newest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    job = sound("--runtime", "apptainer", "--image", "x/horovod:1", "--dry-run")
    job[job.index("--site") + 1] = "slurm"
    assert sif.lookup("x/horovod:1") is None
    assert run(job) == Exit.REFUSED
    assert "convert --format sif x/horovod:1" in capfd.readouterr().err
    for digest in ("aa", "bb"):
        (tmp_path / f"{digest}.sif").write_bytes(b"")
        sif._point(sif._link("x/horovod:1", tmp_path), tmp_path / f"{digest}.sif")
    assert sif.lookup("x/horovod:1") == tmp_path / "bb.sif"
    run(job)
    assert f"{tmp_path}/bb.sif" in capfd.readouterr().out
