"""How many ranks go on which node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.schedulers.hosts.client import MARK, answer, faults, no_answer, question
from runner.core.errors import Exit, RefusedError, RunnerError, UsageError
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Mount, Recipe, Request
from runner.model.site import NodeShape
from runner.planning.placement import parse_host_file, parse_hosts, place, place_on_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import read_site

DGX = NodeShape(cores=128, memory_mb=1_000_000, gpus=8, threads_per_core=2)


@pytest.mark.parametrize(
    ("gpus", "nodes", "placed"),
    [
        (1, None, (1,)),
        (8, None, (8,)),
        (16, None, (8, 8)),
        (12, None, (6, 6)),
        (9, None, (8, 1)),
        (13, None, (8, 5)),
        (3, 2, (2, 1)),
        (16, 4, (4, 4, 4, 4)),
        (17, 4, (8, 7, 1, 1)),
        (2, 2, (1, 1)),
    ],
)
def test_fewest_nodes_equal_split_else_full_nodes_first(gpus: int, nodes: int | None, placed: tuple[int, ...]) -> None:
    assert place(gpus, nodes, DGX) == placed


@pytest.mark.parametrize("gpus", range(1, 65))
def test_every_rank_is_placed_and_no_node_is_empty_or_over_full(gpus: int) -> None:
    placed = place(gpus, None, DGX)
    assert sum(placed) == gpus
    assert all(1 <= count <= 8 for count in placed)


@pytest.mark.parametrize(
    ("gpus", "nodes", "says"),
    [(0, None, "0 GPUs"), (-1, None, "-1 GPUs"), (8, 0, "0 nodes"), (8, -2, "-2 nodes"), (2, 3, "2 GPUs .* 3 nodes")],
)
def test_impossible_numbers_are_usage_errors(gpus: int, nodes: int | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        place(gpus, nodes, DGX)


def test_more_than_nodes_hold_is_refused_with_what_would_do() -> None:
    with pytest.raises(RefusedError) as caught:
        place(12, 1, DGX)
    assert "2 nodes or more" in caught.value.fix


def test_more_than_the_site_has_is_refused_with_what_it_has() -> None:
    with pytest.raises(RefusedError) as caught:
        place(10**9, None, NodeShape(cores=128, memory_mb=1, gpus=8, count=4))
    assert "32 GPUs or fewer" in caught.value.fix


RECIPE = Recipe(name="r", description="", image="i", program=("p",))
IMAGE = PlannedImage("i", "", "/shared/i.sif", size_bytes=100)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("nodea:8,nodeb:8", (("nodea", 8), ("nodeb", 8))),
        ("nodea", (("nodea", 1),)),
        ("nodea,nodea,nodeb", (("nodea", 2), ("nodeb", 1))),
        (" me@10.0.0.1:2 , n-1.x_y:3,", (("me@10.0.0.1", 2), ("n-1.x_y", 3))),
    ],
)
def test_hosts_on_a_command_line(text: str, hosts: Any) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["a:", "a:0", "a:x", "a:8:8", "-oProxyCommand=x:8", "a b:1", "a@-b:1", "a;id:1", "::1:8"]
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert caught.value.fix


def test_a_host_file_of_each_kind() -> None:
    text = """\
# horovodrun and mpirun
nodea slots=8
nodeb slots = 4 max_slots=4   # the small one
nodec max-slots=2
noded:3

nodee
nodee
"""
    hosts = (("nodea", 8), ("nodeb", 4), ("nodec", 2), ("noded", 3), ("nodee", 2))
    assert parse_host_file(text, "hosts") == hosts


@pytest.mark.parametrize("line", ["nodea slots=x", "nodea slots", "nodea cpu=4", "nodea slots=0", "$(id) slots=1"])
def test_a_line_that_cannot_be_taken_is_named(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_host_file(f"nodeb slots=1\n{line}\n", "my hosts")
    assert caught.value.where == "my hosts:2"


@pytest.mark.parametrize(
    ("gpus", "nodes", "room", "placed"),
    [
        (16, None, (8, 8), (8, 8)),
        (8, None, (8, 8), (8,)),
        (10, None, (8, 8), (5, 5)),
        (10, None, (8, 4), (8, 2)),
        (12, None, (8, 4), (8, 4)),
        (3, 2, (8, 8, 8), (2, 1)),
        (6, 3, (1, 8, 8), (1, 4, 1)),
        (4, 4, (8, 8, 8, 8), (1, 1, 1, 1)),
    ],
)
def test_ranks_fill_the_hosts_in_their_order(gpus: int, nodes: int | None, room: Any, placed: Any) -> None:
    hosts = {f"n{number}": ranks for number, ranks in enumerate(room)}
    assert place_on_hosts(gpus, nodes, hosts) == placed


@pytest.mark.parametrize(
    ("gpus", "nodes", "room", "kind", "says"),
    [
        (17, None, (8, 8), RefusedError, "n0:8,n1:8"),
        (10, 1, (8, 8), RefusedError, "10 GPUs do not fit on 1 of"),
        (3, 3, (8, 8), RefusedError, "3 GPUs do not fit on 3 of"),
        (1, 2, (8, 8), UsageError, "over 2 nodes"),
        (0, None, (8,), UsageError, "0 is not possible"),
        (1, 0, (8,), UsageError, "0 is not possible"),
        (1, None, (), UsageError, "no hosts"),
    ],
)
def test_what_does_not_fit_is_refused(gpus: int, nodes: Any, room: Any, kind: type[RunnerError], says: str) -> None:
    with pytest.raises(kind) as caught:
        place_on_hosts(gpus, nodes, {f"n{number}": ranks for number, ranks in enumerate(room)})
    assert says in caught.value.what
    assert caught.value.fix


def test_the_list_on_the_command_line_wins_and_a_scheduler_gives_out_its_own_nodes() -> None:
    site = read_site("hosts")
    ours = msgspec.structs.replace(site, ssh=msgspec.structs.replace(site.ssh, hosts={"mine": 2}))
    assert with_hosts(ours).node.gpus == 2
    assert dict(with_hosts(ours, parse_hosts("a:8,b:4")).ssh.hosts) == {"a": 8, "b": 4}
    assert with_hosts(ours, parse_hosts("a:8,b:4")).node.count == 2
    with pytest.raises(UsageError) as caught:
        with_hosts(read_site("technion"), parse_hosts("a:8"))
    assert "slurm" in caught.value.what


@pytest.mark.parametrize(
    ("ssh", "key"), [("hosts: {'a b': 1}", "ssh.hosts"), ("hosts: {a: 0}", "ssh.hosts"), ("config: mine", "ssh.config")]
)
def test_a_site_file_with_a_host_that_ssh_would_not_take_is_refused(tmp_path: Path, ssh: str, key: str) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(f"name: ours\nextends: hosts\nssh: {{{ssh}}}\n")
    with pytest.raises(UsageError) as caught:
        read_site(str(path))
    assert key in caught.value.where


def planned(**changes: Any) -> Plan:
    site = msgspec.structs.replace(with_hosts(read_site("hosts"), parse_hosts("a:2,b:2")), **changes)
    request = Request(gpus=4, mounts=(Mount("/da ta", "/data"),))
    return plan(RECIPE, site, request, IMAGE)


GOOD = {"token": "t", "gpus": "2", "head": "10.0.0.1 STREAM a", "image": "100", "python": "3 11", "no-modules": ""}


def answers(**changes: str) -> list[dict[str, list[str]]]:
    """Of two machines, of which the second answers otherwise by ``changes``."""
    told: list[dict[str, str]] = [{**GOOD, "machine": "a 1"}, {**GOOD, "machine": "b 2", **changes}]
    return [{name: [value] for name, value in each.items()} for each in told]


def test_hosts_that_are_ready() -> None:
    assert not list(faults(planned(), "/run", "a", "t", answers()))


@pytest.mark.parametrize(
    ("changes", "says", "fix"),
    [
        ({"token": ""}, "does not see the run directory /run", "--runs"),
        ({"token": "differs"}, "does not see the run directory", "--runs"),
        ({"image": ""}, "does not see the image /shared/i.sif", "RUNNER_STORE"),
        ({"image": "99"}, "has 99 bytes, and the image 100", "same image"),
        ({"no-mount": "0"}, "no '/da ta' to mount", "path"),
        ({"no-program": "ch-run"}, "no ch-run", "install"),
        ({"python": "3 6"}, "python3 is 3.6", "3.8"),
        ({"no-modules": "torch horovod"}, "cannot import torch, horovod", "container"),
        ({"gpus": "1"}, "has 1 NVIDIA GPUs, and 2 ranks", "b:1"),
        ({"head": ""}, "cannot resolve 'a'", "first"),
        ({"head": "127.0.1.1 STREAM a"}, "is a loopback address there", "first"),
        ({"machine": "a 1"}, "same machine as a", "once"),
    ],
)
def test_a_host_that_is_not_ready_is_named_with_its_fix(changes: Any, says: str, fix: str) -> None:
    (fault,) = faults(planned(), "/run", "a", "t", answers(**changes))
    assert fault.host == "b"
    assert says in fault.what
    assert fix in fault.fix
    assert fault.code == Exit.REFUSED


def test_without_gpus_none_are_counted() -> None:
    assert not list(faults(planned(device="cpu"), "/run", "a", "t", answers(gpus="0")))


def test_an_answer_is_read_among_whatever_a_login_shell_says() -> None:
    said = f"Welcome!\n{MARK} token \n{MARK} no-mount 1\n{MARK} no-mount 2\nfortune: no\n{MARK} end \n"
    assert answer(said) == {"token": [""], "no-mount": ["1", "2"], "end": [""]}
    assert answer(f"{MARK} token t\n") is None


def test_nothing_of_a_users_reaches_the_shell_unquoted() -> None:
    asked = question(planned(), "/run $(id)'s", "a", "/x:$HOME")
    assert "'/run $(id)'\\''s/hosts.token'" in asked
    assert "export PATH='/x:$HOME'" in asked
    assert "'/da ta'" in asked


UNKNOWN_KEY = "No ED25519 host key is known for x.\nHost key verification failed."
CHANGED_KEY = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed."


@pytest.mark.parametrize(
    ("said", "what", "fix", "code"),
    [
        (UNKNOWN_KEY, "does not know its host key", "by hand", 3),
        (CHANGED_KEY, "differs", "-R a", 3),
        ("me@x: Permission denied (publickey,password).", "without a password", "ssh-copy-id a", 3),
        ("ssh: Could not resolve hostname a: Name or service not known", "not known here", "HostName", 3),
        ("ssh: connect to host x port 22: Connection refused", "no ssh answers", "check that it is up", 8),
        ("ssh: connect to host x port 22: Connection timed out", "no ssh answers", "check that it is up", 8),
        ("", "exit code 255", "without a question", 8),
    ],
)
def test_what_ssh_prints_is_shown_with_its_fix(said: str, what: str, fix: str, code: int) -> None:
    fault = no_answer("a", 255, said, 60)
    assert what in fault.what
    assert fix in fault.fix
    assert fault.code == code
    assert "StrictHostKeyChecking" not in fault.fix


def test_a_host_that_says_nothing_in_time() -> None:
    assert "within 60 s" in no_answer("a", None, "", 60).what
    assert no_answer("a", 127, "bash: not found", 60).code == Exit.REFUSED
