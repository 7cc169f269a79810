"""The record of what ran is what the pages show; each way of each site has a golden script and the state it earned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from runner.cli import run
from runner.model.request import Wireup
from runner.planning.wireup import obstacle
from runner.sites.loader import names, read_site
from runner.sites.proofs import recorded, with_recorded
from tests.support import golden_jobs, golden_local_jobs
from tests.support.proof_pages import CHECKOUT, PAGES, rendered
from tests.support.sites.clusters import MACHINES
from tests.support.sites.ways import REAL, WAYS, scripts

Row = tuple[str, str, str]
WAYS_OF_SITES = {(way.site, way.runtime, way.wireup): way for way in recorded().ways}


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
    assert sorted(WAYS_OF_SITES) == sorted(set().union(*(offered(site) for site in names())))
    assert len(WAYS_OF_SITES) == len(recorded().ways)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_the_record(page: str) -> None:
    """``make proofs`` after a change of the record."""
    assert (CHECKOUT / page).read_text() == rendered(page)


def test_every_run_that_is_named_is_recorded_once() -> None:
    proofs = recorded()
    named = {name for way in proofs.ways for name in (way.ran, way.accepted) if name}
    assert sorted(run.id for run in proofs.runs if run.id) == sorted(named)
    assert not [run.path for run in proofs.runs if not re.fullmatch(r"2026-\d\d-\d\d", run.date)]


@pytest.mark.parametrize("row", WAYS_OF_SITES, ids="-".join)
def test_a_way_has_a_golden_script_with_hostile_values(row: Row) -> None:
    """Blanks, quotes, ``$`` and the like in its mounts, environment and arguments. One script serves all of local."""
    names_of_scripts = golden_requests(row)
    assert names_of_scripts
    requests = [golden_jobs.CASES[name][2] for name in names_of_scripts if name in golden_jobs.CASES]
    requests += [request for site, _, request, _ in golden_local_jobs.CASES.values() if site.name == row[0]]
    hostile = [request for request in requests if request.arguments == golden_jobs.HOSTILE.arguments]
    assert any(request.env and request.mounts for request in hostile)


@pytest.mark.parametrize("row", WAYS_OF_SITES, ids="-".join)
def test_a_state_is_earned(row: Row) -> None:
    """A shape of job that really ran so lies in the tests of the box, or is tried by the tests of the sites."""
    site, runtime, _wireup = row
    way = WAYS_OF_SITES[row]
    tried = {(each.site, each.runtime, each.wireup) for each in WAYS}
    if way.ran:
        assert site in ("box", "local", "hosts") or (row in tried and runtime in REAL)
        assert runtime in with_recorded(read_site(site)).proven
    elif way.accepted:
        accepted = {name for machine in MACHINES for name in scripts(machine)}
        assert set(golden_requests(row)) & accepted
        assert row in tried
    else:
        assert read_site(site).scheduler != "slurm", (
            "a site with Slurm needs its cluster and ways in tests/support/sites; when `make test-sites` has passed "
            "for them, `accepted` names that record"
        )


def test_another_site_of_a_shipped_name_has_proven_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["site", "show", "box"]) == 0
    assert "Charliecloud 0.31" in capfd.readouterr().out
    (tmp_path / "box.yaml").write_text("name: box\nextends: box\n")
    assert run(["site", "show", str(tmp_path / "box.yaml")]) == 0
    assert "runtime charliecloud: UNPROVEN" in capfd.readouterr().out
