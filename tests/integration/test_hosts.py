"""Jobs on a list of hosts by the user's own ssh: real sshds of two nodes, no scheduler, no change of this machine."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.local_jobs import assert_runs_as_printed, leader, session
from tests.support.planted_faults import RECIPE
from tests.support.rank_records import document_of, outcome, printed, records
from tests.support.recipes import UNCHANGED
from tests.support.sshd import Node, Nodes, running_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.integration
PROBE = ("submit", "--recipe", "probe", "--gpus", "4", "--runtime", "native")
SLEEPS = (*PROBE, "--", "--sleep", "300")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, ch_run: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), f"{ch_run}:/usr/local/bin:/usr/bin:/bin") as made:
        yield made


@pytest.fixture
def hosts(nodes: Nodes, tmp_path: Path) -> Iterator[Runner]:
    """The command line with the two nodes as its site; they are up, and nothing is left on those that still are."""
    nodes.start()
    yield Runner.at(nodes.site(), tmp_path, runs="my $runs")
    quiet(nodes)


def quiet(nodes: Nodes) -> None:
    for node in filter(Node.runs, nodes.nodes):
        until(node.is_quiet, f"{node.name} runs nothing", timeout_s=90)


def first_reason(run: Path) -> str:
    return str(document_of(run, "verdict")["reasons"][0])


def all_met(run: Path) -> bool:
    """The ranks need each other no more: what ends them now is not that another has gone."""
    return len(records(run, "probe")) == 4


def test_a_job_of_two_hosts_in_the_environment_that_submits(hosts: Runner) -> None:
    assert_runs_as_printed(hosts, *PROBE, SLURM_PROCID="5", RANK="7")
    run = hosts.newest()
    starts = records(run, "start")
    assert [starts[rank]["host"] for rank in range(4)] == ["nodea", "nodea", "nodeb", "nodeb"]
    assert not (run / "hosts.token").exists()


@pytest.mark.usefixtures("squashfs")
def test_the_main_job_in_containers(hosts: Runner) -> None:
    words = ("submit", "--hosts", "nodea:2,nodeb:2", "--gpus", "4", "--runtime", "charliecloud", "--wait")
    done = hosts(*words, code=0, env={"PYTHONPATH": "/nowhere"})
    assert outcome(hosts.newest()) == "measured"
    assert "no performance claim" in done.out


@pytest.mark.usefixtures("squashfs")
def test_a_torch_program_gets_the_variables_of_torchrun(hosts: Runner, tmp_path: Path) -> None:
    """torch itself takes it for torchrun's, and its ranks train as one."""
    shutil.copy(UNCHANGED / "ddp.py", tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, runpy, torch.distributed as dist\n"
        "assert dist.is_torchelastic_launched()\n"
        "print(os.environ['GROUP_RANK'], flush=True)\n"
        "runpy.run_path('ddp.py')\n"
    )
    words = ("submit", "--gpus", "4", "--runtime", "charliecloud", "--wireup", "torchrun", "--wait")
    hosts(*words, "--", "python3", "train.py", code=0, cwd=tmp_path)
    for rank in range(4):
        start = f"{rank // 2}\nrank {rank} of 4, local rank {rank % 2}, same weights: True"
        assert printed(hosts.newest(), rank).startswith(start)


def test_a_command_beside_a_rank(hosts: Runner, tmp_path: Path) -> None:
    run = hosts.submitted(all_met, *SLEEPS)
    words = ("--rank", "3", "--", "bash", "-c", 'echo "$RANK $(hostname) $1"; exit 4', "x", "a '$b\nc")
    assert hosts("shell", run.name, *words, code=4).out == "3 nodeb a '$b\nc\n"
    copied = {"RUNNER_STATE": str(tmp_path / "of another")}  # as if this user had not submitted it
    config = Path(document_of(run, "plan")["hosts"]["config"])
    mode = config.stat().st_mode
    config.chmod(0o666)
    assert "another user may change" in hosts("shell", str(run), *words, code=3, env=copied).err
    config.chmod(mode)
    hosts("cancel", run.name, code=0)


def test_one_rank_that_fails_takes_the_others_along(hosts: Runner) -> None:
    words = ("--fault", "exit:7@3", "--fault", "hang@0")
    hosts("submit", "--recipe", str(RECIPE), "--gpus", "4", *PROBE[5:], "--wait", "--", *words, code=5)
    assert "rank 3 on nodeb exited with code 7" in first_reason(hosts.newest())


def test_a_node_that_dies_is_named(hosts: Runner, nodes: Nodes) -> None:
    run = hosts.submitted(all_met, *SLEEPS)
    nodes.nodes[1].cut()
    hosts("wait", run.name, code=8)
    assert "NODE_FAIL: nodeb failed" in first_reason(run)


def test_a_connection_that_is_lost_ends_both_ends(hosts: Runner, nodes: Nodes) -> None:
    """The node lives on, and its ranks do not."""
    run = hosts.submitted(all_met, *SLEEPS)
    for pid, words in nodes.nodes[1].processes().items():
        if words.startswith("sshd: "):
            os.kill(pid, signal.SIGKILL)
    hosts("wait", run.name, code=8)
    assert "nodeb failed" in first_reason(run)


def test_a_controller_that_is_killed_outright_leaves_no_orphans(hosts: Runner, nodes: Nodes) -> None:
    run = hosts.submitted(all_met, *SLEEPS)
    assert not nodes.nodes[0].is_quiet()
    os.kill(leader(run), signal.SIGKILL)
    quiet(nodes)
    assert "killed outright" in hosts("wait", run.name, code=5).out
    assert session(leader(run)) == []


def test_two_at_once_one_of_which_is_cancelled(hosts: Runner, tmp_path: Path) -> None:
    """From another directory; the other job goes on, outlives the process that waits for it, and ends well."""
    cancelled = hosts.submitted(all_met, *SLEEPS)
    second, other = hosts.start_until(all_met, *PROBE, "--wait", "--", "--sleep", "4")
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    assert result(hosts("status", cancelled.name, "--json", code=0).out)["scheduler"]["nodes"] == "nodea,nodeb"
    hosts("cancel", cancelled.name, code=0, cwd=tmp_path)
    assert "the job was cancelled" in hosts("wait", cancelled.name, code=5).out
    assert "4 of 4 ranks met on 2 hosts" in hosts("logs", other.name, "-f", code=0).out
    assert result(hosts("wait", other.name, "--json", code=0).out)["verdict"]["outcome"] == "ran"


def test_ctrl_c_while_waiting_cancels_the_job_with_that_option(hosts: Runner) -> None:
    child, run = hosts.start_until(all_met, *SLEEPS[:7], "--wait", "--cancel-on-interrupt", *SLEEPS[7:])
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    hosts("wait", run.name, code=5)


def test_the_time_limit(hosts: Runner) -> None:
    began = time.monotonic()
    hosts(*SLEEPS[:7], "--time", "0:05", "--wait", *SLEEPS[7:], code=5)
    assert time.monotonic() - began < 60
    assert "time limit" in first_reason(hosts.newest())


def test_an_unknown_host_or_one_without_a_login_is_refused(hosts: Runner, nodes: Nodes) -> None:
    """No host key is trusted, no question asked, no file left; every host is reported."""

    def refused(config: Path) -> str:
        ssh = {"hosts": {"nodea": 2, "nodeb": 2}, "config": str(config)}
        return hosts(*PROBE, code=3, site=nodes.site(ssh=ssh)).err

    said = refused(nodes.configure("strangers", known="no-host-known"))
    for sentence in ("nodea: ssh does not know its host key", "nodeb: ssh does not", "`ssh nodea` once by hand"):
        assert sentence in said
    assert not (nodes.directory / "no-host-known").exists()
    said = refused(nodes.configure("stranger_config", key="stranger"))
    assert "it refuses a login without a password" in said
    assert "ssh-copy-id nodeb" in said


def test_hosts_that_are_not_ready_are_named(hosts: Runner, nodes: Nodes) -> None:
    said = hosts(*PROBE, code=3, site=nodes.site(device="cuda"))
    assert "nodea: it has 0 NVIDIA GPUs, and 2 ranks are planned there" in said.err
    nodes.nodes[1].cut()
    said = hosts(*PROBE, code=8)
    assert "nodeb: no ssh answers there" in said.err
    assert "nodea:" not in said.err
    assert "17 GPUs" in hosts("submit", "--recipe", "probe", "--gpus", "17", code=3).err
