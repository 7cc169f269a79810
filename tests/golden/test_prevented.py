"""What people's jobs fail of, by public threads, and no script of ours has. And what the scripts of a study's launches
in one allocation have, whatever else changes in their goldens.
"""

import re

import pytest

from runner.backends.schedulers import render_launches
from runner.core.errors import RefusedError
from runner.model.backends import SCHEDULERS, runtime_programs
from runner.model.request import Request
from runner.sites.loader import read_site
from tests.support.cases import for_each
from tests.support.golden_jobs import CASES
from tests.support.golden_launches import CASES as STUDY_CASES
from tests.support.golden_launches import LAUNCHES, prepared
from tests.support.goldens import scheduler_of, script_of

SCRIPTS = sorted(CASES)
SLURM = [name for name in SCRIPTS if scheduler_of(CASES[name][0]) == "slurm"]


def commands(name: str) -> list[str]:
    return script_of(name).text.replace("\\\n", " ").splitlines()


LAUNCHERS = tuple(f"{facts.launcher} " for facts in SCHEDULERS.values() if facts.launcher)


def steps(name: str) -> list[str]:
    """What starts tasks, the ranks' own the last."""
    return [line for line in commands(name) if line.startswith(LAUNCHERS)]


@for_each(SCRIPTS)
def test_no_node_imports_or_pulls_an_image(name: str) -> None:
    """Credentials, limits, disks and twenty minutes of waiting."""
    text = "\n".join((script_of(name).text, *script_of(name).files.values()))
    assert not re.search(r"enroot import|docker://|dockerd://|(apptainer|singularity) (pull|build)|ch-image", text)
    for image in re.findall(r"--container-image=(\S+)", text):
        assert image.startswith(("/", "'/", '"$runner_stage"/')), image
    assert len(re.findall(r"podman(?:-hpc)? run", text)) == text.count("--pull=never")


@for_each(SCRIPTS)
def test_no_container_has_a_name_that_outlives_its_job(name: str) -> None:
    """A container of that name is not there, or is an old one."""
    text = script_of(name).text
    assert "--container-name" not in text
    if "enroot.sh create" in text:
        assert re.search(r"enroot\.rc \\?\s*\S*\$runner_job", text)
        assert "name=$3-$node" in script_of(name).files["enroot.sh"]


@for_each(SCRIPTS)
def test_one_step_runs_one_program_and_the_host_looks_for_none_of_the_images(name: str) -> None:
    """PMI is chosen, not left to a default; no mpirun; the first word is one that the host has."""
    ranks = [line for line in steps(name) if "launch.py" in line]
    assert len(ranks) == 1
    launcher = next(name for name in LAUNCHERS if ranks[0].startswith(name))
    words = re.split(r"\s+", re.sub(r"'[^']*'", "Q", ranks[0].removeprefix(launcher)))
    own = next(word for word in words if not word.startswith(("-", '"')) and word not in ("none", "Q"))
    assert own in ("/bin/bash", *runtime_programs().values()) or own.isdigit()
    assert not re.search(r"\bmpirun\b|\bhorovodrun\b", script_of(name).text)
    if name in SLURM and "perlmutter" not in name:  # Cray's own start-up is left as it is
        assert all("--mpi=" in line for line in steps(name))


@for_each(SLURM)
def test_every_rank_sees_all_gpus_of_its_node_and_has_a_place(name: str) -> None:
    text = script_of(name).text
    assert not re.search(r"--(gpus-per-task|ntasks-per-gpu|tres-bind|tres-per-task)", text)
    assert set(re.findall(r"--gpu-bind=(\S+)", text)) <= {"none"}
    assert re.search(r"^#SBATCH --nodes=\d+$", text, re.MULTILINE)
    assert re.search(r"^#SBATCH --(ntasks-per-node|mincpus)=\d+$", text, re.MULTILINE)


@for_each(SCRIPTS)
def test_the_jobs_environment_wins_and_the_login_shells_stays_out(name: str) -> None:
    text = script_of(name).text
    assert set(re.findall(r"--export=(\S+)", text)) <= {"NONE"}
    assert re.search(r"^export (RUNNER_ENV_)?PYTHONNOUSERSITE='1'$", text, re.MULTILINE)
    exported = set(re.findall(r"^export ([A-Z]\w*)=", text, re.MULTILINE))
    for names in re.findall(r"--container-env=(\S+)", text):
        own = {name for name in exported if not name.startswith("RUNNER_ENV_")} - {"USER", "SLURM_HOSTFILE"}
        assert own <= set(names.split(",")) | {"RUNNER_RDV_PORT"}


@for_each(SCRIPTS)
def test_no_directive_is_cut_off_by_a_hash(name: str) -> None:
    """What follows an unquoted # in a directive is lost."""
    for line in script_of(name).text.splitlines():
        if re.match("#[A-Z]+ ", line):
            assert "#" not in re.sub(r"\"(\\.|[^\"])*\"|'[^']*'", "", line[1:])


@for_each(SCRIPTS)
def test_the_causes_of_a_failure_stand_by_node_and_apart_from_the_clean_up(name: str) -> None:
    script = script_of(name)
    for first in re.findall(r"^# Once a node.*?\|\| exit 71$", script.text, re.MULTILINE | re.DOTALL):
        assert "logs/node-" in first or ("output.sh node" in first and "logs/node-" in script.files["output.sh"])
    if "keeper.sh" in script.files:
        assert '"${first[@]}" >"logs/node-$SLURMD_NODENAME.log" 2>&1' in script.files["keeper.sh"]
        assert '"${last[@]}" >>logs/cleanup.log 2>&1' in script.files["keeper.sh"]


@for_each(SCRIPTS)
def test_what_cleans_up_is_on_every_node_before_a_cancel_could_refuse_it(name: str) -> None:
    """It is a step that runs already, and no list of the ranks' nodes decides where."""
    text = script_of(name).text
    kept = re.findall(
        r"^coproc RUNNER_KEEPER \{\n(.*?)^\}\nrunner_until_ready\n", text.replace("\\\n", " "), re.MULTILINE | re.DOTALL
    )
    assert len(kept) == ("enroot" in name or "staged" in name)
    for command in kept:
        assert "enroot.sh remove" in command or "rm -rf" in command
        (shape,) = re.findall(r"srun .*--nodes=(\d+) --ntasks=(\d+) --ntasks-per-node=1 --overlap ", command)
        assert shape[0] == shape[1]
        assert "runner_place_ranks" not in text[: text.index("coproc ")]


LAUNCHED = [name for name in STUDY_CASES if name.startswith("launch-") and "local" not in name]


@for_each(LAUNCHED)
def test_a_launch_names_its_whole_shape(name: str) -> None:
    """What it does not name would come from the allocation, and differ from size to size."""
    text = script_of(name).text.replace("\\\n", " ")
    step = next(line for line in text.splitlines() if line.startswith("srun") and "logs/rank-%t.out" in line)
    options = set(re.findall(r" (--[a-z-]+)(?==| )", step.partition(" /")[0]))
    needed = {"--exact", "--ntasks", "--gpus-per-node", "--cpus-per-task", "--mem", "--time", "--wait", "--cpu-bind"}
    assert needed <= options
    assert "--nodelist" in options or "--distribution" in options
    assert "--wait=0 " in step
    assert not options & {"--gpus-per-task", "--gpu-bind", "--overlap"}, "each rank sees all GPUs of its node"
    assert "\nrunner_unset_shape\n" in text


def test_equal_shares_at_every_size() -> None:
    """Sizes of one study have the same GPUs, memory and processors of a node; only the number of ranks differs."""
    steps = [script_of(f"launch-technion-{name}").text for name in ("pyxis-16", "pyxis-4", "solo")]
    for option in ("--gpus-per-node=8", "--mem=0", "--cpu-bind=none", "--bind gpu-share"):
        assert all(option in step for step in steps), option
    ranks = [re.search(r"runner_cpus=\$\(\( \$\{1:-0\} / (\d+) \)\)", step) for step in steps]
    assert [match and match[1] for match in ranks] == ["8", "4", "1"]
    assert [re.findall(r"--first-gpu (\d+)", step) for step in steps] == [[], [], ["3"]]


def test_pbs_says_that_it_has_no_such_way() -> None:
    planned, step = prepared(read_site("polaris"), "apptainer", Request(gpus=8, account="m1234"))
    with pytest.raises(RefusedError, match="mpiexec has no steps"):
        render_launches(planned, step, LAUNCHES)
