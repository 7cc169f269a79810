"""Images that a runtime keeps itself: what its own commands say of them refuses a job before it is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.backends.runtimes import image_problem

NAME = "registry.example.org/m1234/horovod:25.02"
SHIFTERIMG = """\
[ "$1 $2" = "lookup registry.example.org/m1234/horovod:25.02" ] || exit 2
%s
"""
SHIFTER = """\
[ "$1" = --image=docker:registry.example.org/m1234/horovod:25.02 ] || exit 2
shift
exec "$@"
"""
PODMAN = """\
[ "$1 $2 $3" = "images --filter reference=registry.example.org/m1234/horovod:25.02" ] || exit 2
printf "%s"
"""


def problem(runtime: str, reference: str, mount_points: tuple[str, ...]) -> tuple[str, str]:
    return image_problem(runtime, reference, mount_points, local=reference.startswith("localhost/"))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a site's commands, before those of this machine."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def has(commands: Path, name: str, script: str) -> None:
    (commands / name).write_text(f"#!/bin/sh\n{script}")
    (commands / name).chmod(0o755)


@pytest.mark.parametrize("answer", ["exit 1", "exit 0"])
def test_an_image_that_shifter_does_not_have_is_named_with_its_pull(commands: Path, answer: str) -> None:
    """A gateway that finds none says nothing, or fails."""
    has(commands, "shifterimg", SHIFTERIMG % answer)
    assert problem("shifter", NAME, ()) == (f"Shifter has no image {NAME}", f"shifterimg pull {NAME}")


def test_mount_points_that_an_image_lacks_are_named(commands: Path, tmp_path: Path) -> None:
    has(commands, "shifterimg", SHIFTERIMG % "echo 0badc0ffee")
    has(commands, "shifter", SHIFTER)
    there, lacking = str(tmp_path), f"{tmp_path}/no-such-directory"
    assert problem("shifter", NAME, (there,)) == ("", "")
    what, fix = problem("shifter", NAME, (there, lacking))
    assert f"lacks the mount points {lacking}, and Shifter makes none" in what
    assert f"RUN mkdir -p {lacking}" in fix


@pytest.mark.parametrize(
    ("read_only", "fix"),
    [
        ("", f"podman-hpc pull {NAME}"),
        ("false\\n", f"podman-hpc migrate {NAME}"),
        ("true\\n", ""),
        ("false\\ntrue\\n", ""),
    ],
)
def test_an_image_that_podman_hpcs_nodes_do_not_see_is_named_with_its_fix(
    commands: Path, read_only: str, fix: str
) -> None:
    has(commands, "podman-hpc", PODMAN % read_only)
    assert problem("podman-hpc", NAME, ())[1] == fix


def test_an_image_that_podman_hpc_would_have_built_is_not_pulled(commands: Path) -> None:
    has(commands, "podman-hpc", PODMAN.replace(NAME, "localhost/i:1") % "")
    assert problem("podman-hpc", "localhost/i:1", ())[1].startswith("podman-hpc build -t localhost/i:1 ...")


def test_where_a_command_is_not_here_or_fails_nothing_is_known(commands: Path) -> None:
    for runtime in ("shifter", "podman-hpc"):
        assert problem(runtime, NAME, ("/results",)) == ("", "")
    has(commands, "podman-hpc", "exit 125\n")
    has(commands, "shifter", "exit 1\n")
    assert problem("podman-hpc", NAME, ()) == ("", "")
    assert problem("shifter", NAME, ("/no-such-directory",)) == ("", "")
