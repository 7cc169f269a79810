"""Which command lines are handed on to a site's login node, with which words, and what its script takes for whole."""

import io
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli import remote
from runner.core import files
from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.jobs import mirror
from runner.model.site import SshFacts
from runner.sites.loader import names, read_site
from tests.support.hostile import HOSTILE
from tests.support.shell_files import stand_in
from tests.support.users import AS_ROOT, BOB

SHELLS = ("sh", "bash")
SCRIPT = Path(remote.__file__).with_name("remote.sh")


@pytest.fixture(autouse=True)
def _sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the configuration two sites, one with a login."""
    (tmp_path / "sites").mkdir()
    (tmp_path / "config.yaml").write_text("account: lab42\n")
    for name, login in (("far", "me@far.example"), ("near", "")):
        facts = {"name": name, "extends": "local", "login": login}
        (tmp_path / f"sites/{name}.yaml").write_text(json.dumps(facts))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))


@given(words=st.lists(HOSTILE, max_size=4), shell=st.sampled_from(SHELLS))
@settings(max_examples=25, deadline=None)
def test_words_pass_a_login_shell_as_they_are(words: Sequence[str], shell: str) -> None:
    command = remote.remote_command(("printf", "%s\\0", "", *words))
    said = subprocess.run((shell, "-c", command), capture_output=True, check=True).stdout
    assert said.split(b"\0")[1:-1] == [os.fsencode(word) for word in words]
    assert set(command.replace(command.split("echo ")[1].split(" |")[0], "")) <= set("""sh -c'eval"$(o|base64d)"'""")


@pytest.mark.parametrize(("site", "says"), [("near", "status --site near"), ("fra", "did you mean 'far'")])
def test_a_site_before_a_verb_has_a_login(site: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        remote.hand_on(("--site", site, "status"))
    assert says.replace("status", "VERB") in str(error.value)


@pytest.mark.parametrize(
    ("words", "handed"),
    [
        ("submit --site far --gpus 2 -- p --site x", "submit --gpus 2 -- p --site x"),
        ("--site=far logs RUN -f", "logs RUN -f"),
        ("wait RUN --site far", "wait RUN"),
        ("submit --site near --gpus 2 p", None),
        ("submit --site box --gpus 2 p", None),
        ("submit --gpus 2 -- p --site far", None),
        ("submit --site nosuch --gpus 2 p", None),
        ("submit --site far --help", None),
        ("site show far", None),
        ("recipe check p --site far", None),
        ("--site far", None),
    ],
)
def test_what_is_handed_on(words: str, handed: str | None) -> None:
    call = remote.call_of(words.split())
    assert (None if call is None else " ".join(call.words)) == handed
    assert call is None or call.program.endswith("--site far")


def test_a_default_site_is_handed_on_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert remote.call_of(["status"]) is None
    monkeypatch.setenv("RUNNER_SITE", "far")
    call = remote.call_of(["status"])
    assert call is not None and "--site" not in call.program
    monkeypatch.delenv("RUNNER_SITE")
    (tmp_path / "config.yaml").write_text("site: far\n")
    assert remote.call_of(["status"]) is not None


def test_no_shipped_site_has_a_login() -> None:
    assert not [name for name in names() if read_site(name).login]


@pytest.mark.parametrize("login", ["-oProxyCommand=id", "a b", "a;id", "$(id)", "me@host\n"])
def test_a_login_is_no_option_and_no_shell_code(login: str, tmp_path: Path) -> None:
    (tmp_path / "sites/odd.yaml").write_text(json.dumps({"name": "odd", "extends": "local", "login": login}))
    with pytest.raises(UsageError, match="is no login"):
        read_site("odd")


@AS_ROOT
def test_a_configuration_of_ssh_that_another_user_may_change_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site file of theirs may name it, and it any program."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = tmp_path / "ssh_config"
    config.touch()
    site = msgspec.structs.replace(read_site("far"), ssh=SshFacts(config=str(config)))
    remote._Connection(site)
    os.chown(config, BOB, BOB)
    with pytest.raises(RefusedError, match=f"this is user {BOB}'s, and may name any program"):
        remote._Connection(site)


@pytest.mark.parametrize("is_link", [False, True])
def test_no_link_that_a_site_sends_back_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    (tmp_path / "key").write_text("private\n")
    (tmp_path / "there/rep").mkdir(parents=True)
    file = tmp_path / "there/rep/report.json"
    file.symlink_to(tmp_path / "key") if is_link else file.write_text("{}")
    stand_in(tmp_path, "ssh", f"exec tar -cf - -C {tmp_path}/there rep")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InfrastructureError, match="could not be fetched") if is_link else nullcontext():
        remote._Connection(read_site("far")).fetch("/there", ["rep"])
    assert [each.read_text() for each in Path().rglob("*.json")] == ([] if is_link else ["{}"])


def test_a_report_that_is_fetched_is_closed_to_others_and_a_single_file_is_as_the_umask_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there/a/rep").mkdir(parents=True)
    for name in ("a/rep/report.json", "b.tar"):
        (tmp_path / "there" / name).touch()
    stand_in(tmp_path, "ssh", f"exec tar -cf - -C {tmp_path}/there a/rep ./b.tar")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    remote._Connection(read_site("far")).fetch("/there", ["a/rep", "./b.tar"])
    modes = {str(each): each.stat().st_mode & 0o777 for each in Path().rglob("*")}
    assert modes == {"a": 0o700, "a/rep": 0o700, "a/rep/report.json": 0o600, "b.tar": 0o644 & ~files.user_umask()}


def test_the_program_is_hashed_and_sent_with_all_that_installs_it() -> None:
    names = set(remote._program_files())
    assert {"runner/setup/install.sh", "runner/cli/remote.sh", "pyproject.toml", "requirements.lock"} <= names
    assert {"recipes/lib/launch.py", "gpu_runner.py", "README.md"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("runner/_share")]


def _ready(home: Path, content: bytes) -> int:
    words = ("sh", "-c", SCRIPT.read_text(), "sh", "ready", "none", "cafe")
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.run(words, input=content, env=env, capture_output=True, check=False).returncode


def test_a_copy_cut_off_anywhere_is_not_taken_for_whole(tmp_path: Path) -> None:
    content = remote._tar({"config.yaml": b"{}", "sites/far.yaml": b"x" * 3000})
    there = tmp_path / ".cache/gpu-runner/remote"
    for size in (0, 100, 512, 1024, 2000, 4608):
        assert _ready(tmp_path, content[:size]) not in (0, 3)
        assert not list(there.iterdir())
    assert _ready(tmp_path, content) == 3, "the program is not there"
    assert (there / "config-cafe/config.yaml").read_bytes() == b"{}"


def test_only_programs_that_were_installed_there_are_forgotten(tmp_path: Path) -> None:
    there = tmp_path / ".cache/gpu-runner/remote"
    copied = [there / f"code-{number}/bin" for number in range(3)]
    for each in copied:
        each.mkdir(parents=True)
        os.utime(each.parent, (0, 0))
    there.chmod(0o700)
    content = remote._tar({"runner/setup/install.sh": b'mkdir "$PREFIX/1.0"'})
    for name in ("a", "b", "c"):
        words = ("sh", "-c", SCRIPT.read_text(), "sh", "install", name)
        subprocess.run(words, input=content, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, check=True)
    assert all(each.is_dir() for each in copied)
    assert {each.name for each in there.glob("code-?") if each.is_symlink()} == {"code-b", "code-c"}


def _received(directory: Path, wanted: dict[str, str], sent: bytes, before: Sequence[str] = ()) -> bytes:
    answers = io.BytesIO()
    mirror.receive(directory, wanted, before, io.BytesIO(sent), answers)
    return answers.getvalue()


def test_a_mirror_writes_through_no_link_and_takes_no_part_of_a_file(tmp_path: Path) -> None:
    there, elsewhere, own = (tmp_path / name for name in ("there", "elsewhere", "own"))
    for each in (there, elsewhere, own / "a"):
        each.mkdir(parents=True)
    (there / "a").symlink_to(elsewhere)
    (own / "a/x").write_bytes(b"12345")
    (own / "a/x").chmod(0o755)
    (own / "out").symlink_to("/etc/passwd")
    (own / "led").symlink_to(tmp_path)
    wanted = mirror.described(own, ("a/x", "out", "gone", f"led/{own.name}/a/x"))
    assert list(wanted) == ["a/x"]
    with pytest.raises(EOFError):
        _received(there, wanted, b"\0\0\0\0\0\0\0\x05123")
    assert not list(elsewhere.iterdir()) and not list((there / "a").iterdir())
    assert _received(there, wanted, b"\0\0\0\0\0\0\0\x0512345").endswith(b"done\n")
    assert (there / "a/x").read_bytes() == b"12345" and os.access(there / "a/x", os.X_OK)
    assert _received(there, wanted, b"").startswith(b"[]\n"), "it is there already"
    assert _received(there, {}, b"", ["a/x", "never/there"]).startswith(b"[]\n") and not (there / "a/x").exists()
    with pytest.raises(ValueError, match=r"\.\./y"):
        _received(there, {"../y": "-0"}, b"")


def test_too_much_is_refused_with_the_file_that_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "small").write_text("1")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(mirror.MOST_BYTES + 1)
    with pytest.raises(RefusedError, match="500 MB") as refused:
        mirror.described(tmp_path, ("small", "data.bin"))
    assert refused.value.where.endswith("data.bin") and ".gitignore" in refused.value.fix


def test_a_home_directory_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match="all of it would be copied"):
        remote._working_files("submit")


def test_of_a_repository_what_git_tracks_or_would_track_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.repositories import repository

    work = repository(tmp_path / "work", {"a.py": b"1", ".gitignore": b"*.log\n", "below/b.py": b"2"})
    for name in ("new.py", "much.log"):
        (work / name).write_text("3")
    monkeypatch.chdir(work / "below")
    top, start, found = remote._working_files("submit")
    assert (top, start, set(found)) == (work, "below", {"a.py", ".gitignore", "below/b.py", "new.py"})
    assert not remote._working_files("status")[2]
