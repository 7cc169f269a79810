"""What each program is given, whatever is in the image's environment and in the command."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from runner.core.errors import RefusedError
from runner.images import writable_root
from runner.images.writable_root import Copy, Tool

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
    assert files["environment"] == "HOME=/root\nTERM=xterm\nPLAIN=1\nNO_PROXY=here\nhttps_proxy=http://me:pw@p:1\n"
    # Two shells read it, one after the other.
    (tmp_path / "first").write_text(files["environment.sh"])
    once = subprocess.run(
        ["sh", "-c", '. "$0"; printf %s "$HARD"', tmp_path / "first"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    again = once.replace('"', '\\"')  # Apptainer does this
    twice = subprocess.run(["sh", "-c", f'printf %s "{again}"'], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert twice == COPY.environment["HARD"]
    assert shlex.split(files["rc"]) == ["cd", "/work $x", "&&", "exec", "$@"]


def test_a_variables_name_is_no_code_for_the_shell_that_reads_its_value() -> None:
    """Apptainer reads the file outside of the container, and names come from the image."""
    hostile = Copy(Path("/c"), "/", {"X;touch /tmp/planted;Y": "1", "A b": "1", "$(id)": "1", "GOOD_1": "1"})
    assert writable_root.tool_files(hostile, {})["environment.sh"] == "GOOD_1=1\n"


def test_a_program_that_is_not_here_is_refused_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="none of enroot, apptainer, ch-run was found") as caught:
        writable_root.find_tool(None)
    assert "apt install charliecloud-runtime" in caught.value.fix
    with pytest.raises(RefusedError, match="neither apptainer nor singularity was found"):
        writable_root.find_tool("apptainer")


def test_each_program_is_used_by_what_its_version_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "ch-run"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 0.38 >&2 || echo "  --seccomp  fake success"\n')
    program.chmod(0o755)
    assert writable_root.find_tool("ch-run") == Tool("ch-run", "ch-run", "0.38", ("--seccomp",))
