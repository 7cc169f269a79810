"""Every row of the tables of runtimes and schedulers has its module, and every module its row."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import get_args

import pytest

from runner.model.runtimes import RUNTIMES
from runner.model.schedulers import SCHEDULERS, SchedulerName
from runner.model.site import Site

ROOT = Path(__file__).parents[3] / "runner"
SHARED = {"common", "leftovers", "schedulerless", "staging"}  # modules of runner.backends.runtimes that are no runtime


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_has_a_module_that_makes_its_step(name: str) -> None:
    assert callable(importlib.import_module(f"runner.backends.runtimes.{RUNTIMES[name].module}").step)


def test_every_module_of_a_runtime_has_a_row() -> None:
    modules = {path.stem for path in (ROOT / "backends/runtimes").glob("*.py")} - SHARED - {"__init__"}
    assert modules == {facts.module for facts in RUNTIMES.values()}


def test_a_run_in_a_runtime_that_is_gone_can_still_be_read() -> None:
    assert "sarus" not in RUNTIMES and RUNTIMES["sarus"].is_container


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_row_says_how_the_runtime_is_found_and_mounts(name: str) -> None:
    facts = RUNTIMES[name]
    assert facts.program or facts.srun_option
    assert bool(facts.install) is facts.without_scheduler
    assert facts.program or facts.plugin, "what is missing can be named"
    assert facts.mounts.pair.format(source="/a b", target="/c").startswith(("/a b", "type="))
    re.compile(facts.failure)


@pytest.mark.parametrize("name", get_args(SchedulerName))
def test_a_scheduler_has_a_client_and_a_script(name: SchedulerName) -> None:
    facts = SCHEDULERS[name]
    assert callable(importlib.import_module(f"runner.backends.schedulers.{facts.folder}.client").connect)
    assert callable(importlib.import_module(f"runner.backends.schedulers.{facts.folder}.script").render)
    assert (facts.launcher != "") == (facts.nodes == "allocated")


def test_every_folder_of_a_scheduler_has_a_row() -> None:
    folders = {path.parent.name for path in (ROOT / "backends/schedulers").glob("*/script.py")}
    assert folders == {facts.folder for facts in SCHEDULERS.values()}


@pytest.mark.parametrize("name", get_args(SchedulerName))
def test_a_sites_options_are_those_of_its_schedulers_section(name: SchedulerName) -> None:
    assert Site(name="s", description="", scheduler=name, runtimes=("native",)).directives == {}
