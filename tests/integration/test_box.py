"""The box, for real: two nodes that behave like two machines, and clients that behave like clients."""

import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runner import box
from runner.box import lifecycle
from runner.core.errors import InfrastructureError, RefusedError
from runner.sites.loader import read_site
from tests.support import light_base
from tests.support.commands import ran
from tests.support.waiting import until

pytestmark = pytest.mark.integration
NAME = f"test-box-{os.getpid()}"  # two test runs at once have two boxes
DIRT = {"PIP_INDEX_URL": "https://secret@index.example", "LD_PRELOAD": "", "PATH": f"/dirt:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[box.Box]:
    """A box that was started from a shell full of variables, with a tight umask."""
    bound = tmp_path_factory.mktemp("bound")
    (bound / "marker").write_text("from the host\n")
    mask = os.umask(0o077)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in DIRT.items():
                patch.setenv(name, value)
            started = box.up(box.BoxSpec(name=NAME, binds=(box.Bind(str(bound), "/usr/lib/bound"),)))
    finally:
        os.umask(mask)
    yield started
    box.down(NAME)


def client(here: box.Box, *words: str | Path, **options: Any) -> str:
    return ran([here.bin_dir / words[0], *words[1:]], timeout_s=60, **options).out


def test_sixteen_tasks_on_two_nodes_that_are_like_two_machines(here: box.Box) -> None:
    script = (
        "echo $(hostname) $(cat /etc/hostname) $CUDA_VISIBLE_DEVICES;"
        " for d in /run /dev/shm /var/tmp; do : >$d/task-$SLURM_PROCID; ls $d | grep -c task-; done"
    )
    said = client(here, "srun", "--gpus=16", "--ntasks-per-node=8", "--ntasks=16", "sh", "-c", script)
    counts = Counter(said.split("\n"))
    for node in ("dgx01", "dgx02"):
        assert counts[f"{node} {node} 0,1,2,3,4,5,6,7"] == 8
    assert max(int(line) for line in counts if line.isdigit()) == 8, "each node has directories of its own"


def test_daemons_have_none_of_the_variables_of_whoever_started_the_box(here: box.Box) -> None:
    said = client(here, "in-box", "cat", "/proc/1/environ")  # the parent of all of them
    names = {entry.partition("=")[0] for entry in said.split("\0") if entry}
    allowed = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER", "PWD", "OLDPWD", "SHLVL", "_"}
    assert names <= allowed
    assert "/dirt" not in said


def test_jobs_without_exported_variables_are_the_same_from_any_shell(here: box.Box, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --export=NONE\nunset SLURM_EXPORT_ENV\numask\nenv | sort\nexec srun sh -c 'env | sort'\n"
    )
    for number, env in enumerate(({"PATH": "/usr/bin:/bin"}, {**os.environ, **DIRT})):
        client(here, "sbatch", f"--output=out-{number}", script, cwd=tmp_path, env=env)
    until(lambda: client(here, "squeue", "--noheader") == "")
    # What differs from job to job whatever the shell.
    changing = re.compile(r"SLURM_(JOB_?ID|TASK_PID|STEP_\w+|SRUN_COMM_PORT)=.*")
    said = [
        [line for line in (tmp_path / name).read_text().splitlines() if not changing.fullmatch(line)]
        for name in ("out-0", "out-1")
    ]
    assert said[0] == said[1]


def test_what_jobs_leave_is_readable_by_the_user_only(here: box.Box) -> None:
    said = client(here, "in-box", "stat", "--format=%a %n", "/var/box/spool", "/var/box/state")
    assert said == "711 /var/box/spool\n700 /var/box/state\n", "an ordinary user's script is run from the spool"
    assert f"{here.state.stat().st_mode:o}" == "40700"
    site = read_site(here.site)
    assert (site.box, site.node) == (NAME, read_site("box").node), "a box of any name brings a site to submit to"


def left_of(name: str) -> list[Path]:
    return list(lifecycle.boxes_dir().glob(f"{name}*"))


@pytest.mark.parametrize("kind", ["pmix", "pmi2"])
def test_mpi_plugins_span_nodes(here: box.Box, kind: str) -> None:
    ranks = client(here, "srun", f"--mpi={kind}", "--nodes=2", "sh", "-c", "echo ${PMIX_RANK:-$PMI_RANK}")
    assert sorted(ranks.split()) == ["0", "1"]


def test_every_node_finds_every_other_and_nothing_else(here: box.Box) -> None:
    said = client(here, "srun", "--nodes=2", "sh", "-c", "getent hosts dgx01 dgx02 box | sort; ip -o link | wc -l")
    assert Counter(said.split("\n"))["1"] == 2, "no link but the loopback"
    assert Counter(said.split("\n"))["10.0.0.12       dgx02"] == 2


def test_batch_job_runs_where_it_was_submitted(here: box.Box, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --export=NONE\npwd\ncommand -v srun\ncat /usr/lib/bound/marker\nexit 7\n")
    client(here, "sbatch", "--wait", "--output=out", script, cwd=tmp_path, code=7)
    assert (tmp_path / "out").read_text() == f"{tmp_path}\n/usr/bin/srun\nfrom the host\n"


def test_squashfs_is_mounted_for_each_task(here: box.Box, tmp_path: Path) -> None:
    tree, image = tmp_path / "tree", tmp_path / "image.sqsh"
    tree.mkdir()
    subprocess.run(["tar", "-x", "-C", tree], input=light_base.archive(marker=b"inside\n"), check=True, timeout=60)
    for name in ("dev", "home", "mnt", "proc", "run", "sys"):
        (tree / name).mkdir()
    subprocess.run(
        ["mksquashfs", tree, image, "-quiet", "-no-progress"], check=True, timeout=60, stdout=subprocess.DEVNULL
    )
    # Left to the tasks, they race for it (0.31): so do our job scripts.
    ready = ("sh", "-c", 'mkdir -p "/var/tmp/$(id -un).ch/mnt"')
    client(here, "srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", *ready)
    said = client(here, "srun", "--nodes=2", "--ntasks=16", "ch-run", image, "--", "/bin/cat", "/marker")
    assert said == "inside\n" * 16


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_client(here: box.Box, number: signal.Signals) -> None:
    mark = f"3{int(number):02d}.5"  # seconds to sleep, and a name for the process
    step = subprocess.Popen([here.bin_dir / "srun", "sleep", mark], start_new_session=True, stderr=subprocess.DEVNULL)

    def sleeps() -> bool:
        lines = client(here, "in-box", "ps", "-eo", "args").splitlines()
        return any(re.fullmatch(rf"(/\S+/)?sleep {re.escape(mark)}", line) for line in lines)

    until(sleeps)
    os.killpg(step.pid, number)  # as a terminal does
    if number == signal.SIGINT:  # srun wants it twice within a second
        time.sleep(0.2)
        os.killpg(step.pid, number)
    assert step.wait(20) != 0
    until(lambda: not sleeps())


def test_up_again_is_the_same_box(here: box.Box) -> None:
    assert box.up(here.spec) == here == box.find(NAME)
    with pytest.raises(RefusedError, match="nodes is 2, not 3"):
        box.up(box.BoxSpec(name=NAME, nodes=3, binds=here.spec.binds))


def test_two_at_once_start_one_box_and_down_ends_all_of_it() -> None:
    spec = box.BoxSpec(name=f"test-twice-{os.getpid()}", nodes=1)
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(box.up, [spec, spec])
        assert first == second
        assert "slurmctld" in client(first, "in-box", "ps", "-eo", "args")
    finally:
        ended = box.down(spec.name)
    assert ended
    assert box.find(spec.name) is None
    assert not box.down(spec.name)
    assert left_of(spec.name) == []


@pytest.mark.parametrize("restart", [True, False])
def test_a_box_that_was_killed_is_recovered(restart: bool) -> None:
    spec = box.BoxSpec(name=f"test-killed-{os.getpid()}", nodes=1)
    killed = box.up(spec)
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: box.find(spec.name) is None)
    assert (killed.state / "pid").exists()
    refused = subprocess.run([killed.bin_dir / "squeue"], capture_output=True, text=True, timeout=30, check=False)
    assert (refused.returncode, refused.stderr.split(": ")[1]) == (1, f"box {spec.name} is not running; start it")
    if restart:
        again = box.up(spec)
        assert again.pid != killed.pid
        assert client(again, "srun", "hostname") == "dgx01\n"
    assert box.down(spec.name) == restart
    assert left_of(spec.name) == []


def test_a_start_that_was_killed_is_recovered() -> None:
    name = f"test-cut-{os.getpid()}"
    state = lifecycle.boxes_dir() / name
    (state / "mnt").mkdir(parents=True)
    (state / "logs").mkdir()
    (state / "pid").write_text("4194305 1 root\n")  # above the kernel's limit: no process has it
    try:
        assert box.find(name) is None
        assert box.up(box.BoxSpec(name=name, nodes=1)).name == name
    finally:
        box.down(name)
    assert left_of(name) == []


def test_a_box_that_cannot_start_says_why_at_once() -> None:
    name = f"test-wrong-{os.getpid()}"
    spec = box.BoxSpec(name=name, nodes=1, binds=(box.Bind("/dev/null", "/etc/slurm/slurm.conf"),))
    started = time.monotonic()
    with pytest.raises(InfrastructureError) as said:
        box.up(spec)
    assert time.monotonic() - started < lifecycle.READY_WITHIN_S / 2
    assert "fatal: Unable to process configuration file" in said.value.where
    assert box.find(name) is None
    state = lifecycle.boxes_dir() / name
    assert not box.down(name)
    assert [path.name for path in state.iterdir()] == ["logs"], "they say why, until the next start"
    box.up(box.BoxSpec(name=name, nodes=1))
    box.down(name)
    assert left_of(name) == []
