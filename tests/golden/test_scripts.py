"""The scripts of all golden cases (tests/support/goldens.py), compared by line; real bash and shellcheck read them.

After a deliberate change: ``pytest tests/golden --update-goldens``, and read the diff as you would a job's script.
"""

import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.jobs.creation import write_script
from runner.model.backends import SCHEDULERS
from runner.model.request import Request
from runner.planning.plan import plan
from runner.recipes.loader import recipe_of
from runner.sites.loader import names, read_site
from tests.support.cases import for_each
from tests.support.golden_jobs import CASES
from tests.support.golden_jobs import FILE as IMAGE
from tests.support.golden_local_jobs import CPUS, local
from tests.support.goldens import FIRST, MAKERS, SCRIPTS, golden, kept, script_of
from tests.support.squashfs import SUPERBLOCK
from tests.support.users import AS_ROOT, BOB


@pytest.mark.parametrize("name", MAKERS)
def test_the_script_is_the_golden_one(name: str, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-goldens"):
        SCRIPTS.mkdir(exist_ok=True)
        golden(name).write_text(kept(name))
    assert kept(name) == golden(name).read_text()


def test_no_golden_is_left_over() -> None:
    assert set(SCRIPTS.iterdir()) == {golden(name) for name in MAKERS}


def test_every_scheduler_has_a_golden_script() -> None:
    """A case of ``golden_jobs`` names a site, or the file of one."""
    covered = {read_site(site).scheduler for site, *_ in CASES.values()}
    assert {name for name, facts in SCHEDULERS.items() if facts.nodes == "allocated"} <= covered


def test_every_way_of_every_site_has_a_golden_script() -> None:
    apart = ("slurm", "local", "hosts")  # no site of its own
    shipped = {(name, via) for name in names() if name not in apart for via in read_site(name).runtimes}
    assert shipped <= {(site, via) for site, via, _ in CASES.values()}


def test_the_script_of_16_gpus_under_pyxis_can_be_read() -> None:
    assert len(script_of(FIRST).text.splitlines()) <= 84


@for_each(MAKERS)
def test_each_file_is_named_with_its_checksum(name: str) -> None:
    script = script_of(name)
    sums = [line.split("  lib/") for line in script.text.splitlines() if "  lib/" in line and len(line) > 64]
    assert {file: sha256(text.encode()).hexdigest() for file, text in script.files.items()} == {f: s for s, f in sums}
    used = set(re.findall(r"\blib/([\w-]+\.\w+)", script.text))
    assert used <= set(script.files), "a file that the scheduler or the runtime does not list is not copied"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for name in MAKERS:
        (root / name).mkdir()
        write_script(root / name, script_of(name))
    return {name: root / name for name in MAKERS}


def test_bash_and_shellcheck_take_them(directories: dict[str, Path]) -> None:
    for name, directory in directories.items():
        done = subprocess.run(["bash", "-n", directory / "job.sh"], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), name
    # SC2016: single quotes that do not expand are what we want. SC1091: a site's /etc/profile is not here. SC2034,
    # SC2154: variables of the files that are read, which are checked by themselves. SC2317, SC2329: a function that
    # only a trap calls is taken for unreachable. The rest stays on.
    words = ["shellcheck", "--shell=bash", "--exclude=SC2016,SC1091,SC2034,SC2154,SC2317,SC2329"]
    scripts = [str(directory / "job.sh") for directory in directories.values()]
    checked = subprocess.run([*words, *scripts], capture_output=True, text=True, check=False)
    assert (checked.stdout, checked.returncode) == ("", 0)


@pytest.mark.parametrize("name", [FIRST, "polaris-16", "local-container-2", "allocation-local"])
@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_file_that_is_not_the_one_that_was_submitted_ends_the_job(
    name: str, change: str, tmp_path: Path, directories: dict[str, Path]
) -> None:
    write_script(tmp_path, script_of(name))
    file = tmp_path / "lib" / "common.sh"
    if change == "gone":
        file.unlink()
    else:
        file.write_text(file.read_text() + "touch read\n")
    env = {"PATH": "/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path), "PBS_O_WORKDIR": str(tmp_path)}
    env |= {"SLURM_JOB_ID": "7", "PBS_JOBID": "7"}
    done = subprocess.run(["bash", tmp_path / "job.sh"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 74
    assert "lib/common.sh" in done.stderr
    assert not (tmp_path / "read").exists()


@AS_ROOT
@pytest.mark.parametrize("name", [FIRST, "polaris-16", "allocation-box-16"])
def test_a_run_directory_that_a_stranger_has_made_anew_ends_the_job(name: str, tmp_path: Path) -> None:
    """While the job waited, whose script the scheduler has; before any file there is read."""
    (tmp_path / "run").mkdir()
    write_script(tmp_path / "run", script_of(name))
    os.chown(tmp_path / "run", BOB, BOB)
    env = {"PATH": "/usr/bin:/bin", "SLURM_SUBMIT_DIR": f"{tmp_path}/run", "PBS_O_WORKDIR": f"{tmp_path}/run"}
    env |= {"SLURM_JOB_ID": "7", "PBS_JOBID": "7"}
    done = subprocess.run(["bash", tmp_path / "run/job.sh"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (82, "")
    assert f"{tmp_path}/run is another user's by now, or open to all; submit again" in done.stderr


def test_the_script_is_a_function_of_the_plan_only(tmp_path: Path) -> None:
    """From another directory, user, clock, locale and login environment it is the same, to the byte."""
    image = tmp_path / "x.sqsh"
    image.write_bytes(SUPERBLOCK)
    request = ["submit", "--gpus", "16", "--site", "technion", "--dry-run", "--image"]
    words = [sys.executable, "-m", "runner", *request, str(image)]
    root = str(Path(__file__).parents[2])
    other = {"HOME": "/nowhere", "USER": "elvis", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "SLURM_JOB_ID": "7"}
    here, there = (
        subprocess.run(words, capture_output=True, check=True, cwd=cwd, env={"PYTHONPATH": root, **env}).stdout
        for cwd, env in ((root, {"PATH": "/usr/bin"}), (tmp_path, {**other, "PATH": "/bin"}))
    )
    assert here == there
    assert here.startswith(b"#!/bin/bash\n")


def test_the_script_of_the_users_program_is_a_function_of_its_plan_too() -> None:
    words = ("python", "train.py", "--lr", "1")
    request = Request(gpus=2, runtime="charliecloud", directory="/home/me/my code", program=words)
    planned = plan(recipe_of(words), local(CPUS), request, IMAGE)
    text = re.sub(r" \\\n +", " ", render(planned, runtime("charliecloud").step(planned)).text)  # its lines as one
    assert "--cd /workspace" in text
    assert "'/home/me/my code:/workspace'" in text
    assert text.count("python train.py --lr 1") == 1
