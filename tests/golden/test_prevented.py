"""What people's jobs fail of, by public threads, and no script of ours has: docs/failures.md names the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.model.runtimes import programs
from runner.model.schedulers import SCHEDULERS

SCRIPTS = sorted((Path(__file__).parent / "scripts").iterdir())
SLURM = [path for path in SCRIPTS if path.suffix == ".sbatch"]


def commands(path: Path) -> list[str]:
    """The script's commands, each on one line."""
    return path.read_text().replace("\\\n", " ").splitlines()


LAUNCHERS = tuple(f"{facts.launcher} " for facts in SCHEDULERS.values() if facts.launcher)


def steps(path: Path) -> list[str]:
    """What starts tasks, the ranks' own the last."""
    return [line for line in commands(path) if line.startswith(LAUNCHERS)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_node_imports_or_pulls_an_image(path: Path) -> None:
    """Rows 1, 2, 4, 5, 6, 12: credentials, limits, disks and twenty minutes of waiting."""
    text = path.read_text()
    assert not re.search(r"enroot import|docker://|dockerd://|(apptainer|singularity) (pull|build)|ch-image", text)
    for image in re.findall(r"--container-image=(\S+)", text):
        assert image.startswith(("/", "'/", '"${runner_stage}"/')), image
    assert text.count("podman-hpc run") == text.count("--pull=never")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_container_has_a_name_that_outlives_its_job(path: Path) -> None:
    """Rows 13, 14: a container of that name is not there, or is an old one."""
    text = path.read_text()
    assert "--container-name" not in text
    for name in re.findall(r"--name (\S+)", text):
        assert name == '"$name"'
        assert "name=$2-$(uname -n)" in text
        assert re.search(r"enroot\.rc \S*\$\{runner_job\}", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_one_step_runs_one_program_and_the_host_looks_for_none_of_the_images(path: Path) -> None:
    """Rows 17, 19, 29: PMI is chosen, not left to a default; no mpirun; the first word is one that the host has."""
    ranks = [line for line in steps(path) if "launch.py" in line]
    assert len(ranks) == 1
    launcher = next(name for name in LAUNCHERS if ranks[0].startswith(name))
    words = re.split(r"\s+", re.sub(r"'[^']*'", "Q", ranks[0].removeprefix(launcher)))
    own = next(word for word in words if not word.startswith(("-", '"')) and word not in ("none", "Q"))
    assert own in ("/bin/bash", *programs().values()) or own.isdigit()
    assert not re.search(r"\bmpirun\b|\bhorovodrun\b", path.read_text())
    if path.suffix == ".sbatch" and "perlmutter" not in path.stem:  # Cray's own start-up is left as it is
        assert all("--mpi=" in line for line in steps(path))


@pytest.mark.parametrize("path", SLURM, ids=lambda path: path.stem)
def test_every_rank_sees_all_gpus_of_its_node_and_has_a_place(path: Path) -> None:
    """Rows 24, 25, 30."""
    text = path.read_text()
    assert not re.search(r"--(gpus-per-task|ntasks-per-gpu|tres-bind|tres-per-task)", text)
    assert set(re.findall(r"--gpu-bind=(\S+)", text)) <= {"none"}
    assert re.search(r"^#SBATCH --nodes=\d+$", text, re.MULTILINE)
    assert re.search(r"^#SBATCH --(ntasks-per-node|mincpus)=\d+$", text, re.MULTILINE)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_jobs_environment_wins_and_the_login_shells_stays_out(path: Path) -> None:
    """Rows 31, 32, 33."""
    text = path.read_text()
    assert set(re.findall(r"--export=(\S+)", text)) <= {"NONE"}
    assert re.search(r"^export (RUNNER_ENV_)?PYTHONNOUSERSITE='1'$", text, re.MULTILINE)
    exported = set(re.findall(r"^export ([A-Z]\w*)=", text, re.MULTILINE))
    for names in re.findall(r"--container-env=(\S+)", text):
        own = {name for name in exported if not name.startswith("RUNNER_ENV_")} - {"USER", "SLURM_HOSTFILE"}
        assert own <= set(names.split(",")) | {"RUNNER_RDV_PORT"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_directive_is_cut_off_by_a_hash(path: Path) -> None:
    """Row 3: what follows an unquoted # in a directive is lost."""
    for line in path.read_text().splitlines():
        if line.startswith(("#SBATCH", "#PBS")):
            assert "#" not in re.sub(r"\"(\\.|[^\"])*\"|'[^']*'", "", line[1:])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_causes_of_a_failure_stand_by_node_and_apart_from_the_clean_up(path: Path) -> None:
    text = path.read_text()
    for first in re.findall(r"^# (?:Once a|On each) node.*?\|\| exit 71$", text, re.MULTILINE | re.DOTALL):
        assert "logs/node-" in first
    for last in re.findall(r'^"\$\{last\[@\]\}" .*', text, re.MULTILINE):
        assert last.startswith('"${last[@]}" >>logs/cleanup.log 2>&1')


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_cleans_up_is_on_every_node_before_a_cancel_could_refuse_it(path: Path) -> None:
    """It is a step that runs already, and no list of the ranks' nodes decides where."""
    text = path.read_text()
    kept = re.findall(
        r"^coproc RUNNER_KEEPER \{\n(.*?)^\}\nrunner_keeper=", text.replace("\\\n", " "), re.MULTILINE | re.DOTALL
    )
    assert len(kept) == ("enroot" in path.stem or "staged" in path.stem)
    for command in kept:
        assert "enroot remove" in command or "rm -rf" in command
        (shape,) = re.findall(r"srun .*--nodes=(\d+) --ntasks=(\d+) --ntasks-per-node=1 --overlap ", command)
        assert shape[0] == shape[1]
        assert "SLURM_HOSTFILE" not in text[: text.index("coproc ")]
