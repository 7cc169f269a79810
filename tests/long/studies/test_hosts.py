"""Studies on a list of hosts, by ssh: real sshds of two nodes, no scheduler. One launch at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.sshd import Nodes, running_nodes
from tests.support.studies import TIMED, overlapping, runs_with

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes nodes with sshds of their own: run it as root")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes"), "/usr/local/bin:/usr/bin:/bin") as made:
        yield made


@pytest.mark.parametrize("way", ["separate", "one-allocation"])
def test_a_study_of_two_hosts(nodes: Nodes, tmp_path: Path, way: str) -> None:
    hosts = Runner.at(nodes.site(), tmp_path, runs="my $runs")
    more = ("--same-nodes",) if way == "one-allocation" else ()
    hosts("scale", "--gpus", "1,2,4", "--repeats", "2", *TIMED, *more, "--wait", code=0)
    (path,) = hosts.runs.glob("*-study")
    facts = result(hosts("status", path.name, "--json", code=0).out)
    assert (facts["state"], facts["way"], facts["differences"]) == ("complete", way, [])
    assert set(runs_with(path, "result.json").values()) == {1}
    assert overlapping(path) == []
    used = {each["launch"]["gpus"]: each["nodes"] for each in facts["launches"]}
    assert used == {1: ["nodea"], 2: ["nodea"], 4: ["nodea", "nodeb"]}
