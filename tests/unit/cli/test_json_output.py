"""``--json``: one document of one shape, whatever happened, and nothing else on standard output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from runner.cli import cli, quickstart, run
from runner.core.errors import Exit
from runner.jobs.directory import Run
from runner.model.output import Document
from tests.support.documents import document
from tests.support.squashfs import SUPERBLOCK
from tests.support.submissions import IMAGE, sound, submit

CHECKOUT = Path(__file__).resolve().parents[3]
LOCAL = ("--gpus", "2", "--site", "local", "--runtime", "native", "--json")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path(IMAGE).write_bytes(SUPERBLOCK)


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> Document:
        code = run(list(words))
        made = document(capfd.readouterr().out)
        assert made.exit_code == code, words
        return made

    return call


FAILING: dict[str, tuple[list[str], str, Exit, str, str]] = {
    "no such verb": (["sumbit", "--json"], "", Exit.USAGE, "usage", "did you mean 'submit'?"),
    "no such verb of a group": (["images", "lits", "--json"], "images", Exit.USAGE, "usage", "lits"),
    "a value that is no number": (["submit", "--gpus", "x", "--json"], "submit", Exit.USAGE, "usage", "'x'"),
    "a verb without facts": (["schema", "--json"], "schema", Exit.USAGE, "usage", "--json"),
    "no such run": (["status", "none", "--json"], "status", Exit.USAGE, "usage", 'no run matches "none"'),
    "no such study": (["scale", "--resume", "x", "--json"], "scale", Exit.USAGE, "usage", 'no study matches "x".'),
    "no such site": (["site", "show", "nowhere", "--json"], "site show", Exit.USAGE, "usage", "nowhere"),
    "no such image": (["images", "show", "x:1", "--json"], "images show", Exit.REFUSED, "refused", "no image x:1"),
    "no Slurm": (sound("--json"), "submit", Exit.NOT_ACCEPTED, "not-accepted", "no Slurm client"),
    "no directory for runs": (
        ["submit", *LOCAL, "--runs", "/dev/null/x", "--", "true"], "submit", Exit.USAGE, "usage", "cannot be made",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILING)
def test_an_error_is_a_document_too(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    words, command, code, name, says = FAILING[case]
    assert run(words) == code
    out, err = capfd.readouterr()
    made = document(out)
    assert (made.command, made.exit_code, made.result) == (command, code, None)
    assert made.error is not None and (made.error.code, made.error.who) == (name, "user")
    assert says in made.error.what and says in err, "people still get their words"
    assert made.error.fix or "gpu-runner" in made.error.what


def test_what_follows_two_dashes_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(submit("--gpus", "x", "--", "python", "train.py", "--json")) == Exit.USAGE
    assert capfd.readouterr().out == ""


def test_a_dry_run_is_the_script_the_plan_and_the_findings(printed: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no text survive."""
    words = ("submit", "--gpus", "2", "--site", "local", "--runtime", "native", "--dry-run")
    assert run([*words, "--", "true"]) == Exit.GOOD
    script = capfd.readouterr().out
    facts = printed(*words, "--json", "--", "true").result
    assert facts["script"] == script
    assert facts["plan"]["tasks_per_node"] == [2]
    assert (facts["findings"], facts["unconfirmed"]) == ([], [])
    odd = os.fsdecode(b"\xff\xfe")
    assert odd in printed(*words, "--json", "--", "echo", odd).result["script"]


@pytest.mark.parametrize("dry", [True, False])
def test_a_refused_job_names_the_check_and_shows_no_secret_unless_the_script_is_requested(
    printed: Any, dry: bool
) -> None:
    words = ("submit", *LOCAL, "--mount", "/no/such:/no/such", "--env", "TOKEN=hunter2")
    made = printed(*words, *(("--dry-run",) if dry else ()), "--", "true")
    assert (made.exit_code, made.error.code, made.error.who) == (Exit.REFUSED, "mount-source-missing", "user")
    assert [each["code"] for each in made.result["findings"]] == ["mount-source-missing"]
    assert ("hunter2" in str(made.result)) is dry


def test_a_run_has_the_same_keys_from_its_submission_to_its_verdict(
    printed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    submitted = printed("submit", *LOCAL, "--", sys.executable, "-c", "print('hé\\nho'); raise SystemExit(3)")
    run_id = submitted.result["run"]
    waited = printed("wait", run_id, "--json")
    status = printed("status", run_id, "--json")
    assert list(submitted.result) == list(waited.result) == list(status.result)
    assert [submitted.result[key] for key in ("state", "verdict", "exit_code")] == ["pending", None, None]
    assert Path(submitted.result["directory"]) == tmp_path / "runs" / run_id
    assert (waited.exit_code, waited.error.code) == (5, "failed")
    assert waited.error.what == waited.result["verdict"]["reasons"][0]
    assert (waited.result["state"], waited.result["scheduler"]["name"]) == ("ended", "FAILED")
    assert (waited.result["gpus"], waited.result["ranks_started"]) == (2, 2)
    assert waited.result["ranks_ended"] in (1, 2), "the first that fails ends the other, which may only just have begun"
    assert submitted.result["submitted"] <= waited.result["started"] <= waited.result["ended"]
    (log,) = printed("logs", run_id, "--rank", "1", "--json").result
    assert (Path(log["path"]).name, log["rank"], log["text"]) == ("rank-1.out", 1, "hé\nho\n")
    assert [each["text"] for each in printed("logs", run_id, "--rank", "1", "-n", "1", "--json").result] == ["ho\n"]
    assert printed("logs", run_id, "--follow", "--json").exit_code == Exit.USAGE
    assert (status.exit_code, status.error, status.result) == (0, None, waited.result)
    assert printed("cancel", run_id, "--json").result["had_ended"] is True
    (tmp_path / "other").mkdir()
    for directory, says in ((tmp_path, False), (tmp_path / "other", True)):
        monkeypatch.chdir(directory)
        run(["logs", "--json"])
        assert (f"run {run_id}, of {tmp_path}/runs;" in capfd.readouterr().err) == says, "whose run it is"


def test_several_runs_are_waited_for_and_cancelled_together(printed: Any, tmp_path: Path) -> None:
    """Of several the documents of each, and the exit code of the first that is not good; a name that is none does
    nothing, and one that cannot be cancelled keeps no other from it.
    """
    lines = ("exit 3", "exit 0", "sleep 60", "sleep 60")
    runs = [printed("submit", *LOCAL, "--", "sh", "-c", line).result["run"] for line in lines]
    waited = printed("wait", runs[1], "@4", runs[1], "--json")
    assert ([each["run"] for each in waited.result["runs"]], waited.exit_code) == ([runs[1], runs[0]], 5)
    assert waited.error.what == waited.result["runs"][1]["verdict"]["reasons"][0]
    over = printed("wait", "@1", "@2", "--timeout", "0.3", "--json")
    assert (over.exit_code, over.result) == (Exit.UNKNOWN, None)
    assert printed("cancel", "@1", "no-such-run", "--json").exit_code == Exit.USAGE
    broken = Run(tmp_path / "runs" / runs[1])
    assert broken.submitted is not None
    broken.write("job.json", msgspec.structs.replace(broken.submitted, refused="no"))
    cancelled = printed("cancel", "@1", str(broken.path), "@2", "--json")
    assert (cancelled.exit_code, cancelled.error.what) == (Exit.NOT_ACCEPTED, "no")
    (again,) = {each["had_ended"] for each in printed("cancel", "@1", "@2", "--json").result["runs"]}
    assert again or printed("wait", "@1", "@2", "--json").exit_code == 5
    assert {each["verdict"]["outcome"] for each in printed("wait", "@1", "@2", "--json").result["runs"]} == {
        "cancelled"
    }


def test_a_box_that_is_not_up_is_down(printed: Any) -> None:
    facts = printed("box", "down", "--name", "none", "--json").result
    assert (facts["name"], facts["was_up"], facts["seconds"] < 5) == ("none", False, True)


def test_a_step_of_quickstart_has_the_document_of_its_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Its error is that of the step that failed."""
    code, step = quickstart.documented(("box", "down", "--name", "a/b"))
    assert (code, step["command"], step["error"]["code"]) == (Exit.USAGE, "box down", "usage")
    with click.Context(quickstart.command, click.Context(cli), "quickstart"):
        assert quickstart.show([quickstart.Taken("the box", ("box", "up"), code, 0.5, step)]) == Exit.USAGE
    shown = document(capfd.readouterr().out)
    assert (shown.error and shown.error.what, shown.result["steps"][0]["document"]) == (step["error"]["what"], step)


def test_a_wait_that_ends_early_leaves_the_error(printed: Any) -> None:
    """Its time is over, or Ctrl-C ends it."""
    run_id = printed("submit", *LOCAL, "--", "sleep", "60").result["run"]
    interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    try:
        over = printed("wait", run_id, "--timeout", "0.2", "--json")
        assert (over.exit_code, over.error.code, over.result) == (9, "unknown", None)
        interrupt.start()
        ended = printed("wait", run_id, "--json")
        assert (ended.exit_code, ended.error.code) == (Exit.INTERRUPTED, "interrupted")
        assert "continues" in ended.error.what and run_id in ended.error.fix
    finally:
        interrupt.cancel()
        assert printed("cancel", run_id, "--json").result["had_ended"] is False


def test_a_reader_that_is_gone_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "runner", "status", "no-such-run", "--json"]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=CHECKOUT)
    os.close(write)
    assert "Traceback" not in done.stderr
