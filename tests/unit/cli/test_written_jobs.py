"""``submit --write`` and ``--dry-run --full``: a job to read, and to submit by hand with nothing of ours installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shlex import quote

import pytest

from runner.cli import run
from runner.core.errors import Exit
from tests.support.commands import Call

REQUEST = ("submit", "--site", "local", "--recipe", "probe", "--runtime", "native", "--gpus", "2")


def test_a_written_job_runs_by_plain_bash_and_is_judged_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    job = tmp_path / "my job's $dir"
    assert f"cd {quote(str(job))} && bash job.sh" in call(*REQUEST, "--write", str(job)).out
    assert not (tmp_path / "state" / "runs").exists(), "nothing was submitted"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "job.sh"], cwd=job, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + (job / "logs/rank-0.err").read_text()
    assert "verdict: ran" in call("wait", str(job)).out
    assert run([*REQUEST, "--write", str(job)]) == Exit.USAGE


@pytest.mark.parametrize("words", [("--write", "x", "--dry-run"), ("--write", "x", "--wait"), ("--full",)])
def test_what_goes_with_nothing_is_refused(words: tuple[str, ...]) -> None:
    assert run([*REQUEST, *words]) == Exit.USAGE


def test_a_full_dry_run_prints_each_file_that_the_script_names(call: Call) -> None:
    script = call(*REQUEST, "--dry-run").out
    full = call(*REQUEST, "--dry-run", "--full").out
    assert full.startswith(script)
    files = json.loads(call(*REQUEST, "--dry-run", "--full", "--json").out)["result"]["files"]
    assert {*files} == {"common.sh", "supervise.sh", "rank.sh"}
    for name, text in files.items():
        assert f"{sha256(os.fsencode(text)).hexdigest()}  lib/{name}\n" in script
        assert text in full
