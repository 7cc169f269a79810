"""Making an environment for jobs without a container, where it goes wrong; tests/long/sites has the whole of it."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.box import Box
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.packages import unpacked
from tests.support.waiting import until

pytestmark = pytest.mark.integration
NO_SUCH = ("--requirement", "torch==0.0.404")  # pip knows at once that there is none


def state(runner: Runner, at: Path) -> list[dict[str, object]]:
    environments: list[dict[str, object]] = result(runner("env", "list", "--at", str(at), "--json", code=0).out)
    return environments


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def begun(root: Path) -> None:
    until(lambda: list(root.glob("virtualenv-*/pyvenv.cfg")), "pyvenv.cfg", every_s=0.02)


def test_a_creation_that_fails_leaves_nothing_half_and_its_log(local: Runner, tmp_path: Path) -> None:
    at = tmp_path / "envs"
    failed = local("env", "create", "broken", "--at", str(at), *NO_SUCH, code=5)
    assert "the framework could not be installed" in failed.err
    assert "0.0.404" in (at / "broken/create.log").read_text()
    assert left(at / "broken") == []
    assert [each["whole"] for each in state(local, at)] == [False]
    refused = local("submit", "--gpus", "2", "--env-name", str(at / "broken"), code=3)
    assert "is not finished" in refused.err
    assert not local.runs.exists()


def test_a_creation_that_was_killed_is_waited_for_and_begun_anew(local: Runner, tmp_path: Path) -> None:
    """Its script goes on for a while: the next one neither shares its directory nor takes it for whole."""
    root = tmp_path / "envs/killed"
    words = ("env", "create", "killed", "--at", str(root.parent), *NO_SUCH)
    child = local.start(*words)
    begun(root)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with (root / "building").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [each["whole"] for each in state(local, root.parent)] == [False]
    assert "the framework could not be installed" in local(*words, code=5).err
    assert left(root) == []


def test_a_creation_that_is_interrupted_ends_at_once(local: Runner, tmp_path: Path) -> None:
    root = tmp_path / "envs/interrupted"
    child = local.start("env", "create", "interrupted", "--at", str(root.parent), *NO_SUCH)
    begun(root)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(60) == 130
    assert left(root) == []


def test_a_python_without_horovod_is_not_proven(local: Runner) -> None:
    said = local("env", "check", "--site", "local", code=6)
    assert "its Horovod is not proven" in said.err
    assert "PROOF FAILED" in said.err


def test_a_node_with_another_python_ends_the_job_before_the_program_starts(
    runner: Runner, cluster: Box, tmp_path: Path
) -> None:
    """/var/tmp is each node's own: dgx02 has Debian's Python there, which is of no environment."""
    root = Path(f"/var/tmp/test-environment-{os.getpid()}")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    try:
        shutil.copytree(root, tmp_path / "copy", symlinks=True)
        on_nodes = (
            'cp -a "$1" "$2"; [ "$(hostname)" = dgx02 ] || exit 0; '
            'ln -sf /usr/bin/python3 "$2/bin/python3"; rm "$2/pyvenv.cfg"'
        )
        words = ("--nodes=2", "--ntasks=2", "sh", "-euc", on_nodes, "sh", str(tmp_path / "copy"), str(root))
        subprocess.run([cluster.bin_dir / "srun", *words], check=True, timeout=60)
        job = ("submit", "--runtime", "native", "--env-name", str(root), "--wait")
        program = ("--", "python3", "-c", f"open({str(tmp_path / 'began')!r}, 'a').write('x')")
        differing = runner(*job, "--gpus", "2", "--nodes", "2", *program, code=8).out
        assert "rank 1 on dgx02 did not start its program: environment-differs: " in differing
        assert re.search(rf"here python3 is {root}/bin/python3 of /usr \(Python 3\.", differing), differing
        assert not (tmp_path / "began").exists(), "on no node"
        runner(*job, "--gpus", "2", "-S", "nodelist=dgx01", *program, code=0)
        assert (tmp_path / "began").read_text() == "xx"
    finally:
        shutil.rmtree(root)


def test_modules_of_the_cluster_are_loaded_in_a_native_job(cluster: Box, tmp_path: Path) -> None:
    """The real Environment Modules of Debian, and a hierarchy: one module is found once another is loaded."""
    runner = Runner.at(cluster.site, tmp_path, cluster.bin_dir)
    tools = unpacked("environment-modules", "tcl8.6", "libtcl8.6")
    libraries = tools / f"usr/lib/{os.uname().machine}-linux-gnu"
    call = (
        f'module() {{ eval "$(LD_LIBRARY_PATH={libraries} TCL_LIBRARY={tools}/usr/share/tcltk/tcl8.6 '
        f'{tools}/usr/bin/tclsh8.6 {libraries}/modulecmd.tcl bash "$@")"; }}\nexport MODULEPATH={tmp_path}/core\n'
    )
    for name, lines in (
        ("core/gcc/13", f"prepend-path MODULEPATH {tmp_path}/gcc13"),
        ("gcc13/lib/$1", "setenv FOUND_LIB {by $gcc}"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#%Module\n{lines}\n")
    (tmp_path / "modules.sh").write_text(call)
    profile = "/etc/profile.d/test-modules.sh"
    in_box = (cluster.bin_dir / "in-box", "cp", "--")
    subprocess.run([*in_box, tmp_path / "modules.sh", profile], check=True, timeout=60)
    try:
        job = ("submit", "--runtime", "native", "--gpus", "2", "--nodes", "2", "--wait")
        shows = ("--", "python3", "-c", "import os; print(os.environ.get('FOUND_LIB'), os.environ['LOADEDMODULES'])")
        done = runner(*job, "--module", "gcc/13", "--module", "lib/$1", *shows, code=0)
        assert "by $gcc gcc/13:lib/$1" in runner("logs", "--all", runner.newest().name, code=0).out, done
        absent = runner(*job, "--module", "lib/$1", *shows, code=8)
        assert "lib/$1" in absent.out
        loaded = {"LOADEDMODULES": "gcc/13"}
        warned = runner(*job[:-1], "--dry-run", *shows, code=0, env=loaded)
        assert "warning [modules-dropped]" in warned.err
    finally:
        subprocess.run([cluster.bin_dir / "in-box", "rm", "-f", "--", profile], check=True, timeout=60)
