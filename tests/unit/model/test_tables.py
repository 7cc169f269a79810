"""Every backend here has what the programs ask of it; one exit code has one meaning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from gpu_runner_inside.launcher.failure import STATUS

from runner.core.registry import UnknownNameError
from runner.jobs.directory import Run
from runner.model.backends import GONE, RUNTIMES, SCHEDULERS, run_runtime
from runner.model.exit_codes import TABLE, codes
from runner.model.plan import record_of
from tests.support.plans import PLAN

BACKENDS = Path(__file__).parents[3] / "runner/backends"


def test_a_module_with_facts_is_all_that_a_backend_needs() -> None:
    files = {
        kind: [*(BACKENDS / kind).glob("*.py"), *(BACKENDS / kind).glob("*/__init__.py")]
        for kind in ("runtimes", "schedulers")
    }
    own = {kind: sum("\nFACTS = " in file.read_text() for file in files[kind]) for kind in files}
    assert own == {"runtimes": len(RUNTIMES), "schedulers": len(SCHEDULERS)}


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_says_how_it_is_found_and_mounts(name: str) -> None:
    facts = RUNTIMES[name]
    assert callable(RUNTIMES.module(name).step)
    assert facts.program or (facts.srun_option and facts.plugin), "what is missing can be named"
    assert bool(facts.install) is facts.without_scheduler
    assert facts.driver, "what a verdict without a GPU names"
    assert facts.mounts.pair.format(source="/a b", target="/c").startswith(("/a b", "type="))
    re.compile(facts.failure)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_has_what_its_facts_say(name: str) -> None:
    facts, module = SCHEDULERS[name], SCHEDULERS.module(name)
    offered = {
        part for part in ("connect", "render", "render_launches", "allocation", "salloc") if hasattr(module, part)
    }
    wanted = {"connect", "render"} | ({"render_launches"} if facts.launches else set())
    assert offered == wanted | ({"allocation", "salloc"} if facts.steps else set())
    assert (facts.launcher != "") == (facts.nodes == "allocated")
    assert facts.settings().directives == {}


@pytest.mark.parametrize(
    ("scheduler", "own", "places"),
    [("slurm", {"step": {"distribution": "cyclic"}, "wait_s": 5}, True), ("pbs", {"whole_nodes": True}, False)],
)
def test_a_plan_that_has_a_key_for_each_scheduler_is_read(
    tmp_path: Path, scheduler: str, own: dict[str, object], places: bool
) -> None:
    """As they were until settings became the scheduler's own."""
    plan = msgspec.to_builtins(record_of(PLAN, ())) | {"scheduler": scheduler, "slurm": {}, "pbs": {}, scheduler: own}
    del plan["scheduler_settings"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    read = Run(tmp_path).plan
    assert read is not None
    assert (read.scheduler_settings, read.settings.places_ranks) == (own, places)


def test_a_runtime_that_is_gone_is_refused_with_what_to_do_instead_and_its_runs_can_still_be_read() -> None:
    with pytest.raises(UnknownNameError) as caught:
        RUNTIMES.module("sarus")
    assert caught.value.fix == GONE["sarus"]
    assert "sarus" not in RUNTIMES and run_runtime("sarus").is_container


ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = ROOT / "recipes/lib/launch.py"


def test_no_code_has_two_meanings() -> None:
    assert len({entry.code for entry in TABLE}) == len(TABLE)
    assert len({entry.name for entry in TABLE}) == len(TABLE)


def test_the_launcher_ends_with_the_codes_of_the_table() -> None:
    """It runs where this package is not installed, so it has its own copy."""
    assert {entry.name: code for code, entry in codes("launcher").items()} == STATUS


def test_the_launchers_documentation_names_each_of_its_codes() -> None:
    documented = LAUNCHER.read_text().partition("Exit status:")[2].partition('"""')[0]
    assert {name: int(code) for code, name in re.findall(r"\b(\d+) ([a-z]+(?:-[a-z0-9]+)+)", documented)} == {
        name: code for name, code in STATUS.items()
    }
