"""Jobs on a list of hosts by the user's own ssh: real sshds of two nodes, no scheduler, no change of this machine."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.local_jobs import leader, modes, outcome, session
from tests.support.planted_faults import RECIPE
from tests.support.programs import UNCHANGED
from tests.support.rank_records import records
from tests.support.sshd import Nodes
from tests.support.waiting import until

pytestmark = pytest.mark.integration
PROBE = ("submit", "--recipe", "probe", "--gpus", "4", "--runtime", "native")
SLEEPS = (*PROBE, "--", "--sleep", "300")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, ch_run: Path) -> Iterator[Nodes]:
    made = Nodes.create(tmp_path_factory.mktemp("nodes"), f"{ch_run}:/usr/local/bin:/usr/bin:/bin")
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def hosts(nodes: Nodes, tmp_path: Path) -> Runner:
    """The command line with the two nodes as its site; they are up, and nothing is left there afterwards."""
    nodes.start()
    return Runner(nodes.site(), tmp_path / "my $runs", tmp_path / "state", tmp_path)


def quiet(nodes: Nodes) -> None:
    """Wait until nothing of a job runs on any node."""
    for node in nodes.nodes:
        until(node.is_quiet, f"{node.name} runs nothing", timeout_s=90)


def all_met(run: Path) -> bool:
    """The ranks need each other no more: what ends them now is not that another has gone."""
    return len(records(run, "probe")) == 4


def reasons(run: Path) -> list[str]:
    return list(json.loads((run / "verdict.json").read_text())["reasons"])


def test_a_job_of_two_hosts_in_the_environment_that_submits(hosts: Runner, nodes: Nodes) -> None:
    """What a dry run prints is what ran; hostile values arrive; every rank is where it was planned."""
    value, arguments = 'it\'s "$HOME" `id` \\ # é\ntwo *', ("--env", "NOTE", "--env", "HERE", "a b", "", "$(id)'\"*")
    words = (*PROBE, "--env", f"NOTE={value}")
    env = {"HERE": value, "SLURM_PROCID": "5", "RANK": "7"}
    printed = hosts(*words, "--dry-run", "--", *arguments, code=0, env=env).out
    hosts(*words, "--wait", "--", *arguments, code=0, env=env)
    run = hosts.newest()
    assert (run / "job.sh").read_text() == printed
    assert outcome(run) == "ran"
    starts = records(run, "start")
    assert [starts[rank]["host"] for rank in range(4)] == ["nodea", "nodea", "nodeb", "nodeb"]
    for probe in records(run, "probe").values():
        assert [base64.b64decode(word).decode() for word in probe["argv_base64"]] == list(arguments)
        seen = {name: base64.b64decode(raw).decode() for name, raw in probe["environment_base64"].items()}
        assert seen == {"NOTE": value, "HERE": value}
    assert session(leader(run)) == []
    assert modes(run) == {0}
    assert not (run / "hosts.token").exists()
    quiet(nodes)


def test_the_main_job_in_containers(hosts: Runner, nodes: Nodes, squashfs: StoredImage) -> None:
    """Two nodes with two Horovod ranks each, from the list on the command line."""
    assert squashfs.path.is_file()
    words = ("submit", "--hosts", "nodea:2,nodeb:2", "--gpus", "4", "--runtime", "charliecloud", "--wait")
    done = hosts(*words, code=0, env={"PYTHONPATH": "/nowhere"})
    assert outcome(hosts.newest()) == "measured"
    assert "no performance claim" in done.out
    quiet(nodes)


def test_a_torch_program_gets_the_variables_of_torchrun(
    hosts: Runner, nodes: Nodes, squashfs: StoredImage, tmp_path: Path
) -> None:
    """torch itself takes it for torchrun's, and its ranks train as one."""
    assert squashfs.path.is_file()
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
        said = (hosts.newest() / "logs" / f"rank-{rank}.out").read_text()
        assert said.startswith(f"{rank // 2}\nrank {rank} of 4, local rank {rank % 2}, same weights: True")


def test_one_rank_that_fails_takes_the_others_along(hosts: Runner, nodes: Nodes) -> None:
    words = ("--fault", "exit:7@3", "--fault", "hang@0")
    hosts("submit", "--recipe", str(RECIPE), "--gpus", "4", *PROBE[5:], "--wait", "--", *words, code=5)
    assert "rank 3 on nodeb exited with code 7" in reasons(hosts.newest())[0]
    quiet(nodes)


def test_a_node_that_dies_is_named(hosts: Runner, nodes: Nodes) -> None:
    child, run = hosts.start_until(all_met, *SLEEPS)
    assert child.wait(60) == 0
    nodes.nodes[1].cut()
    hosts("wait", run.name, code=8)
    assert "NODE_FAIL: nodeb failed" in reasons(run)[0]
    until(nodes.nodes[0].is_quiet, "nodea runs nothing", timeout_s=90)


def test_a_connection_that_is_lost_ends_both_ends(hosts: Runner, nodes: Nodes) -> None:
    """The node lives on, and its ranks do not."""
    child, run = hosts.start_until(all_met, *SLEEPS)
    assert child.wait(60) == 0
    for pid, words in nodes.nodes[1].processes().items():
        if words.startswith("sshd: "):
            os.kill(pid, signal.SIGKILL)
    hosts("wait", run.name, code=8)
    assert "nodeb failed" in reasons(run)[0]
    quiet(nodes)


def test_a_controller_that_is_killed_outright_leaves_no_orphans(hosts: Runner, nodes: Nodes) -> None:
    child, run = hosts.start_until(all_met, *SLEEPS)
    assert child.wait(60) == 0
    assert not nodes.nodes[0].is_quiet()
    os.kill(leader(run), signal.SIGKILL)
    quiet(nodes)
    assert "killed outright" in hosts("wait", run.name, code=5).out
    assert session(leader(run)) == []


def test_two_at_once_one_of_which_is_cancelled(hosts: Runner, nodes: Nodes, tmp_path: Path) -> None:
    """From another directory; the other job goes on, outlives the process that waits for it, and ends well."""
    first, doomed = hosts.start_until(all_met, *SLEEPS)
    assert first.wait(60) == 0
    second, other = hosts.start_until(all_met, *PROBE, "--wait", "--", "--sleep", "4")
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    assert result(hosts("status", doomed.name, "--json", code=0).out)["scheduler"]["nodes"] == "nodea,nodeb"
    hosts("cancel", doomed.name, code=0, cwd=tmp_path)
    assert "the job was cancelled" in hosts("wait", doomed.name, code=5).out
    assert "4 of 4 ranks met on 2 hosts" in hosts("logs", other.name, "-f", code=0).out
    assert result(hosts("wait", other.name, "--json", code=0).out)["verdict"]["outcome"] == "ran"
    quiet(nodes)


def test_ctrl_c_while_waiting_cancels_the_job_with_that_option(hosts: Runner, nodes: Nodes) -> None:
    child, run = hosts.start_until(all_met, *SLEEPS[:7], "--wait", "--cancel-on-interrupt", *SLEEPS[7:])
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    hosts("wait", run.name, code=5)
    quiet(nodes)


def test_the_time_limit(hosts: Runner, nodes: Nodes) -> None:
    began = time.monotonic()
    hosts(*SLEEPS[:7], "--time", "0:05", "--wait", *SLEEPS[7:], code=5)
    assert time.monotonic() - began < 60
    assert "time limit" in reasons(hosts.newest())[0]
    quiet(nodes)


def test_an_unknown_host_or_one_without_a_login_is_refused(hosts: Runner, nodes: Nodes, tmp_path: Path) -> None:
    """No host key is trusted, no question asked, no file left; every host is reported."""
    empty = nodes.configure("strangers", known="no-host-known")
    config = {"hosts": {"nodea": 2, "nodeb": 2}}
    said = hosts(*PROBE, code=3, site=nodes.site(ssh={**config, "config": str(empty)})).err
    assert "nodea: ssh does not know its host key" in said
    assert "nodeb: ssh does not know its host key" in said
    assert "`ssh nodea` once by hand" in said
    assert not (nodes.directory / "no-host-known").exists()
    stranger = nodes.configure("stranger_config", key="stranger")
    said = hosts(*PROBE, code=3, site=nodes.site(ssh={**config, "config": str(stranger)})).err
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
