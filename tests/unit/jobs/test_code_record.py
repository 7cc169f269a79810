"""The record of the user's code: what it says of every kind of repository, and that none can run anything."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from runner.jobs import code_record as reading
from runner.jobs.code_record import code_record
from runner.model.job import CodeRecord
from tests.support.repositories import git, repository
from tests.support.shell_files import stand_in

ODD = "a b/q'\"$ü\n\\t.py"


def record(directory: Path, *program: str, with_diff: bool = True) -> tuple[CodeRecord, str]:
    return code_record(program, directory, with_diff=with_diff)


def test_a_clean_commit_of_which_nothing_is_written(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"train.py": b"1\n", ODD: b"1\n"})
    os.utime(top / "train.py", (0, 0))  # touched only: plain `git diff` would write the index anew

    def state() -> dict[str, tuple[int, bytes]]:
        files = (path for path in top.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    recorded = CodeRecord(repository=str(top), commit=git(top, "rev-parse", "HEAD"), branch="main", dirty=False)
    seen, diff = record(top, "python", "train.py")
    assert (msgspec.structs.replace(seen, sources="", other_sources=""), diff) == (recorded, "")
    assert state() == before


def test_documentation_is_no_part_of_a_program(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"train.py": b"1\n", "a/README.md": b"1\n", "docs/x.html": b"1\n"})
    first, _ = record(top, "python", "train.py")
    (top / "a/README.md").write_text("2\n")
    assert record(top, "python", "train.py") == (first, "")
    (top / "docs/x.html").write_text("2\n")
    git(top, "commit", "-q", "-a", "-m", "second")
    second, _ = record(top, "python", "train.py")
    assert (second.commit != first.commit, second.sources) == (True, first.sources)
    (top / "train.py").write_text("2\n")
    git(top, "commit", "-q", "-a", "-m", "third")
    third, _ = record(top, "python", "train.py")
    assert (third.sources != first.sources, third.other_sources) == (True, first.other_sources)
    (top / "op.cu").write_text("2\n")
    git(top, "add", "op.cu")
    assert record(top, "python", "train.py")[0].other_sources != first.other_sources


def test_changes_are_named_and_those_of_text_kept_without_secrets(tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"train.py": b"1\n", ODD: b"1\n", "x.bin": b"\0\1", "gone.py": b"1\n", "big": b""})
    (top / "train.py").write_text("password = 'planted-1'\nkey = 'hf_" + "p1ant3d" * 5 + "'\n")
    (top / ODD).write_text("2\n")
    (top / "x.bin").write_bytes(b"\0\2")
    (top / "gone.py").unlink()
    (top / "big").write_text("x" * 60 + "\n" + "line\n" * 400_000)
    (top / "new.py").write_text("staged")
    git(top, "add", "new.py")
    found, diff = record(top / "a b", "python", "../train.py")
    assert found.dirty is True
    assert set(found.changed) == {ODD, "train.py", "x.bin", "gone.py", "big", "new.py"}
    assert (found.binary, found.too_long, found.redacted) == (("x.bin",), ("big",), 2)
    assert "planted" not in diff and "p1ant3d" not in diff
    assert "+password = ***" in diff and "+staged" in diff and "-1" in diff
    assert len(diff) < 2000
    unkept, nothing = record(top, with_diff=False)
    assert (unkept.dirty, unkept.changed, unkept.diff_kept, nothing) == (True, found.changed, False, "")


def test_the_repository_is_that_of_the_programs_file(tmp_path: Path) -> None:
    mine = repository(tmp_path / "mine", {"train.py": b"1\n"})
    other = repository(tmp_path / "other", {"x": b"1\n"})
    assert record(other, "python", str(mine / "train.py"))[0].repository == str(mine)
    assert record(other, "python", "-m", "train")[0].repository == str(other)
    (mine / "new.py").write_text("")
    assert record(mine, "python", "new.py")[0].untracked == "new.py"
    assert record(mine, "python", "train.py")[0].untracked == ""


def test_no_repository_and_one_that_is_broken_are_reported(tmp_path: Path) -> None:
    assert record(tmp_path)[0].problem == "the program is in no git repository"
    (tmp_path / ".git").write_text("nonsense")
    assert "neither a directory nor a link" in record(tmp_path)[0].problem
    top = repository(tmp_path / "r", {"a": b"1"})
    (top / ".git" / "index").write_bytes(b"nonsense")
    found, _ = record(top)
    assert found.commit and found.dirty is None
    assert "what differs from the commit is unknown: git cannot read the repository" in found.problem
    (top / ".git" / "HEAD").unlink()
    os.mkfifo(top / ".git" / "HEAD")
    assert "no regular file" in record(top)[0].problem


def test_an_empty_repository_a_detached_head_packed_references_and_another_work_tree(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q", "-b", "main")
    assert record(empty)[0] == CodeRecord(repository=str(empty), branch="main", dirty=False)
    (empty / "a").write_text("1\n")
    git(empty, "add", "a")
    assert record(empty)[0].changed == ("a",)

    top = repository(tmp_path / "r", {"a": b"1\n"})
    commit = git(top, "rev-parse", "HEAD")
    git(top, "pack-refs", "--all")
    assert not (top / ".git/refs/heads/main").exists()
    assert record(top)[0].commit == commit
    git(top, "worktree", "add", "-q", str(tmp_path / "second"), "-b", "two")
    (tmp_path / "second" / "a").write_text("2\n")
    found, diff = record(tmp_path / "second")
    assert (found.commit, found.branch, found.changed) == (commit, "two", ("a",))
    assert "+2" in diff
    git(top, "checkout", "-q", "--detach")
    assert (record(top)[0].commit, record(top)[0].branch, record(top)[0].dirty) == (commit, "", False)


def test_a_submodule_is_a_repository_of_its_own_and_counts_by_its_commit(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", {"a": b"1\n"})
    top = repository(tmp_path / "r", {"b": b"1\n"})
    git(top, "submodule", "add", "-q", str(inner), "sub")
    git(top, "commit", "-q", "-m", "sub")
    (top / "sub" / "a").write_text("2\n")
    assert record(top)[0].dirty is False
    assert record(top / "sub")[0].changed == ("a",)
    git(top / "sub", "commit", "-qam", "two")
    assert record(top)[0].changed == ("sub",)


def test_sha256_repositories_and_file_modes_that_do_not_count(tmp_path: Path) -> None:
    top = tmp_path / "r"
    top.mkdir()
    git(top, "init", "-q", "-b", "main", "--object-format=sha256")
    (top / "a").write_text("1\n")
    git(top, "add", "a")
    git(top, "commit", "-qm", "x")
    assert len(record(top)[0].commit) == 64
    (top / "a").chmod(0o755)
    assert record(top)[0].changed == ("a",)
    git(top, "config", "core.fileMode", "false")
    assert record(top)[0].dirty is False


def test_a_hostile_repository_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting by which a repository can name a program, all of them armed."""
    top = repository(tmp_path / "r", {"a.py": b"1\n", "b.py": b"1\n", ".gitattributes": b"* filter=f diff=d\n"})
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    stand_in(tmp_path, "program", f"echo \"$0 $*\" >>'{ran}'\ncat")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction", "post-checkout"):
        (hooks / name).symlink_to(program)
    included = tmp_path / "included"
    included.write_text(f'[core]\n\tfsmonitor = {program}\n[filter "f"]\n\tclean = {program}\n')
    settings = {
        "core.fsmonitor": program, "core.hooksPath": hooks, "core.pager": program, "core.sshCommand": program,
        "core.editor": program, "core.askPass": program, "diff.external": program, "diff.d.command": program,
        "diff.d.textconv": program, "filter.f.clean": program, "filter.f.smudge": program, "filter.f.process": program,
        "filter.f.required": "true", "include.path": included, "credential.helper": program, "gpg.program": program,
        "alias.diff": f"!{program}", "core.worktree": "/", "core.alternateRefsCommand": program,
    }  # fmt: skip
    for key, value in settings.items():
        git(top, "config", key, str(value))
    ran.unlink(missing_ok=True)
    (top / "a.py").write_text("2\n")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(program))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor={program}'")
    found, diff = record(top, "python", "a.py")
    assert not ran.exists(), ran.read_text()
    assert (found.changed, found.problem) == (("a.py",), "")
    assert "+2" in diff
    env = {name: value for name, value in os.environ.items() if name != "GIT_CONFIG_PARAMETERS"}
    subprocess.run(("git", "-C", top, "--work-tree=.", "diff"), env=env, capture_output=True, check=False)
    assert ran.exists(), "plain git would have run it"


def test_nothing_of_a_repository_is_an_argument_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All can read the arguments of every program."""
    top = repository(tmp_path / "r", {"a.py": b"1\n"})
    (tmp_path / "bin").mkdir()
    log, commit = tmp_path / "log", git(top, "rev-parse", "HEAD")
    stand_in(tmp_path / "bin", "git", f'echo "$*" >>\'{log}\'\nexec {shutil.which("git")} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    now, _ = record(top)
    assert (now.commit, reading.changed_since(commit, now)) == (commit, ())
    assert "diff" in log.read_text() and commit not in log.read_text() and str(top) not in log.read_text()


@pytest.mark.parametrize("flags", [(), ("--assume-unchanged", "b.py")])
def test_a_split_index_is_read(flags: tuple[str, ...], tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"a.py": b"1\n", "b.py": b"1\n"})
    git(top, "update-index", "--split-index", *flags)
    (top / "a.py").write_text("2\n")
    git(top, "add", "a.py")
    assert [*(top / ".git").glob("sharedindex.*")]
    assert record(top)[0].changed == ("a.py",)


def test_git_that_is_missing_or_silent_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = repository(tmp_path / "r", {"a": b"1"})
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    found, _ = record(top)
    assert (found.branch, len(found.commit), found.problem) == (
        "main", 40, "what differs from the commit is unknown: git is not installed here",
    )  # fmt: skip
    monkeypatch.setattr(reading, "TIMEOUT_S", 0.3)
    stand_in(programs, "git", "exec /bin/sleep 30")
    assert "git did not answer within 0.3 s" in record(top)[0].problem


def test_a_repository_of_another_user_is_read_too(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a repository away")
    top = repository(tmp_path / "r", {"a": b"1\n"})
    for path in (top, top / ".git", *top.rglob("*")):
        os.chown(path, 12345, 12345)
    with pytest.raises(subprocess.CalledProcessError):
        git(top, "status")  # "detected dubious ownership"
    assert record(top)[0].dirty is False


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_was_to_take_for_unchanged_is_compared(flag: str, tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"train.py": b"1\n", "left out.py": b"1\n"})
    git(top, "update-index", flag, "train.py")
    git(top, "update-index", "--skip-worktree", "left out.py")  # as a sparse checkout has it
    (top / "left out.py").unlink()
    (top / "train.py").write_text("2\n")
    before = (top / ".git/index").read_bytes()
    assert git(top, "diff", "HEAD") == "", "as git has it"
    assert record(top)[0].changed == ("train.py",) and (top / ".git/index").read_bytes() == before


def test_an_index_that_names_what_is_outside_is_not_read(tmp_path: Path) -> None:
    """As another user can make one: git would show that file's lines as changes."""
    top = repository(tmp_path / "r", {"xx/diary.py": b"1\n", "train.py": b"1\n"})
    (tmp_path / "diary.py").write_text("private\n")
    index = (top / ".git/index").read_bytes().partition(b"TREE")[0].replace(b"xx/diary.py", b"../diary.py")
    (top / ".git/index").write_bytes(index + hashlib.sha1(index).digest())
    assert "private" in git(top, "diff", "HEAD"), "as git has it"
    found, diff = record(top, "python", "train.py")
    assert (found.problem.endswith(" leads out of it: ../diary.py"), diff, found.changed) == (True, "", ())
