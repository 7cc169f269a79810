"""The environment that a batch script begins with, in a real bash: nothing of the user's, modules whole or none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from runner.backends.schedulers.script_head import head
from tests.support.plans import PLAN

# As a cluster's: a default module, and what it needs to be whole. MODULES_READY: guards against a second time.
PROFILE = """\
if [ -z "$MODULES_READY" ]; then
  export MODULES_READY=1 LOADEDMODULES=craype:libfabric LD_LIBRARY_PATH=/opt/libfabric/lib64 https_proxy=http://p:1
  PATH=/opt/craype/bin:/usr/bin:/bin
  module() { echo "module $*"; }
fi
"""
# As Slurm's login shell leaves it, or the submitting shell.
LOGIN = {
    "PATH": "/home/e/bin:/opt/slurm/bin:/usr/bin:/bin", "HOME": "/home/e", "MODULES_READY": "1",
    "LOADEDMODULES": "craype:libfabric:mine", "LD_LIBRARY_PATH": "/opt/libfabric/lib64:/home/e/lib",
    "MINE": "a b\n$(c)", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "n[1-2]", "CUDA_VISIBLE_DEVICES": "0",
    "BASH_FUNC_module%%": "() { echo stale; }", "HOROVOD_RANK": "3",
}  # fmt: skip


def begin(
    tmp_path: Path,
    env: dict[str, str],
    *,
    export: Literal["none", "nil", "all"] = "none",
    runtime: str = "native",
) -> dict[str, str]:
    """The exported environment after the head, and what ``module`` says."""
    profile = tmp_path / "profile"
    profile.write_text(PROFILE)
    plan = msgspec.structs.replace(PLAN, runtime=runtime, scheduler_settings={"export": export})
    text = head(plan, "$SLURM_JOB_ID", f"'{tmp_path}'").replace("/etc/profile", str(profile))
    code = f"set -uo pipefail\n{text}\nexport SAID=$(type -t module &>/dev/null && module x)\nenv -0"
    done = subprocess.run(["/bin/bash", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "unbound" not in done.stderr
    return dict(entry.partition("=")[::2] for entry in done.stdout.split("\0") if entry)


@pytest.mark.parametrize("export", ["none", "nil", "all"])
def test_modules_of_a_login_shell_are_loaded_anew_and_whole(
    tmp_path: Path, export: Literal["none", "nil", "all"]
) -> None:
    env = begin(tmp_path, LOGIN, export=export)
    assert (env["LOADEDMODULES"], env["LD_LIBRARY_PATH"]) == ("craype:libfabric", "/opt/libfabric/lib64")
    assert env["PATH"] == "/opt/craype/bin:/usr/bin:/bin:/home/e/bin:/opt/slurm/bin:/usr/bin:/bin"
    assert env["SAID"] == "module x"
    assert (env["SLURM_JOB_ID"], env["SLURM_NODELIST"], env["CUDA_VISIBLE_DEVICES"]) == ("7", "n[1-2]", "0")
    assert not {"MINE", "HOROVOD_RANK", "https_proxy"} & set(env)


def test_without_any_environment_there_is_all_that_a_job_needs(tmp_path: Path) -> None:
    env = begin(tmp_path, {"SLURM_JOB_ID": "7"}, export="nil")
    assert env["PATH"] == "/opt/craype/bin:/usr/bin:/bin", "and not the current directory, as in bash's own"
    assert env["HOME"].startswith("/")
    assert env["USER"]
    assert env["SAID"] == "module x"


def test_a_login_shell_without_modules_stays_as_it_is(tmp_path: Path) -> None:
    """The default is what it was."""
    plain = {name: value for name, value in LOGIN.items() if name not in ("LOADEDMODULES", "MODULES_READY")}
    env = begin(tmp_path, plain)
    assert (env["PATH"], env["MINE"], env["SAID"]) == (plain["PATH"], plain["MINE"], "stale")
    assert not {"LD_LIBRARY_PATH", "HOROVOD_RANK"} & set(env)


@pytest.mark.parametrize("export", ["none", "nil", "all"])
def test_libraries_of_the_host_stay_out_of_a_container(tmp_path: Path, export: Literal["none", "nil", "all"]) -> None:
    assert "LD_LIBRARY_PATH" not in begin(tmp_path, LOGIN, export=export, runtime="charliecloud")
