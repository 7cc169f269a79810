"""Which unconfirmed facts are named at submission: those that this job depends on, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.checks.registry import unconfirmed
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import MpiFacts, RuntimeAtSite
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support.plans import RECIPE, SITE

IMAGE = PlannedImage("registry.example/i:1", "sha256:ab", "/store/x")


QUEUE, MPI = {"queue": "long"}, {"mpi": MpiFacts(pmi=("pmix",))}
WAYS = {"ways": {"pyxis": RuntimeAtSite(env={"A": "1"})}}


@pytest.mark.parametrize(
    ("key", "site", "asked", "is_named"),
    [
        ("runtimes", {}, {}, True),
        ("node.cores", {}, {}, True),
        ("slurm.gpus", {}, {}, True),
        ("transport", {}, {}, True),
        ("transport", {}, {"gpus": 8}, False),
        ("queue", QUEUE, {}, True),
        ("queue", QUEUE, {"queue": "short"}, False),
        ("account_suffix", {}, {"account": "m1"}, True),
        ("account_suffix", {}, {}, False),
        ("node.memory_mb", {}, {"gpus": 2}, True),
        ("node.memory_mb", {}, {}, False),
        ("node.memory_mb", {}, {"gpus": 2, "scheduler_options": (("mem", "1G"),)}, False),
        ("local_scratch", {}, {"stage": True}, True),
        ("local_scratch", {}, {}, False),
        ("env.FROM_SITE", {}, {}, True),
        ("env.FROM_SITE", {}, {"env": (("FROM_SITE", "mine"),)}, False),
        ("env.FROM_SITE", {}, {"env": (("FROM_SITE", None),)}, False),
        ("env.NCCL_NET", {"env": {"NCCL_NET": "IB"}}, {"gpus": 8}, False),
        ("ways.pyxis.load", {}, {}, True),
        ("ways.pyxis.env.A", WAYS, {}, True),
        ("ways.native.setup", {}, {}, False),
        ("ways.pyxis.kind", {}, {}, False),
        ("mpi", MPI, {"wireup": "pmix"}, True),
        ("mpi", MPI, {}, False),
        ("hardware.driver", {}, {}, False),
        ("scratch", {}, {}, False),
    ],
)
def test_what_shapes_the_job_is_named_and_nothing_else(key: str, site: Any, asked: Any, is_named: bool) -> None:
    facts = msgspec.structs.replace(SITE, **site, sources={key: "somewhere, unconfirmed", "node": "the data sheet"})
    planned = plan(RECIPE, facts, Request(**({"gpus": 16} | asked)), IMAGE)
    assert unconfirmed(planned, facts) == ((key,) if is_named else ())


def test_a_fact_that_a_file_gives_anew_has_no_source_of_the_file_that_it_extends(tmp_path: Path) -> None:
    assert read_site("slurm").sources["slurm.memory"] == "unconfirmed"
    ours = tmp_path / "ours.yaml"
    ours.write_text("name: ours\nextends: slurm\nslurm: {memory: per-node}\n")
    assert "slurm.memory" not in read_site(str(ours)).sources
    assert read_site(str(ours)).sources["runtimes"] == "unconfirmed"
    ours.write_text(ours.read_text() + "sources: {slurm.memory: our administrator}\n")
    assert read_site(str(ours)).sources["slurm.memory"] == "our administrator"
