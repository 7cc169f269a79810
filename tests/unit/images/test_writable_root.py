"""What each program is given, whatever is in the image's environment and in the command."""

from __future__ import annotations

import shlex
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError, RefusedError
from runner.images import writable_root
from runner.images.writable_root import Copy, Tool
from tests.support.shell_files import stand_in

COPY = Copy(Path("/cache/a b"), "/work $x", {"HARD": "'q' $x \\ `id` \"d\" $(id) !\nsecond", "PLAIN": "1"})
WORDS = ("sh", "-c", "echo $HOME", "a b", "")
OURS = {
    "PATH": "/opt/bin:/usr/bin", "HOME": "/home/me", "USER": "me", "TERM": "xterm", "https_proxy": "http://me:pw@p:1",
    "NO_PROXY": "here", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/mine", "CONDA_PREFIX": "/mine", "CH_LOG": "1",
    "ENROOT_CACHE_PATH": "/c", "APPTAINER_TMPDIR": "/t", "AWS_SECRET_ACCESS_KEY": "no",
}  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        (Tool("enroot", "enroot", "4.1.2"),
         ("enroot", "start", "--root", "--rw", "--rc", "/cache/a b/rc", "--env", "NVIDIA_VISIBLE_DEVICES=void",
          "--env", "NO_PROXY", "--env", "https_proxy", "root", *WORDS)),
        (Tool("apptainer", "singularity", "3.11", ("--fakeroot",)),
         ("singularity", "exec", "--writable", "--contain", "--no-home", "--fakeroot", "--cleanenv",
          "--env-file", "/cache/a b/environment.sh", "--pwd", "/work $x", "/cache/a b/root", *WORDS)),
        (Tool("ch-run", "ch-run", "0.38", ("--seccomp",)),
         ("ch-run", "--write", "--private-tmp", "--no-passwd", "--uid=0", "--gid=0", "--cd", "/work $x", "--seccomp",
          "--unset-env=*", "--env-no-expand", "--set-env=/cache/a b/environment", "/cache/a b/root", "--", *WORDS)),
    ],
)  # fmt: skip
def test_each_program_runs_the_command_in_a_writable_root(tool: Tool, command: tuple[str, ...]) -> None:
    assert writable_root.tool_command(tool, COPY, WORDS, OURS) == command


@pytest.mark.parametrize("name", writable_root.TOOLS)
def test_no_variable_of_ours_but_proxies_and_the_programs_own_goes_along(name: str) -> None:
    """Values are in files, which only this user can read: proxies and images may hold passwords."""
    tool = Tool(name, name, "1")
    got = writable_root.tool_environment(tool, COPY, OURS)
    kept = OURS.keys() - {"PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "AWS_SECRET_ACCESS_KEY"}
    own = {"ENROOT_DATA_PATH", "ENROOT_MOUNT_HOME"} if name == "enroot" else set()
    assert got.keys() == kept | own
    line = " ".join(writable_root.tool_command(tool, COPY, WORDS, OURS))
    assert "pw@p" not in line
    assert "second" not in line


def test_files_hold_the_images_variables_and_the_proxies(tmp_path: Path) -> None:
    files = writable_root.tool_files(COPY, OURS)
    assert (
        files["environment"]
        == "HOME=/root\nTERM=xterm\nHISTFILE=\nLESSHISTFILE=-\nPLAIN=1\nNO_PROXY=here\nhttps_proxy=http://me:pw@p:1\n"
    )

    def of_shell(script: str) -> str:
        command = ["sh", "-c", script, str(tmp_path / "first")]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    # Two shells read it, one after the other.
    (tmp_path / "first").write_text(files["environment.sh"])
    again = of_shell('. "$0"; printf %s "$HARD"').replace('"', '\\"')  # Apptainer does this
    assert of_shell(f'printf %s "{again}"') == COPY.environment["HARD"]
    no_history = ["export", "HISTFILE=", "LESSHISTFILE=-", "&&"]
    assert shlex.split(files["rc"]) == ["cd", "/work $x", "&&", *no_history, "exec", "$@"]
    # Apptainer reads the file outside of the container, and names come from the image: none is code for a shell.
    hostile = Copy(Path("/c"), "/", {"X;touch /tmp/planted;Y": "1", "A b": "1", "$(id)": "1", "GOOD_1": "1"})
    assert writable_root.tool_files(hostile, {})["environment.sh"] == "HISTFILE=''\nLESSHISTFILE=-\nGOOD_1=1\n"


def test_a_program_is_used_by_what_its_version_has_and_refused_where_it_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="none of enroot, apptainer, ch-run was found") as caught:
        writable_root.find_tool(None)
    assert "apt install charliecloud-runtime" in caught.value.fix
    with pytest.raises(RefusedError, match="neither apptainer nor singularity was found"):
        writable_root.find_tool("apptainer")
    stand_in(tmp_path, "ch-run", '[ "$1" = --version ] && echo 0.38 >&2 || echo "  --seccomp  fake success"')
    assert writable_root.find_tool("ch-run") == Tool("ch-run", "ch-run", "0.38", ("--seccomp",))


def test_a_tree_comes_out_of_the_archive_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/file").write_bytes(b"x" * 3_000_000)
    (tmp_path / "deep/er/file").chmod(0o4755)
    (tmp_path / "twin").hardlink_to(tmp_path / "deep/er/file")
    (tmp_path / "soft").symlink_to("../elsewhere")
    (tmp_path / "grüße").write_text("ü")
    (tmp_path / "own/inner").mkdir(parents=True)
    (tmp_path / "own/inner/x").write_text("x")
    raw = b"".join(writable_root.archived(tmp_path, frozenset(("own/inner",))))
    with tarfile.open(fileobj=BytesIO(raw)) as tar:
        members = {member.name: member for member in tar}
        content = tar.extractfile("deep/er/file")
        assert content is not None
        assert content.read() == b"x" * 3_000_000
    assert sorted(members) == ["deep", "deep/er", "deep/er/file", "grüße", "own", "soft", "twin"]
    assert members["deep/er/file"].mode == 0o4755
    assert (members["twin"].type, members["twin"].linkname) == (tarfile.LNKTYPE, "deep/er/file")
    assert members["soft"].linkname == "../elsewhere"
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}


def test_a_file_that_shrinks_while_it_is_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    chunks = writable_root.archived(tmp_path)
    next(chunks)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InfrastructureError, match="changed while it was read"):
        list(chunks)
