"""Ways in which sites have jobs asked for, and jobs ask Slurm, accepted and run by real ones: of 22.05, where nothing
else is said, and of 24.11, Debian 13's.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, extended, ran
from tests.support.daemons import Daemons, own_box
from tests.support.documents import result
from tests.support.planted_faults import assert_placed_as_planned, submit_one_of_each
from tests.support.rank_records import document_of, has_started, records

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_site_asks_in_its_own_way_and_ranks_lie_as_planned(
    version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    command: Runner = request.getfixturevalue("runner" if version == "22.05" else "newer")
    assert_placed_as_planned(command, submit_one_of_each(command, tmp_path))


def test_what_a_check_refuses_can_be_forced_and_is_recorded(runner: Runner, tmp_path: Path) -> None:
    site = extended(runner.site, tmp_path, submit_below=["/nowhere"])
    request = ("submit", "--recipe", "probe", "--gpus", "1")
    assert "submit-directory" in runner(*request, code=3, site=site).err
    said = runner(*request, "--force", "submit-directory", "--wait", code=0, site=site)
    assert "forced [submit-directory]" in said.err
    run = runner.newest()
    (finding,) = document_of(run, "provenance")["findings"]
    assert (finding["code"], finding["forced"]) == ("submit-directory", True)
    assert [document_of(run, name)["forced"] for name in ("plan", "verdict")] == [["submit-directory"]] * 2
    assert "forced: submit-directory" in said.out


DIRTY = {"LD_LIBRARY_PATH": "/nowhere", "PYTHONPATH": "/nowhere", "OF_MY_SHELL": "1", "OMP_PROC_BIND": "false"}


@pytest.mark.parametrize("export", ["none", "nil", "all"])
def test_a_job_is_the_same_however_slurm_exports(runner: Runner, tmp_path: Path, export: str) -> None:
    """In a container and without one; nothing of the submitting shell arrives."""
    site = extended(runner.site, tmp_path, slurm={"export": export})
    for runtime in ("charliecloud", "native"):
        words = ("submit", "--recipe", "probe", "--gpus", "4", "--nodes", "2", "--runtime", runtime)
        runner(*words, "--wait", code=0, site=site, env=DIRTY)
        run = runner.newest()
        assert f"#SBATCH --export={export.upper()}\n" in (run / "job.sh").read_text()
        probes = records(run, "probe")
        assert len(probes) == 4
        for probe in probes.values():
            assert not set(DIRTY) & set(probe["environment_names"])
            assert {"PATH", "HOME", "USER", "SLURM_JOB_ID"} <= set(probe["environment_names"])
        said = (run / "logs/batch.err").read_text().splitlines()
        assert [line for line in said if "slurm_script" in line or "job.sh" in line] == [], "bash had nothing to say"


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("mem=3G", "MinMemoryNode=3G"),
        ("mem-per-cpu=20M", "MinMemoryCPU=20M"),
        ("mem=0", "MinMemoryNode=0"),
        ("mem-per-gpu=2G", "MemPerTres=gres[:/]gpu:2048"),
    ],
)
def test_memory_of_a_job_reaches_slurm_and_its_steps_start(runner: Runner, option: str, shown: str) -> None:
    job = result(runner("submit", "--recipe", "probe", "--gpus", "2", "-S", option, "--json", code=0).out)
    assert re.search(shown, ran([runner.clients / "scontrol", "show", "job", job["job"]]).out)
    runner("wait", job["directory"], code=0)


LATE = "import os, time; time.sleep(0 if os.environ['RANK'] == '0' else 15)"


def test_how_long_the_others_go_on_is_the_jobs_choice(runner: Runner) -> None:
    words = ("submit", "--gpus", "2", "--wait")
    runner(*words, "-S", "wait=0", "--", "python3", "-c", LATE, code=0)
    assert "--wait=2 " in (
        runner(*words, "-S", "wait=2", "--dry-run", "--", "python3", "-c", LATE, code=0).out.replace("\\\n", "")
    )
    runner(*words, "-S", "wait=2", "--", "python3", "-c", LATE, code=5)


SUMS = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
# One write: a node's ranks share its log, and unbuffered prints of several words would mix.
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} sum {int(total)}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("line", ["python3 -m torch.distributed.run train.py", "bash -e train.sh train.py"])
def test_torchrun_on_two_nodes_needs_no_argument(runner: Runner, tmp_path: Path, line: str) -> None:
    """A task a node, which starts the processes of its GPUs: one world; they inherit nothing of what it was given."""
    inherits = "assert not [name for name in os.environ if name.startswith(('PET_', 'BASH_FUNC_'))]\n"
    (tmp_path / "train.py").write_text(SUMS + inherits)
    (tmp_path / "train.sh").write_text("A=(--max-restarts 0)\npython3 -m torch.distributed.run ${A[@]} $1\n")
    said = runner("submit", "--gpus", "4", "--nodes", "2", "--wait", "--", *line.split(), code=0, cwd=tmp_path)
    assert "1 world of 4 devices" in said.out
    run = runner.newest()
    logs = "".join(path.read_text() for path in (run / "logs").glob("rank-*.out"))
    assert sorted(re.findall(r"rank (\d) of 4 sum 4", logs)) == ["0", "1", "2", "3"]
    starts = {(start["host"], start["local_size"]) for start in records(run, "start").values()}
    assert starts == {("dgx01", 1), ("dgx02", 1)}


@pytest.fixture(scope="module")
def newer(squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with own_box("newer", slurm="24.11") as here:
        yield Runner.at(here.site, tmp_path_factory.mktemp("newer"), here.bin_dir, runs="my runs")


def test_a_cancelled_job_is_reported_and_a_refusal_has_its_fix(newer: Runner) -> None:
    words = ("submit", "--recipe", "probe", "--gpus", "4", "--nodes", "2")
    run = newer.submitted(has_started(4), *words, "--", "--sleep", "300")
    assert "running" in newer("status", str(run), code=0).out
    newer("cancel", str(run), code=0)
    newer("wait", str(run), code=5)
    assert "the job was cancelled by" in document_of(run, "verdict")["reasons"][0]
    assert sorted(records(run, "start")) == [0, 1, 2, 3]
    refused = newer(*words, "--queue", "nowhere", code=4).err
    assert "invalid partition" in refused.lower()
    assert "--queue with one of this cluster's: " in refused


Configure = Callable[[str], None]
PYXIS = ("submit", "--recipe", "probe", "--gpus", "2", "--runtime", "pyxis")


@pytest.fixture
def plugstack(daemons: Daemons) -> Iterator[Configure]:
    """Writes the clients' plugstack.conf; it is empty again at the end."""

    def write(line: str) -> None:
        daemons.inside("sh", "-c", 'printf "%s" "$1" >/etc/slurm/plugstack.conf', "sh", line)

    yield write
    write("")


def test_no_plugin(ill: Runner, plugstack: Configure) -> None:
    plugstack("")
    refused = ill(*PYXIS, code=3).err
    assert (
        "[plugin-missing]: srun has no --container-image: the plugin of Pyxis is not loaded on this cluster" in refused
    )
    assert "of the site: charliecloud" in refused


def test_a_broken_configuration(ill: Runner, plugstack: Configure) -> None:
    """It ends every client: also where the job's own runtime needs no plugin."""
    plugstack("required /nowhere/spank_pyxis.so\n")
    refused = ill(*PYXIS, code=3).err
    assert "(plugstack.conf) is broken: spank: /nowhere/spank_pyxis.so: Dlopen of plugin file failed" in refused
    other = ill("submit", "--recipe", "probe", "--gpus", "2", code=4).err
    assert "the cluster's plugin configuration (plugstack.conf) is broken" in other
    assert "sinfo" not in other
