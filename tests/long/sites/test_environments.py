"""A virtual environment with a Horovod that is compiled for it, proven, and computed in: on this machine and on two
nodes of a real Slurm, without a container.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Runner, ran
from tests.support.daemons import own_box
from tests.support.documents import result
from tests.support.packages import unpacked
from tests.support.rank_records import document_of, outcome, records


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where environments are made; a gigabyte is removed again."""
    directory = tmp_path_factory.mktemp("envs")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def horovod(at: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The environment, as `env create` tells of it."""
    runner = Runner(Path("local"), at / "runs", tmp_path_factory.mktemp("state"), at)
    made: dict[str, Any] = result(runner("env", "create", "hvd", "--at", str(at), "--json", code=0).out)
    return made


@pytest.fixture(scope="module")
def modules(horovod: dict[str, Any], at: Path) -> dict[str, str]:
    """Variables by which a shell has the real Environment Modules, with a module whose Horovod is the environment's."""
    tools = unpacked("environment-modules", "tcl8.6", "libtcl8.6")
    libraries = tools / f"usr/lib/{os.uname().machine}-linux-gnu"
    (at / "modulefiles/horovod").mkdir(parents=True)
    lines = ("#%Module", f"prepend-path PATH {horovod['directory']}/bin", "")
    (at / "modulefiles/horovod/0.28.1").write_text("\n".join(lines))
    own = f"LD_LIBRARY_PATH={libraries} TCL_LIBRARY={tools}/usr/share/tcltk/tcl8.6"
    call = f'eval "$({own} {tools}/usr/bin/tclsh8.6 {libraries}/modulecmd.tcl bash "$@")"'
    return {"BASH_FUNC_module%%": f"() {{ {call}; }}", "MODULEPATH": str(at / "modulefiles")}


def test_it_is_made_once(horovod: dict[str, Any], local: Runner, at: Path) -> None:
    print(f"\nmade and proven in {horovod['seconds']:.0f} s")
    assert horovod["about"]["horovod"]["proven"][0] == "gloo"
    assert horovod["about"]["horovod"]["wheel_key"] != "shipped"
    began = time.monotonic()
    again = result(local("env", "create", "hvd", "--at", str(at), "--json", code=0).out)
    print(f"again: {again['seconds']:.2f} s, the whole command {time.monotonic() - began:.2f} s")
    assert again["up_to_date"]
    assert again["seconds"] < 1
    assert {**again, "up_to_date": False, "seconds": 0} == {**horovod, "seconds": 0}


def test_it_is_proven_again_by_two_processes(horovod: dict[str, Any], local: Runner) -> None:
    said = local("env", "check", str(horovod["root"]), code=0).out
    assert "hello from rank 0 of 2" in said
    assert "hello from rank 1 of 2" in said
    assert "PROVEN" in said


def test_the_main_job_runs_in_it_on_this_machine(horovod: dict[str, Any], local: Runner) -> None:
    """A dirty shell stays out: what runs is the environment's alone."""
    env = {"PYTHONPATH": "/nowhere", "VIRTUAL_ENV": "/nowhere"}
    local("submit", "--gpus", "2", "--env-name", str(horovod["root"]), "--wait", code=0, env=env)
    run = local.newest()
    assert (outcome(run), document_of(run, "plan")["runtime"]) == ("measured", "native")
    record = records(run, "start")[0]
    assert str(horovod["directory"]) in record["environment"]["PATH"].split(":")[0]
    assert "PYTHONPATH" not in record["environment_names"]


def test_the_main_job_runs_in_it_on_two_nodes_of_slurm(horovod: dict[str, Any], tmp_path: Path) -> None:
    with own_box("test-environments") as cluster:
        runner = Runner.at(cluster.site, tmp_path, cluster.bin_dir, runs="my runs")
        root = str(horovod["root"])
        runner("submit", "--gpus", "4", "--nodes", "2", "--env-name", root, "--wait", code=0)
        run = runner.newest()
        assert outcome(run) == "measured"
        assert {start["host"] for start in records(run, "start").values()} == {"dgx01", "dgx02"}


def test_a_sites_own_module_is_proven_and_can_be_named(
    horovod: dict[str, Any], modules: dict[str, str], local: Runner, at: Path
) -> None:
    said = local("env", "check", "--module", "horovod/0.28.1", code=0, env=modules).out
    assert "hello from rank 1 of 2" in said
    said = local("env", "check", "--module", "no/such", code=3, env=modules).err
    assert "Unable to locate" in said
    assert "modules like these that are there: horovod/0.28.1" in said
    words = ("env", "create", "own", "--kind", "modules", "--module", "horovod/0.28.1", "--at", str(at), "--json")
    made = result(local(*words, code=0, env=modules).out)
    assert made["setup"]["modules"] == ["horovod/0.28.1"]
    assert made["directory"] == ""
    assert made["about"]["horovod"]["wheel_key"] == "shipped"
    assert result(local(*words, code=0, env=modules).out)["up_to_date"]


def test_an_environment_that_was_broken_is_made_anew(horovod: dict[str, Any], local: Runner, at: Path) -> None:
    """From the wheel that was kept: nothing is compiled twice."""
    python = Path(str(horovod["directory"])) / "bin/python3"
    python.unlink()
    root = str(horovod["root"])
    assert "lost its Python" in local("submit", "--gpus", "2", "--env-name", root, code=3).err
    local("env", "create", "hvd", "--at", str(at), code=0)
    log = (Path(root) / "create.log").read_text()
    assert "taking the wheel kept under" in log
    local("env", "check", root, code=0)


def test_without_a_network_it_is_made_from_collected_packages(
    horovod: dict[str, Any], local: Runner, at: Path, tmp_path: Path
) -> None:
    """In a network namespace that has a loopback interface and nothing else, by another cache, on a read-only copy."""
    packages = at / "my $wheéls"
    assert "each with its hash" in local("env", "wheels", str(packages), code=0).out
    shutil.copytree(packages, at / "copy")
    shutil.rmtree(packages)
    subprocess.run(["chmod", "-R", "a-w", str(at / "copy")], check=True)
    lone = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    cache = {"RUNNER_CACHE": str(tmp_path / "cache")}

    def without_network(*words: str) -> str:
        return ran([*lone, *local.argv(*words)], env=local.environment(cache), timeout_s=3600).out

    words = ("env", "create", "offline", "--at", str(at), "--wheels", str(at / "copy"), "--json")
    made = result(without_network(*words))
    print(f"\nmade and proven without a network in {made['seconds']:.0f} s")
    assert made["about"]["horovod"]["wheel_key"] == horovod["about"]["horovod"]["wheel_key"]
    log = (at / "offline/create.log").read_text()
    assert "taking the wheel kept under" in log
    assert "http" not in log
    assert "PROVEN" in without_network("env", "check", str(at / "offline"))
    assert result(without_network(*words))["up_to_date"]
