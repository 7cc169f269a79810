"""``submit --snapshot``: what runs is the code as it was submitted, and no file from elsewhere is ever copied.
``submit --write`` and ``--dry-run --full``: a job to read, and to submit by hand with nothing of ours installed.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shlex import quote

import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError, UsageError
from runner.jobs import snapshot_copy
from runner.jobs.directory import Run
from runner.jobs.snapshot_copy import Snapshot, copy
from runner.model.request import Request
from runner.preparation.job import prepare
from runner.preparation.request import make_request
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.repositories import git, repository
from tests.support.terminals import Terminal
from tests.support.users import AS_ROOT, BOB

CHECKOUT = Path(__file__).resolve().parents[3]
# A command as root that may not read what its mode forbids, as for everybody else.
_RIGHTS = "-dac_override,-dac_read_search"
WITHOUT_OVERRIDE = ("setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}") if os.geteuid() == 0 else ()
# Leaves what it found where it ran: of a copy, the copy is as it was, also when it runs again.
PROGRAM = "import os, pathlib\nprint(open('value').read(), sorted(os.listdir()))\npathlib.Path('output').touch()\n"
PLACE = "a b$q'\"ü"
LOCAL = ("submit", "--site", "local", "--runtime", "native", "--gpus", "1", "--snapshot")


def request_of(runs: Path, *program: str, site: str = "local") -> Request:
    return make_request({"gpus": 1, "site": site, "snapshot": True, "runs": str(runs), "arguments": program})


@pytest.fixture
def empty_run(tmp_path: Path) -> Run:
    (tmp_path / "run").mkdir()
    return Run(tmp_path / "run")


def test_the_copy_runs_and_runs_again_unless_another_one_is_requested(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.py": PROGRAM.encode(), "value": b"0", "gone.py": b"", "x\ny": b"", os.fsdecode(b"b\xff"): b""}
    top = repository(tmp_path / "r", {f"{PLACE}/{name}": content for name, content in files.items()})
    start, runs = top / PLACE, tmp_path / "runs"
    monkeypatch.chdir(start)
    (start / "value").write_text("first")
    (start / "gone.py").unlink()
    (start / "untracked.py").touch()
    words, program = (*LOCAL, "--runs", str(runs)), ("--", sys.executable, "a.py")
    script = call(*words, "--dry-run", *program)[0]
    assert str(top) not in script and str(runs) not in script
    first = result(call(*words, "--json", *program)[0])["run"]
    call("wait", first)
    assert (runs / first / "job.sh").read_text() == script
    assert f"a copy ran: {runs / first / 'code'}" in call("show", first)[0]
    (start / "value").write_text("second")
    git(top, "commit", "-qam", "later")

    def again(*more: str) -> tuple[str, str, str]:
        printed, said = call("rerun", str(again_of), *more, "--json", "--wait")
        made = result(printed)
        log = (Path(made["directory"]) / "logs/rank-0.out").read_text()
        return made["run"], said, log

    again_of = first
    second, said, log = again()
    assert log == (runs / first / "logs/rank-0.out").read_text() == "first ['a.py', 'b\\udcff', 'value', 'x\\ny']\n"
    assert "code: the copy that ran; --snapshot copies it as it is now" in said
    assert f"the same plan and code as {first}" in said
    code = [result(call("show", name, "--json")[0])["code"] for name in (first, second)]
    assert code[0] == code[1]
    again_of = second
    assert again()[2].startswith("first [")
    assert again("--snapshot")[2].startswith("second [")
    third = again("--without", "snapshot")
    assert third[2].startswith("second [") and "code: the copy" not in third[1]

    assert "the copy that ran has no b.py" in call("rerun", first, "--", "python", "b.py", code=Exit.REFUSED)[1]
    (runs / first / "code" / PLACE / "value").write_text("edited")
    said = call("rerun", first, code=Exit.REFUSED)[1]
    assert "the copy that ran has changed since" in said and "--without snapshot" in said
    (runs / first / "code-files.json").unlink()
    assert "the code that ran is not available" in call("rerun", first, code=Exit.REFUSED)[1]


def test_what_cannot_be_copied_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = repository(tmp_path / "r", {"train.py": b"", "sub/x": b""})
    (top / "new.py").write_text("")
    outside = tmp_path / "outside.py"
    outside.write_text("")

    def refusal(*program: str, directory: Path = top) -> RefusedError:
        monkeypatch.chdir(directory)
        with pytest.raises(RefusedError) as caught:
            prepare(request_of(tmp_path, *program))
        assert caught.value.code == Exit.REFUSED
        return caught.value

    assert "in no git repository" in str(refusal("python", "outside.py", directory=tmp_path))
    assert "git add new.py" in refusal("python", "new.py").fix
    assert "not tracked" in str(refusal("python", "../outside.py"))
    for original in (str(top / "train.py"), "/workspace/train.py"):
        assert "names the original" in str(refusal("python", original))
    recipe = make_request({"gpus": 1, "site": "local", "snapshot": True, "recipe": "probe"})
    with pytest.raises(UsageError, match="copied into the run directory anyway"):
        prepare(recipe)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed here" in str(refusal("python", "train.py"))


def test_links_stay_links_and_those_that_lead_out_are_left_out_with_a_warning(
    tmp_path: Path, empty_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = repository(tmp_path / "r", {"a/file": b"1", "run.sh": b"2"})
    (top / "run.sh").chmod(0o755)
    for name, target in (("a/in", "../run.sh"), ("a/out", "../../x"), ("absolute", "/etc/passwd"), ("dir", "a")):
        (top / name).symlink_to(target)
    git(top, "add", "-A")
    (top / "a/file").unlink()
    os.mkfifo(top / "a/file")
    snapshot = Snapshot(top, "a", ("a/file", "a/in", "a/out", "absolute", "dir", "run.sh"))
    assert snapshot_copy.left_out(snapshot) == ("a/out", "absolute")
    copy(snapshot, empty_run)
    copied = empty_run.path / "code"
    assert sorted(path.relative_to(copied).as_posix() for path in copied.rglob("*")) == ["a", "a/in", "dir", "run.sh"]
    assert ((copied / "a/in").readlink(), (copied / "dir").readlink()) == (Path("../run.sh"), Path("a"))
    assert stat.S_IMODE((copied / "run.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE(copied.stat().st_mode) == 0o700
    monkeypatch.chdir(top)
    warning = next(each for each in prepare(request_of(tmp_path, "true")).findings if each.code == "links-not-copied")
    assert (warning.severity, "no link 'a/out' and 1 more" in warning.what) == ("warn", True)
    top.chmod(0o1777)  # where others may exchange what is copied
    assert "open-directory" in {each.code for each in prepare(request_of(tmp_path, "true")).findings}


@AS_ROOT
def test_a_strangers_file_where_all_may_write_is_left_out_with_a_warning(
    tmp_path: Path, empty_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(top := repository(tmp_path / "r", {"train.py": b"", "open/m.py": b"", "open/own.py": b""}))
    (top / "open").chmod(0o1777)
    os.chown(top / "open/m.py", BOB, BOB)
    prepared = prepare(request_of(tmp_path, "python3", "train.py"))
    (left_out,) = (each for each in prepared.findings if each.code == "files-not-copied")
    assert (left_out.severity, "1 file of other users" in left_out.what) == ("warn", True)
    assert prepared.snapshot is not None
    copy(prepared.snapshot, empty_run)
    assert [path.name for path in (empty_run.path / "code/open").iterdir()] == ["own.py"]


def test_a_hostile_index_reads_and_writes_nothing_elsewhere(tmp_path: Path, empty_run: Run) -> None:
    """Names that lead out, through links as well, and links that a later name would be written through."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("planted")
    top = tmp_path / "r"
    (top / "real").mkdir(parents=True)
    (top / "real" / "x").write_text("fine")
    (top / "link").symlink_to(secret)
    (top / "up").symlink_to(".")
    names = ("link/key", "../secret/key", "/etc/passwd", "up", "up/real/x", "real/x", "real//./y", "", "..", ".")
    copy(Snapshot(top, "", names), empty_run)
    content = {path.relative_to(empty_run.path).as_posix(): path.is_symlink() for path in empty_run.path.rglob("*")}
    assert content.pop("code-files.json") is False
    assert content == {"code": False, "code/up": True, "code/real": False, "code/real/x": False}
    assert [path.name for path in secret.iterdir()] == ["key"]


def test_submodules_are_copied(tmp_path: Path, empty_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = repository(tmp_path / "inner", {"lib/m.py": b"12345"})
    top = repository(tmp_path / "r", {"train.py": b"12345"})
    git(top, "submodule", "add", "-q", str(inner), "deps/sub")
    monkeypatch.chdir(top)
    prepared = prepare(request_of(tmp_path, "true"))
    assert prepared.snapshot is not None
    assert set(prepared.snapshot.names) == {".gitmodules", "train.py", "deps/sub/lib/m.py"}
    copy(prepared.snapshot, empty_run)
    assert (empty_run.path / "code/deps/sub/lib/m.py").read_text() == "12345"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Root gives up the right to read every file first."""
    repository(tmp_path / "r", {"train.py": b"", "mine": b"x"})
    (tmp_path / "r/mine").chmod(0)
    submit = (*LOCAL, "--runs", str(tmp_path / "runs"), "--", sys.executable, "train.py")
    done = subprocess.run(
        [*WITHOUT_OVERRIDE, sys.executable, "-m", "runner", *submit],
        cwd=tmp_path / "r", env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.REFUSED, done.stderr
    assert "error: a tracked file cannot be read: permission denied\n  where: mine\n" in done.stderr
    assert list((tmp_path / "runs").glob("[!.]*")) == []


def test_too_much_is_refused_and_leaves_nothing(
    tmp_path: Path, call: Call, empty_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = repository(tmp_path / "r", {"a.py": b"12", "large": b"123456"})
    monkeypatch.chdir(top)
    monkeypatch.setattr(snapshot_copy, "MOST_BYTES", 5)
    runs = tmp_path / "runs"
    said = call(*LOCAL, "--runs", str(runs), "--", sys.executable, "a.py", code=Exit.REFUSED)[1]
    assert "leave out --snapshot" in said
    assert list(runs.glob("[!.]*")) == []
    with pytest.raises(RefusedError, match="the tracked files have more than"):
        copy(Snapshot(top, "", ("a.py", "large")), empty_run)
    assert sum(path.stat().st_size for path in (empty_run.path / "code").iterdir()) == 2, "nothing of the large one"


def test_the_copy_is_where_containers_see_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository(tmp_path / "r", {"su b/train.py": b""}) / "su b")
    plan = prepare(request_of(tmp_path, "python", "train.py", site="technion")).plan
    assert (plan.workdir, plan.mounts) == ("/results/code/su b", ())


REQUEST = ("submit", "--site", "local", "--recipe", "probe", "--runtime", "native", "--gpus", "2")


def test_a_written_job_runs_by_plain_bash_and_is_judged_where_it_lies(tmp_path: Path, call: Call) -> None:
    job = tmp_path / "my job's $dir"
    assert f"cd {quote(str(job))} && bash job.sh" in call(*REQUEST, "--write", str(job)).out
    assert not (tmp_path / "state" / "runs").exists(), "nothing was submitted"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "job.sh"], cwd=job, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + (job / "logs/rank-0.err").read_text()
    assert "verdict: ran" in call("wait", str(job)).out
    for words in (("--write", str(job)), ("--write", "x", "--dry-run"), ("--write", "x", "--wait"), ("--full",)):
        assert run([*REQUEST, *words]) == Exit.USAGE


def test_the_site_of_the_shell_counts_for_a_server_and_ssh_too(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_SITE", "local")
    words = ("serve", "--gpus=1", "--runtime=native", "--dry-run", "--", "python3", "-m", "http.server", "{port}")
    assert "inside/serve" in call(*words).out.replace(".", "/")
    assert "the site local says" in call("shell", "--ssh", "--gpus=1", "--runtime=native", code=Exit.REFUSED).err


def test_a_full_dry_run_prints_each_file_that_the_script_names(call: Call) -> None:
    script = call(*REQUEST, "--dry-run").out
    full = call(*REQUEST, "--dry-run", "--full").out
    assert full.startswith(script)
    files = result(call(*REQUEST, "--dry-run", "--full", "--json").out)["files"]
    assert {*files} == {"common.sh", "supervise.sh", "rank.sh", "launch.py"}
    for name, text in files.items():
        assert f"{sha256(os.fsencode(text)).hexdigest()}  lib/{name}\n" in script
        assert text in full


def test_what_a_dry_run_prints_changes_no_terminal(call: Call) -> None:
    words = (*REQUEST[:3], *REQUEST[5:], "--dry-run", "--", "true", "\x1b]0;x\x07 ü")
    assert "\x1b]0;x\x07 ü" in call(*words).out, "where it is no terminal, the script as it is"
    terminal = Terminal([sys.executable, "-m", "runner", *words], os.environ, Path.cwd())
    assert terminal.end() == 0
    assert "\\x1b]0;x\\x07 ü" in terminal.seen
    assert "\x1b]0;" not in terminal.seen
