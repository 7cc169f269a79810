"""UNPROVEN goes away by a record of `prove` alone, and for its own machine alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run
from runner.model.verdict import BETWEEN_GPUS, REQUIRED, ProofRecord, ProvenGpu, RungRecord
from runner.sites.loader import gpu_driver, gpu_uuids, read_site, this_machine
from runner.sites.proofs import digest_of, proven_by, read_records, why_nothing
from tests.support.proof_records import UUIDS, record

LOCAL = read_site("local")
HERE = frozenset(UUIDS)


def test_a_record_of_this_machine_proves_its_runtime_and_nccl_between_its_gpus() -> None:
    proven = proven_by({"a.json": record()}, LOCAL, HERE)
    assert list(proven.runtimes) == ["native"]
    assert "2026-11-22: `prove` on 2 x NVIDIA H100, driver 570.86.15" in proven.runtimes["native"]
    assert proven.nccl_between_gpus
    assert not proven.ignored


def test_a_quick_record_proves_its_own_rungs_and_no_figure() -> None:
    rungs = (*(RungRecord(name, "passed") for name in (*REQUIRED, "fsdp-pytorch")), RungRecord("lightning", "failed"))
    line = proven_by({"a.json": record(quick=True, rungs=rungs)}, LOCAL, HERE).runtimes["native"]
    assert "passed, and all else UNPROVEN: devices, allreduce-1, result, fsdp-pytorch;" in line
    assert "short measurements: every figure is UNPROVEN" in line


def test_the_newest_record_counts_and_a_cluster_is_known_by_its_name() -> None:
    newest = record(date="2027-01-01T00:00:00Z")
    records: dict[str, ProofRecord | None] = {"a.json": newest, "b.json": record(), "c.json": None}
    assert "a.json" in proven_by(records, LOCAL, HERE).runtimes["native"]
    site = read_site("perlmutter")
    made = record(site="perlmutter", runtime=site.runtimes[0])
    assert proven_by({"a.json": made}, site, frozenset()).runtimes
    elsewhere = proven_by({"a.json": made}, LOCAL, HERE)
    assert (elsewhere.runtimes, elsewhere.ignored) == ({}, {})


def test_one_gpu_proves_nothing_of_nccl_between_gpus() -> None:
    one = (ProvenGpu(UUIDS[0], "NVIDIA H100"),)
    passed = (*(RungRecord(name, "passed") for name in REQUIRED), RungRecord(BETWEEN_GPUS, "not applicable", "one GPU"))
    for each in (record(gpus=one, rungs=passed), record(gpus=one)):
        proven = proven_by({"a.json": each}, LOCAL, frozenset(UUIDS[:1]))
        assert proven.runtimes
        assert proven.nccl_between_gpus == ""


@pytest.mark.parametrize(
    ("changes", "edited", "here", "why"),
    [
        ({"pretend": True}, {}, HERE, "ran on processors"),
        ({"pretend": True}, {"pretend": False}, HERE, "changed after it was written"),
        ({"gpus": ()}, {}, HERE, "names no GPU"),
        ({"gpus": (ProvenGpu("cpu-17", "x"),)}, {}, HERE, "names no GPU"),
        ({"driver": ""}, {}, HERE, "names no GPU and driver"),
        ({"rungs": tuple(RungRecord(name, "failed") for name in REQUIRED)}, {}, HERE,
         "not passed: devices, allreduce-1, result"),
        ({"rungs": ()}, {}, HERE, "not passed"),
        ({"runtime": "pyxis"}, {}, HERE, "the site has no runtime pyxis"),
        ({"gpus": (ProvenGpu("GPU-0", "x"),)}, {}, HERE, "of another machine"),
        ({}, {}, frozenset(), "of another machine"),
        ({"gpus": (ProvenGpu(UUIDS[0], "x"),)}, {}, HERE,
         "names 1 of this machine's 2 GPUs: CUDA must show all of them"),
    ],
)  # fmt: skip
def test_a_record_proves_nothing(changes: Any, edited: Any, here: frozenset[str], why: str) -> None:
    made = msgspec.structs.replace(record(**changes), **edited)
    assert why in why_nothing(made, LOCAL, here)
    proven = proven_by({"a.json": made}, LOCAL, here)
    assert (proven.runtimes, proven.nccl_between_gpus, list(proven.ignored)) == ({}, "", ["a.json"])


def test_files_that_are_no_records_are_none(tmp_path: Path) -> None:
    whole = record()
    (tmp_path / "good.json").write_bytes(msgspec.json.encode(whole))
    (tmp_path / "half.json").write_bytes(msgspec.json.encode(whole)[:100])
    (tmp_path / "long.json").write_bytes(b" " * (1 << 21))
    (tmp_path / "deep.json").write_bytes(b"[" * 100_000)
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "note.txt").write_text("x")
    records = read_records([tmp_path, tmp_path / "none"])
    assert {Path(path).name: each for path, each in records.items() if each is not None} == {"good.json": whole}
    assert len(records) == 5


@pytest.mark.parametrize("digest", ["kept", "computed anew"])
def test_site_show_says_unproven_though_a_record_was_edited_by_hand(
    digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What --pretend-cpu leaves, made to look real: the machine has none of its GPUs."""
    pretended = record(pretend=True, gpus=(), driver="")
    edited = msgspec.structs.replace(
        pretended, pretend=False, driver="570.86.15", gpus=(ProvenGpu(UUIDS[0], "NVIDIA H100"),)
    )
    if digest == "computed anew":
        edited = msgspec.structs.replace(edited, digest=digest_of(edited))
    (tmp_path / "proofs").mkdir()
    (tmp_path / "proofs/local.json").write_text(json.dumps(msgspec.to_builtins(edited)))
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path))
    assert run(["site", "show", "local"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("on GPUs: UNPROVEN") == 2
    assert "NCCL between GPUs: UNPROVEN" in shown
    assert "proofs/local.json proves nothing here" in shown


def test_this_machine_is_as_its_driver_and_the_launcher_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has two GPUs, of which this user may open one."""
    for number, uuid in enumerate(UUIDS):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
        )
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia1").touch()
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc version 13.3.0\n")
    assert gpu_uuids(tmp_path) == HERE
    assert gpu_uuids(tmp_path / "none") == frozenset()
    assert gpu_driver(tmp_path) == "570.86.15", "another driver is another input of every rung"
    assert gpu_driver(tmp_path / "none") == ""
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2048000 kB\nMemFree: 1 kB\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = this_machine(tmp_path)
    assert (seen.memory_mb, seen.gpus) == (2000, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine(tmp_path).gpus == this_machine(tmp_path / "none").gpus == 0
