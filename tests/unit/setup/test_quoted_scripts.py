"""The scripts of a checkout's environment work below any path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.setup.quoted_scripts import quote


@pytest.mark.parametrize("name", ["a b", "a $HOME b", "a `id` $(id)", "it's \\ $x"])
def test_activation_and_commands_work_below_any_path(tmp_path: Path, name: str) -> None:
    root = tmp_path / name / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    command = root / "bin/command"  # as pip writes it
    command.write_text(
        f"#!/bin/sh\n'''exec' \"{root}/bin/python\" \"$0\" \"$@\"\n' '''\nimport sys\nprint(sys.prefix, sys.argv[1:])\n"
    )
    command.chmod(0o755)
    quote(root)
    quote(root)  # as `make venv` does again when the lock changes
    script = '. "$1/bin/activate"; command -v python; exec "$1/bin/command" "a b"'
    done = subprocess.run(["sh", "-c", script, "sh", root], capture_output=True, text=True, check=True)
    assert done.stdout == f"{root}/bin/python\n{root} ['a b']\n"
