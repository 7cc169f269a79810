"""Bundles: the same bytes for the same runs, everything in them proven again, and no secret in them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner.core.errors import Exit
from runner.core.files import Folder
from runner.figures.bundle import making
from runner.figures.bundle.bag import files_of
from runner.figures.bundle.proof import InBundle, difference
from runner.jobs.campaign import read_log
from runner.jobs.directory import Run
from runner.jobs.seals import note_order
from runner.model.verdict import Verdict
from tests.support.bundles import members_of
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.evidence import keep_verdict
from tests.support.measured_runs import PROGRAM, measured_run

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(("name", "whole"), [("logs/batch.err", "last"), ("nccl/n0.log", "first")])
def test_a_long_log_is_cut_between_lines(tmp_path: Path, name: str, whole: str) -> None:
    """In a line that is cut a secret would not be known as one."""
    log = tmp_path / name
    log.parent.mkdir()
    log.write_text("first\n" + "a secret that is long\n" * 100_000 + "last\n")
    ((_, content),) = files_of(Folder(tmp_path))
    lines = content.decode().splitlines()
    assert len(lines) > 1_000
    assert set(lines) == {whole, "a secret that is long"}
    log.write_text("short, without an end")
    assert dict(files_of(Folder(tmp_path))) == {name: b"short, without an end"}


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [str(measured_run(tmp_path / "runs", place).path) for place in range(2)]


def test_a_bundle_is_verified_where_there_is_nothing_but_python_and_the_package(
    runs: list[str], tmp_path: Path, call: Call
) -> None:
    file = tmp_path / "my figures.tar"
    made = result(call("export", *runs, "--bundle", str(file), "--json").out)
    (tmp_path / "runs").rename(tmp_path / "gone")
    environment = {
        "PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo", "HOME": "/nonexistent",
        "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    words = [sys.executable, "-m", "runner", "verify", str(file), "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    verified = result(done.stdout)
    assert verified["runs"] == made["runs"]
    assert [round(run["images_per_s"]) for run in verified["runs"]] == [400, 400]
    assert (verified["signature"], verified["sha256"]) == ("none", made["sha256"])
    assert {path.name for path in tmp_path.iterdir()} == {"gone", "my figures.tar", "state"}, "it left something behind"


def test_it_is_a_bag_for_any_other_tool_of_the_same_bytes_in_any_order_of_runs(
    runs: list[str], tmp_path: Path, call: Call
) -> None:
    for name, order in (("b.tar", runs), ("2.tar", runs[::-1])):
        call("export", *order, "--bundle", str(tmp_path / name))
    assert (tmp_path / "b.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    (tmp_path / "bag").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "b.tar", "-C", tmp_path / "bag"], check=True, timeout=60)
    (bag,) = (tmp_path / "bag").iterdir()
    assert (bag / "bagit.txt").read_text() == "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
    for manifest in ("manifest-sha256.txt", "tagmanifest-sha256.txt"):
        for line in (bag / manifest).read_text().splitlines():
            digest, name = line.split("  ")
            assert hashlib.sha256((bag / name).read_bytes()).hexdigest() == digest
    listed = {line.split("  ")[1] for line in (bag / "manifest-sha256.txt").read_text().splitlines()}
    assert listed == {path.relative_to(bag).as_posix() for path in (bag / "data").rglob("*") if path.is_file()}
    for name in listed:  # what holds no secret is kept byte by byte, but for a seal
        if name.startswith("data/runs/"):
            own = (tmp_path / name.removeprefix("data/")).read_bytes()
            assert (bag / name).read_bytes().rstrip(b"}\n") == own.partition(b',\n  "made_of"')[0].rstrip(b"}\n")
    size = sum((bag / name).stat().st_size for name in listed)
    assert f"Payload-Oxum: {size}.{len(listed)}\n" in (bag / "bag-info.txt").read_text()


SECRETS = {
    "by its name, short": ("WANDB_API_KEY", "x7"),
    "by its name": ("MY_PASSWORD", "planted-5ec4e7 with 'quotes' and $"),
    "by its form": ("EXTRA", f"hf_{'planted5' * 4}"),
    "in a URL": ("PROXY", "http://me:planted-5ec4e7@proxy:9"),
}


@pytest.mark.parametrize("case", SECRETS)
def test_no_secret_leaves_the_machine_and_what_was_redacted_is_named(case: str, tmp_path: Path, call: Call) -> None:
    name, value = SECRETS[case]
    program = (*PROGRAM, "--api-key", "planted-5ec4e7-argument")
    run = measured_run(tmp_path, 0, env=((name, value),), program=program)
    (run.path / "logs" / "batch.err").write_text(f"step: {value} planted-5ec4e7-argument\n")
    (run.path / "code.diff").write_text("my work")
    digest = hashlib.sha256(value.encode()).hexdigest()
    for rank in range(4):  # ranks of one value, another, and none
        record = run.path / "ranks" / f"{rank}.exit.json"
        made = {
            "given": {"sys.argv": digest[:8], "A": "deadbeef", "B": ""},
            "read": {"a": [f"text {digest[:16]}", 1.0]},
        }
        record.write_text(json.dumps(json.loads(record.read_text()) | {"program": made | {"variables": {"C": None}}}))
    keep_verdict(run)
    written = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    note_order(run.run_id, "plan.json", run.content("plan.json"))  # as it is where it was submitted
    file = tmp_path / "b.tar"
    call("export", str(run.path), "--bundle", str(file))
    members = members_of(file)
    for member, content in members.items():
        for line in (value if len(value) > 2 else "planted", "planted", "my work"):
            assert line.encode() not in content, member
        for path, own in written.items():  # nor can one be guessed by the hash of a file that had it
            if own != members.get(f"data/runs/{run.run_id}/{path.relative_to(run.path)}"):
                assert hashlib.sha256(own).hexdigest().encode() not in content, (member, path)
        assert digest[:8].encode() not in content, member
        if member.endswith(".exit.json"):
            program = json.loads(content)["program"]
            assert program["given"] == {"sys.argv": "00000000", "A": "00000001", "B": ""}
            assert program["read"] == {"a": ["text 0000000000000002", 1.0]}
    assert "secrets were taken out of: " in call("verify", str(file)).out


def test_the_log_of_a_study_is_a_chain_without_secrets_too() -> None:
    asked, shown = "a" * 64, "b" * 64
    own = {"launch": "", "run": "", "time_s": 1.0}
    first = json.dumps({"event": "begun", **own, "question": asked})
    second = json.dumps({"event": "lost", **own, "before": hashlib.sha256(first.encode()).hexdigest()})
    log = f"{first}\n{second}\n".encode()
    left = making.redacted_log(log, (), {asked: shown})
    assert (read_log(log).trouble, read_log(left).trouble) == ("", "")
    assert asked.encode() not in left and shown.encode() in left


def test_a_run_that_is_not_measured_has_no_bundle(runs: list[str], tmp_path: Path, call: Call) -> None:
    """Also one whose verdict was changed by hand, or made by other rules: the records decide."""
    words, run = ("export", runs[0], "--bundle", str(tmp_path / "b.tar")), Run(Path(runs[0]))
    report = run.path / "ranks" / "2.report.json"
    report.write_text(json.dumps(json.loads(report.read_text()) | {"parameter_checksum": "another"}))
    said = call(*words, code=Exit.NOT_PROVEN).err
    assert "is not what its records give: outcome differs" in said
    run.write("verdict.json", Verdict(outcome="failed", reasons=("why",)))
    call(*words, code=Exit.NOT_PROVEN)
    assert not (tmp_path / "b.tar").exists()


def test_only_an_earlier_bundle_is_replaced(runs: list[str], tmp_path: Path, call: Call) -> None:
    file = tmp_path / "b.tar"
    (tmp_path / "empty").touch()
    for chosen, name in ((runs, "b.tar"), (runs[:1], "b.tar"), (runs, "empty")):
        call("export", *chosen, "--bundle", str(tmp_path / name))
    assert [run["run"] for run in result(call("verify", str(file), "--json").out)["runs"]] == [Path(runs[0]).name]
    (tmp_path / "thesis.tex").write_text("my words")
    (tmp_path / "notes").write_text("gpu-runner-bundle/bag-info.txt is what I must look into")
    for path in (tmp_path / "thesis.tex", tmp_path / "notes", tmp_path):
        for words in (["export", *runs, "--bundle"], ["report", *runs, "-o", str(tmp_path / "report"), "--bundle"]):
            assert "bundle" in call(*words, str(path), code=Exit.USAGE).err
    assert (tmp_path / "thesis.tex").read_text() == "my words"
    assert not (tmp_path / "report").exists()


WRONG = {
    "a directory that is none": (["verify", "/nowhere/b.tar"], Exit.USAGE, "no such file"),
    "a directory": (["verify", "/"], Exit.USAGE, "cannot be read"),
    "a device": (["verify", "/dev/zero"], Exit.USAGE, "cannot be read"),
    "an empty file": (["verify", "/dev/null"], Exit.USAGE, "cannot be read"),
    "another file": (["verify", __file__], Exit.NOT_PROVEN, "not a bundle"),
    "no run": (["export", "--bundle", "x"], Exit.USAGE, "RUN"),
    "no directory for it": (["export", "RUN", "--bundle", "/nowhere/x"], Exit.USAGE, "there is no such directory"),
    "no key": (["export", "RUN", "--bundle", "x", "--sign", "/nowhere"], Exit.USAGE, "no such key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_explained(case: str, runs: list[str], call: Call) -> None:
    words, code, says = WRONG[case]
    assert says in call(*(runs[0] if word == "RUN" else word for word in words), code=code).err


def test_two_runs_of_one_id_are_no_bundle(runs: list[str], tmp_path: Path, call: Call) -> None:
    copied = shutil.copytree(runs[0], tmp_path / "other" / Path(runs[0]).name)
    said = call("export", runs[0], str(copied), "--bundle", str(tmp_path / "x.tar"), code=Exit.USAGE)
    assert "the same id" in said.err and not (tmp_path / "x.tar").exists()


def test_a_link_in_a_run_directory_brings_no_other_file(tmp_path: Path) -> None:
    run, private = tmp_path / "run", tmp_path / "private"
    for folder in (run / "ranks", private):
        folder.mkdir(parents=True)
    (private / "x.log").write_text("planted")
    (run / "versions").symlink_to(private / "x.log")
    (run / "nccl").symlink_to(private)
    (run / "ranks/0.start.json").write_text("{}")
    assert dict(files_of(Folder(run))) == {"ranks/0.start.json": b"{}"}


def test_of_a_batch_that_ranks_may_have_shared_the_records_tell_and_no_words_of_a_forger(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    assert run.verdict is not None
    run.write("verdict.json", msgspec.structs.replace(run.verdict, shared_batch="each has its own (checked)"))
    verdict = InBundle(run.path).verdict
    assert verdict is not None and verdict.shared_batch == ""


def test_doubts_of_earlier_versions_have_other_words_and_a_point_had_others() -> None:
    now = [{"code": "forced", "words": "as now"}, {"code": "disturbed", "words": "later"}]
    for before in ([], [{"code": "gap", "words": "as then"}], now):
        assert difference(before, now, "study.points.1.doubts") == ""
    for key in ("runs.0.figure.doubts", "runs.0.doubts"):
        assert difference([{"code": "forced", "words": "as then"}], now, key) == ""
        assert difference(now[1:], now, key) and difference(None, now, key)
