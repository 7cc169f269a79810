"""The table of a study, made anew from its proven runs in a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from runner.core.errors import NotProvenError, RunnerError
from runner.core.text import gpus_text
from runner.jobs.directory import RunDirectory
from runner.model.output import BundledStudy
from runner.model.plan import Plan
from runner.model.study import Launch, Loss, PointFacts, Study
from runner.model.verdict import ARMS
from runner.planning.options import options_of

RUNS, STUDY = "runs", "study.json"
# From a study and the run of each proven launch to its points and losses; the layer above knows how.
Figures = Callable[[Study, Mapping[str, RunDirectory]], tuple[tuple[PointFacts, ...], tuple[Loss, ...]]]


def proven_study(data: Path, runs: Mapping[str, str], figures: Figures) -> BundledStudy:
    """The study whose question lies in ``data``, beside its runs, which were proven already.

    Args:
        runs: key of a launch -> id of its run; launches that are not proven may be missing, or have an empty id.

    Raises:
        NotProvenError: the question cannot be read, a run is not of its launch, or a run is of no launch.
    """
    study = _question(data)
    proven = {key: RunDirectory(data / RUNS / run) for key, run in runs.items() if run}
    there = sorted(path.name for path in (data / RUNS).iterdir())
    if sorted(run.run_id for run in proven.values()) != there:
        raise NotProvenError("the launches of the study are not the runs of the bundle", where=STUDY)
    launches = {launch.key: launch for launch in study.launches}
    plans = {key: run.needed_plan() for key, run in proven.items()}
    for key, plan in plans.items():
        why = _misfit(study, launches.get(key), plan)
        if why:
            raise NotProvenError(f"{proven[key].run_id} is not of the launch {key}: {why}", where=STUDY)
    check_batches(study, plans)
    try:
        points, losses = figures(study, proven)
    except (ArithmeticError, LookupError, ValueError, RunnerError) as error:
        raise NotProvenError(f"no table can be made of the study: {error}", where=STUDY) from None
    named = {key: proven[key].run_id if key in proven else "" for key in sorted(launches)}
    return BundledStudy(study.study, named, points, losses)


def _question(data: Path) -> Study:
    try:
        return msgspec.convert(json.loads((data / STUDY).read_bytes()), Study)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        raise NotProvenError("the study's question cannot be read", where=STUDY) from None


def _misfit(study: Study, launch: Launch | None, plan: Plan) -> str:
    """Why a run cannot be one of this launch; empty if it can."""
    if launch is None:
        return "the study has no such launch"
    options = options_of(plan.program)
    for what, given, wanted in (
        ("GPUs", plan.gpus, launch.gpus),
        ("recipe", plan.recipe, study.recipe),
        ("site", plan.site, study.site),
        ("arms", ",".join(plan.arms), ",".join(_arms(launch))),
        ("way", "separate" if plan.launch is None else "one-allocation", study.way),
    ):
        if given != wanted:
            return f"it has {what} {given}, the launch {wanted}"
    if launch.arm.startswith("solo") and launch.gpus != 1:
        return f"one GPU alone has no {gpus_text(launch.gpus)}"
    return next((f"it has another {name}" for name, value in launch.settings if not _is(options.get(name), value)), "")


def _arms(launch: Launch) -> tuple[str, ...]:
    """Between which the program of a launch takes turns; one GPU alone runs training as it is."""
    return launch.arms or (launch.arm if launch.arm in ARMS else "full",)


def check_batches(study: Study, plans: Mapping[str, Plan]) -> None:
    """Of each setting the batch of a GPU is one at every size, or the whole batch is (``--strong``).

    Raises:
        NotProvenError: it is not.
    """
    batches: dict[tuple[tuple[str, str], ...], set[int]] = {}
    for launch in study.launches:
        plan = plans.get(launch.key)
        if plan is not None and plan.samples_per_step is not None:
            whole = plan.samples_per_step * (plan.tasks if study.strong else 1)
            batches.setdefault(launch.settings, set()).add(whole)
    if any(len(each) > 1 for each in batches.values()):
        what = "the whole batch" if study.strong else "the batch of a GPU"
        raise NotProvenError(f"{what} is not the same at all sizes of the study", where=STUDY)


def _is(given: str | None, wanted: str) -> bool:
    """Whether an option has a value: a flag without one is true, and false where it is missing; numbers by value."""
    if given is None or given == "":
        return wanted.lower() == ("true" if given == "" else "false") or (given is None and wanted.lower() == "null")
    try:
        return given == wanted or float(given) == float(wanted)
    except ValueError:
        return False
