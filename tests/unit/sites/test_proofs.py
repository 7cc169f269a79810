"""The table of docs/proofs.md against the site files: each way has a row, a golden script, and the state it earned."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from runner.model.request import Wireup
from runner.planning.wireup import obstacle
from runner.sites.loader import names, read_site
from tests.support import golden_jobs, golden_local_jobs
from tests.support.sites.clusters import MACHINES
from tests.support.sites.golden_scripts import scripts
from tests.support.sites.ways import REAL, WAYS

PROOFS = Path(__file__).parents[3] / "docs/proofs.md"
STATES = ("run", "accepted", "golden only")
Row = tuple[str, str, str]


def table() -> dict[Row, str]:
    """Site, runtime and wireup -> state."""
    text = PROOFS.read_text().partition("## Each way of each site")[2].partition("\n##")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    (site, runtime, wireup, state, *_), _rule, *rows = cells
    assert (site, runtime, wireup, state) == ("site", "runtime", "wireup", "state")
    counted = Counter((row[0], row[1], row[2]) for row in rows)
    assert max(counted.values()) == 1, counted.most_common(1)
    return {(row[0], row[1], row[2]): row[3] for row in rows}


def offered(site: str) -> set[Row]:
    """Every way that a site file offers."""
    facts = read_site(site)
    met = [way for way in get_args(Wireup) if way == "rendezvous" or (way != "own" and not obstacle(facts, way))]
    return {(site, runtime, way) for runtime in facts.runtimes for way in met}


def golden_requests(row: Row) -> list[str]:
    """The names of the golden scripts of a way."""
    site, runtime, _wireup = row
    of_this_machine = [
        name
        for name, (where, via, _request, held) in golden_local_jobs.CASES.items()
        if held is None and (where.name, via) == (site, runtime)
    ]
    return of_this_machine + [
        name
        for name, (where, via, request) in golden_jobs.CASES.items()
        if (where, via, request.wireup or "rendezvous") == row
    ]


def test_every_way_of_every_site_has_its_row_and_no_other_has_one() -> None:
    assert set(table()) == set().union(*(offered(site) for site in names()))


@pytest.mark.parametrize("row", table(), ids="-".join)
def test_a_way_has_a_golden_script_with_hostile_values(row: Row) -> None:
    """Blanks, quotes, ``$`` and the like in its mounts, environment and arguments. One script serves all of local."""
    names_of_scripts = golden_requests(row)
    assert names_of_scripts
    requests = [golden_jobs.CASES[name][2] for name in names_of_scripts if name in golden_jobs.CASES]
    requests += [request for site, _, request, _ in golden_local_jobs.CASES.values() if site.name == row[0]]
    hostile = [request for request in requests if request.arguments == golden_jobs.HOSTILE.arguments]
    assert any(request.env and request.mounts for request in hostile)


@pytest.mark.parametrize(("row", "state"), table().items(), ids=str)
def test_a_state_is_earned(row: Row, state: str) -> None:
    site, runtime, _wireup = row
    assert state in STATES
    tried = {(way.site, way.runtime, way.wireup) for way in WAYS}
    if state == "run":
        assert runtime in read_site(site).proven or (row in tried and runtime in REAL)
    elif state == "accepted":
        accepted = {name for machine in MACHINES for name in scripts(machine)}
        assert set(golden_requests(row)) & accepted
        assert row in tried
    else:
        assert read_site(site).scheduler == "pbs"
