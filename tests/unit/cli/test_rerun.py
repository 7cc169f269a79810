"""What a run was is shown, compared and repeated: runs of this machine, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from runner.cli.rerun import image_line
from runner.core import ownership
from runner.core.errors import Exit
from runner.jobs.directory import index
from runner.jobs.seals import orders
from runner.model.plan import PlannedImage
from tests.support import documents
from tests.support.commands import Call
from tests.support.plans import PLAN
from tests.support.repositories import git, repository
from tests.support.users import AS_ROOT, CAROL

ODD = "a b$q'\"ü\n.py"
PROGRAM = "import os, pathlib, sys\npathlib.Path(os.environ['RUNNER_RUN_DIR'], 'args').write_text(repr(sys.argv[1:]))\n"
LOCAL = ("--site", "local", "--runtime", "native", "--gpus", "1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a program in git, where the test is."""
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))
    top = repository(tmp_path / "pro ject", {ODD: PROGRAM.encode()})
    monkeypatch.chdir(top)
    return top


def facts(call: Call, *words: str) -> dict[str, object]:
    result = documents.result(call("show", *words, "--json")[0])
    assert isinstance(result, dict)
    return result


def test_without_a_diff_nothing_of_the_changes_is_kept(project: Path, call: Call) -> None:
    (project / ODD).write_text(f"{PROGRAM}planted = 1\n")
    call("submit", *LOCAL, "--wait", "--no-diff", "--", sys.executable, ODD)
    shown = facts(call)
    code, run = shown["code"], Path(str(shown["directory"]))
    assert isinstance(code, dict) and code["dirty"] and not shown["code_diff"]
    assert not [each for each in run.rglob("*") if each.is_file() and b"planted" in each.read_bytes()]


def test_a_run_is_shown_repeated_with_changes_and_compared(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ODD).write_text(f"{PROGRAM}password = 'planted-1'\n")
    words = (*LOCAL, "--wait", "--env", "MY_TOKEN=planted-2", "--", sys.executable, ODD, "--lr", "0 1", "$x")
    call("submit", *words)
    first = facts(call)
    assert first["command_line"] == ["submit", *("MY_TOKEN=***" if "planted" in word else word for word in words)]
    assert first["typed_in"] == str(project)
    code = first["code"]
    assert isinstance(code, dict)
    assert (code["commit"], code["dirty"], code["changed"]) == (git(project, "rev-parse", "HEAD"), True, [ODD])
    directory = Path(str(first["directory"]))
    shown = call("show", directory.name)[0]
    assert "planted" not in shown
    assert "\\u2026" not in shown and "ü\\n.py" in shown
    assert "verdict    ran" in shown
    assert "+password = ***" in call("show", "--diff")[0]
    for name in ("request.json", "command.json", "code.json", "code.diff"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600

    monkeypatch.chdir("/")
    said = call("rerun", directory.name, "--wait", "--env", "OTHER=1")[1]
    assert "OTHER: none -> 1" in said
    second = facts(call)
    assert (second["rerun_of"], second["typed_in"]) == (directory.name, str(project))
    assert Path(str(second["directory"]), "args").read_text() == repr(["--lr", "0 1", "$x"])
    compared = call("diff", directory.name, str(second["run"]))[0]
    assert "  OTHER: none -> 1\n" in compared
    assert "commit" not in compared and "outcome" not in compared

    said = call("rerun", directory.name, "--wait")[1]
    assert f"the same plan and code as {directory.name}" in said
    third = str(facts(call)["run"])
    differences = documents.result(call("diff", directory.name, third, "--json")[0])["differences"]
    assert {each["area"] for each in differences} <= {"request"}
    assert "no difference in" in call("diff", third, third)[0]

    script = (directory / "job.sh").read_text()
    assert call("rerun", directory.name, "--dry-run")[0] == script
    (directory / "request.json").unlink()
    assert call("rerun", directory.name, "--dry-run")[0] == script, "of an older run, by its command line"
    (project / ODD).write_text(PROGRAM)
    said = call("rerun", directory.name, "--dry-run", "--", sys.executable, ODD, "new")[1]
    assert "uncommitted changes: " in said and " -> none" in said and "program:" in said


def test_what_was_not_recorded_is_reported(project: Path, call: Call) -> None:
    call("submit", *LOCAL, "--wait", "--no-diff", "--recipe", "probe")
    shown = facts(call)
    assert (shown["code"], shown["code_diff"]) == (None, "")
    assert "no difference kept" in call("show", "--diff", code=Exit.USAGE)[1]
    directory = Path(str(shown["directory"]))
    for name in ("request.json", "command.json"):
        (directory / name).write_text((directory / name).read_text().replace("probe", "allreduce"))
        said = call("rerun", "@1", code=Exit.REFUSED)[1]
        assert f"changed since the run was submitted, as its own job can do\n  where: {directory / name}" in said
        moved = directory.parent.with_name("moved")
        directory.parent.rename(moved)
        assert "changed since the run was submitted" in call("rerun", str(moved / directory.name), code=Exit.REFUSED)[1]
        moved.rename(directory.parent)
        (directory / name).unlink()
    said = call("rerun", directory.name, code=Exit.USAGE)[1]
    assert "no recorded command line" in said
    assert "command    not recorded" in call("show")[0]


def test_of_a_run_that_was_renamed_too_strangers_are_refused(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("submit", *LOCAL, "--wait", "--", sys.executable, ODD)
    directory = Path(str(facts(call)["directory"]))
    renamed = directory.rename(directory.with_name("paper"))
    monkeypatch.setattr(ownership, "exchangeable_by", lambda path, **_: "a stranger's" if path.name == ODD else "")
    assert "a stranger's, since" in call("rerun", str(renamed), "--dry-run", code=Exit.REFUSED)[1]
    (index() / directory.name).unlink()  # as of one by `submit --write`, and by another RUNNER_STATE
    assert "a stranger's, since" in call("rerun", str(renamed), "--dry-run", code=Exit.REFUSED)[1]


@AS_ROOT
def test_a_strangers_force_is_not_repeated_and_arguments_can_be_left_out(project: Path, call: Call) -> None:
    call("submit", *LOCAL, "--wait", "--force", "program-not-startable", "--", "./none", code=Exit.PROGRAM_FAILED)
    directory = Path(str(facts(call)["directory"]))
    call("rerun", str(directory), "--dry-run")
    for each in (directory, *directory.rglob("*")):
        os.chown(each, CAROL, CAROL, follow_symlinks=False)
    assert "--force program-not-startable" in call("rerun", str(directory), "--dry-run", code=Exit.REFUSED)[1]
    call("rerun", str(directory), "--dry-run", "--force", "program-not-startable")
    whole = call("rerun", str(directory), "--dry-run", "--recipe", "probe", code=Exit.REFUSED)[1]
    assert "-- ..." in whole and "--without arguments; RUNNER_TRUST=" in whole
    call("rerun", str(directory), "--dry-run", "--recipe", "probe", "--without", "arguments")


def test_what_cannot_be_repeated_is_refused_with_the_reason(project: Path, call: Call) -> None:
    call("submit", *LOCAL, "--wait", "--runs", str(project.parent / "runs"), "--", sys.executable, ODD)
    directory = Path(str(facts(call)["directory"]))

    def refusal(*words: str) -> str:
        return call("rerun", directory.name, *words, code=Exit.USAGE)[1]

    assert "did you mean 'stage'?" in refusal("--without", "sttage")
    (orders() / directory.name).unlink()  # as another user's
    kept = (directory / "request.json").read_text()
    nul = ("runs", "\0"), ("site", "/\0.yaml"), ("recipe", "./\0"), ("env_name", "/\0"), ("hostfile", "\0")
    for name, value in (*nul, ("mounts", [{"source": "\0", "target": "/a"}])):
        record = json.loads(kept)
        record["request"][name] = value
        (directory / "request.json").write_text(json.dumps(record))
        assert "no path has a NUL character\n" in refusal("--dry-run"), name
    (directory / "request.json").write_text(kept)
    shutil.rmtree(project)
    assert "cannot be used: No such file" in refusal()
    (directory / "request.json").unlink()  # as of an older version
    for arguments, folder, why in (
        (["box", "start"], "/", "no recorded command line"),
        (["submit", "--gpus", "1"], "/\0", "no path has a NUL character"),
    ):
        (directory / "command.json").write_text(json.dumps({"arguments": arguments, "directory": folder}))
        assert why in refusal()


def test_the_image_is_compared_with_the_one_that_ran() -> None:
    def line(image: PlannedImage, runtime: str = "pyxis") -> str:
        return image_line(
            PlannedImage("a:1", "sha256:00", "/s/1"), msgspec.structs.replace(PLAN, image=image, runtime=runtime)
        )

    assert line(PlannedImage("a:1@sha256:00", "sha256:00", "/s/1")) == "image: a:1@sha256:00, the one that ran"
    assembled = PlannedImage("a:1@sha256:00", "sha256:00", "/s/2", sha256="1")
    assert line(assembled) == "image: a:1@sha256:00, the one that ran, in another file"
    assert "not the one that ran (a:1@sha256:00)" in line(PlannedImage("a:1", "sha256:11", "/s/2"))
    assert "not the one that ran" in line(PlannedImage("/x.sqsh", "", "/x.sqsh"))
    assert "by its name: it may stand for another" in line(PlannedImage("a:1", "", ""), "shifter")
    assert line(PlannedImage("", "", ""), "native") == ""
