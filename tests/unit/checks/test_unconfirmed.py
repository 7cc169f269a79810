"""Which unconfirmed facts are named at submission: those that this job depends on, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.checks.registry import unconfirmed
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import MpiFacts, RuntimeAtSite, Site
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support.plans import RECIPE, SITE

IMAGE = PlannedImage("registry.example/i:1", "sha256:ab", "/store/x")


def is_printed(key: str, site: Site = SITE, **asked: Any) -> bool:
    facts = msgspec.structs.replace(site, sources={key: "somewhere, unconfirmed", "node": "the data sheet"})
    planned = plan(RECIPE, facts, Request(**({"gpus": 16} | asked)), IMAGE)
    return unconfirmed(planned, facts) == (key,)


def changed(**values: Any) -> Site:
    return msgspec.structs.replace(SITE, **values)


@pytest.mark.parametrize(
    ("key", "site", "asked"),
    [
        ("runtimes", SITE, {}),
        ("node.cores", SITE, {}),
        ("slurm.gpus", SITE, {}),
        ("transport", SITE, {}),
        ("queue", changed(queue="long"), {}),
        ("account_suffix", SITE, {"account": "m1"}),
        ("node.memory_mb", SITE, {"gpus": 2}),
        ("local_scratch", SITE, {"stage": True}),
        ("env.FROM_SITE", SITE, {}),
        ("ways.pyxis.load", SITE, {}),
        ("ways.pyxis.env.A", changed(ways={"pyxis": RuntimeAtSite(env={"A": "1"})}), {}),
        ("mpi", changed(mpi=MpiFacts(pmi=("pmix",))), {"wireup": "pmix"}),
    ],
)
def test_what_shapes_the_job_is_named(key: str, site: Site, asked: dict[str, Any]) -> None:
    assert is_printed(key, site, **asked)


@pytest.mark.parametrize(
    ("key", "site", "asked"),
    [
        ("transport", SITE, {"gpus": 8}),
        ("queue", changed(queue="long"), {"queue": "short"}),
        ("account_suffix", SITE, {}),
        ("node.memory_mb", SITE, {}),
        ("node.memory_mb", SITE, {"gpus": 2, "scheduler_options": (("mem", "1G"),)}),
        ("local_scratch", SITE, {}),
        ("env.FROM_SITE", SITE, {"env": (("FROM_SITE", "mine"),)}),
        ("env.FROM_SITE", SITE, {"env": (("FROM_SITE", None),)}),
        ("env.NCCL_NET", changed(env={"NCCL_NET": "IB"}), {"gpus": 8}),
        ("ways.native.setup", SITE, {}),
        ("ways.pyxis.kind", SITE, {}),
        ("mpi", changed(mpi=MpiFacts(pmi=("pmix",))), {}),
        ("hardware.driver", SITE, {}),
        ("scratch", SITE, {}),
    ],
)
def test_what_makes_no_difference_to_it_is_not(key: str, site: Site, asked: dict[str, Any]) -> None:
    assert not is_printed(key, site, **asked)


def test_a_fact_that_a_file_gives_anew_has_no_source_of_the_file_that_it_extends(tmp_path: Path) -> None:
    assert read_site("slurm").sources["slurm.memory"] == "unconfirmed"
    ours = tmp_path / "ours.yaml"
    ours.write_text("name: ours\nextends: slurm\nslurm: {memory: per-node}\n")
    assert "slurm.memory" not in read_site(str(ours)).sources
    assert read_site(str(ours)).sources["runtimes"] == "unconfirmed"
    ours.write_text(ours.read_text() + "sources: {slurm.memory: our administrator}\n")
    assert read_site(str(ours)).sources["slurm.memory"] == "our administrator"
