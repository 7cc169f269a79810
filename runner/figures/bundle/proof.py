"""What a bundle's records prove: each run's figure and verdict, and the table of a study over them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from runner import __version__
from runner.core.errors import NotProvenError, RunnerError
from runner.core.files import sha256
from runner.core.hide import REDACTED
from runner.core.text import counted, gpus_text
from runner.jobs.campaign import read_log
from runner.jobs.comparison import FIX, copy_among, identities
from runner.jobs.device_state import disturbance
from runner.jobs.directory import PLAN, SCRIPT, VERDICT, Run
from runner.jobs.life import UNFIT
from runner.jobs.metering import shared_batch
from runner.jobs.verdict import judge
from runner.model.figure import OfStudy, figure_keys, figure_of, gap_doubts
from runner.model.output import BundledRun, BundledStudy
from runner.model.plan import Plan
from runner.model.request import ARMS
from runner.model.study import Launch, Loss, PointFacts, Span, Study
from runner.model.verdict import Verdict
from runner.planning.options import is_given, options_of

# Of figures that two machines compute from the same numbers: their libraries' last digits may differ.
_SAME = 1e-12
_DIGIT = 0.056  # as far as one digit, and then three, are apart
_MOST_RANKS = 1_000_000
_DOUBTS = re.compile(r"study\.points\.\d+\.doubts|runs\.\d+\.(figure\.)?doubts")
_NEWER = {"disturbed"}  # of codes of runs: since 2026-11-28
# The sentence of a proven run until 2026-11-27.
_REWORDED = re.compile(r"(?<=ranks|.rank) began, (met, )?and ended with status 0,")
_FIGURE = re.compile(r"(FLOP utilisation: |the whole window gives )(\d+\.\d+)")


def _as_now(before: re.Match[str]) -> str:
    return f" started, {'connected, ' if before[1] else ''}exited with 0,"


def _worded(verdict: Verdict) -> tuple[str, ...]:
    """Its remarks without the figures that had one digit until 2026-11-29."""
    return tuple(_FIGURE.sub(lambda found: found[1], each) for each in verdict.remarks)


def _figures(verdict: Verdict) -> list[float]:
    return [float(figure) for each in verdict.remarks for _, figure in _FIGURE.findall(each)]


def _are_near(given: list[float], expected: list[float]) -> bool:
    return len(given) == len(expected) and all(abs(a - b) < _DIGIT for a, b in zip(given, expected, strict=True))


class InBundle(Run):
    """A run in a bundle, which need not be as it was submitted here: its secrets are taken out. What its study says of
    it is in the bundle.
    """

    launched_as, orders = None, ()

    @cached_property
    def verdict(self) -> Verdict | None:
        """As it is written, with what bundles of earlier versions do not say, or in other words."""
        stored, evidence = self.read(VERDICT, Verdict), self.evidence
        own = {"disturbed": disturbance(evidence), "shared_batch": shared_batch(evidence)}
        return stored and msgspec.structs.replace(stored, **own)


def proven_run(root: Path, redacted: dict[str, str]) -> BundledRun:
    """The run in a directory, with the verdict that its records give; ``redacted``: file -> SHA-256 that the records
    have for it.

    Raises:
        NotProvenError: the records do not give the verdict that is there, or it is not ``measured``.
    """
    run = InBundle(root)
    try:
        verdict = _judged(run, redacted)
        plan = run.needed_plan()
    except RunnerError as error:
        raise NotProvenError(f"{run.run_id}: {error.what}", where=error.where or run.run_id) from None
    except UNFIT as error:
        raise NotProvenError(f"{run.run_id}: its records cannot be judged: {error}", where=run.run_id) from None
    stored = run.read(VERDICT, Verdict)
    if stored is None:
        raise NotProvenError(f"{run.run_id} has no verdict that can be read", where=f"{run.run_id}/{VERDICT}")
    verdict = msgspec.structs.replace(verdict, anew=stored.anew, replaced=stored.replaced)
    reworded = tuple(_REWORDED.sub(_as_now, each) for each in stored.proven)
    shared = verdict.shared_batch if stored.shared_batch else ""  # other words since 2026-11-29
    worded = msgspec.structs.replace(stored, proven=reworded, disturbed=verdict.disturbed, shared_batch=shared)
    key = difference(*(msgspec.to_builtins(replace(each, remarks=_worded(each))) for each in (worded, verdict)))
    if key := key or ("" if _are_near(_figures(stored), _figures(verdict)) else "remarks"):
        raise NotProvenError(
            f"the verdict on {run.run_id} is not what its records give: {key} differs",
            where=f"{run.run_id}/{VERDICT}",
            fix="if nothing was altered, it was judged by another version of gpu-runner: see bundle.json",
        )
    if verdict.outcome != "measured" or verdict.images_per_s is None:
        what = f"{run.run_id} is {verdict.outcome}: only measured runs carry a figure"
        fix = "submit it with --meter" if verdict.outcome == "ran" else "leave it out"
        raise NotProvenError(what, where=run.run_id, fix=fix)
    return BundledRun(
        run=run.run_id,
        recipe=plan.recipe,
        site=plan.site,
        gpus=plan.gpus,
        nodes=plan.nodes,
        precision=verdict.precision,
        steady=verdict.steady,
        transport=verdict.transport,
        forced=verdict.forced,
        version=__version__,
        redacted=redacted,
        arm=plan.arms[-1],
        **figure_keys(verdict, figure_of(verdict, plan.arms[-1])),
    )


def check_different(runs: Iterable[Path]) -> None:
    """Whether each of these runs, which were proven, is a launch of its own.

    Raises:
        NotProvenError: the first ranks of two began at the same instant, or took the same times: one is a copy.
    """
    twice = copy_among(identities(map(InBundle, runs)))
    if twice is not None:
        what = f"{' and '.join(twice)} are one launch: one is a copy of the other"
        raise NotProvenError(what, where=twice[1], fix=FIX)


def difference(given: Any, expected: Any, key: str = "") -> str:
    """The key of the first thing in which two verdicts differ; empty if they are the same. Floats may differ in their
    last digits, and NaN is never the same. Of a run's doubts none may lack, in whatever words; of a study's point
    versions have said others. What is shown is of the records.
    """
    if (of := _DOUBTS.fullmatch(key)) and isinstance(given, list | tuple):
        codes, wanted = ({each["code"] for each in side} for side in (given, expected))
        return key if of[0].startswith("runs") and wanted - codes - _NEWER else ""
    if isinstance(given, dict) and isinstance(expected, dict):
        parts = ((name, given.get(name), expected.get(name)) for name in {**expected, **given})
    elif isinstance(given, list | tuple) and isinstance(expected, list | tuple) and len(given) == len(expected):
        parts = ((str(place), *pair) for place, pair in enumerate(zip(given, expected, strict=True)))
    elif type(given) is type(expected) is float:
        return "" if math.isclose(given, expected, rel_tol=_SAME) else key
    else:
        return "" if given == expected and type(given) is type(expected) else key
    return next(filter(None, (difference(one, two, f"{key}.{name}".strip(".")) for name, one, two in parts)), "")


def _judged(run: Run, redacted: dict[str, str]) -> Verdict:
    """The verdict by today's rules on what is there."""
    tasks = run.needed_plan().tasks_per_node
    recorded = sum(path.name.endswith(".start.json") for path in run.ranks.iterdir()) if run.ranks.is_dir() else 0
    if min(tasks, default=0) < 1 or sum(tasks) != recorded or recorded > _MOST_RANKS:
        raise NotProvenError(f"its plan is for {counted(sum(tasks), 'rank')}, of which {recorded} have records")
    submitted = run.submitted
    script = redacted.get(SCRIPT) or sha256((run.path / SCRIPT).read_bytes() if (run.path / SCRIPT).is_file() else b"")
    if submitted is None or submitted.script_sha256 != script:
        raise NotProvenError("its script is not the one that was submitted", where=f"{run.run_id}/{SCRIPT}")
    evidence = run.evidence
    if any(not start.plan_sha256 for start in evidence.starts.values()):
        raise NotProvenError("not every rank says which plan it had")
    plan_sha256 = redacted.get(PLAN) or evidence.plan_sha256
    if evidence.has_older_records:
        raise NotProvenError("its records are of an older version, from which no figure can be made")
    return judge(dataclasses.replace(evidence, disk_full=False, plan_sha256=plan_sha256))


def canonical_json(value: Any) -> bytes:
    """JSON as every file of ours in a bundle is written."""
    return (json.dumps(msgspec.to_builtins(value), indent=2, sort_keys=True) + "\n").encode("ascii")


RUNS, STUDY, LOG = "runs", "study.json", "launches.log"
# From a study, the run of each proven launch, the study's log, None without one, and when others ran, to its points and
# losses, and to what the log says beside these runs; the layer above knows how.
Figures = Callable[
    [Study, Mapping[str, Run], bytes | None, Iterable[Span]],
    tuple[tuple[PointFacts, ...], tuple[Loss, ...], tuple[str, ...]],
]


def proven_study(
    data: Path, runs: Mapping[str, str], figures: Figures, gaps: tuple[str, ...], others: tuple[Span, ...]
) -> tuple[BundledStudy, OfStudy]:
    """The study whose question lies in ``data``, beside its runs, which were proven already, and what it says of their
    figures.

    Args:
        runs: key of a launch -> id of its run; launches that are not proven may be missing, or have an empty id.
        gaps: what was launched and was not there any more, which no record shows; others: nor does one when and where
            runs ran that gave no figure.

    Raises:
        NotProvenError: the question cannot be read, a run is not of its launch, or a run is of no launch.
    """
    try:
        question = (data / STUDY).read_bytes()
        study = msgspec.convert(json.loads(question), Study)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        raise NotProvenError("the study's question cannot be read", where=STUDY) from None
    proven = {key: InBundle(data / RUNS / run) for key, run in runs.items() if run}
    there = sorted(path.name for path in (data / RUNS).iterdir())
    if sorted(run.run_id for run in proven.values()) != there:
        raise NotProvenError("the launches of the study are not the runs of the bundle", where=STUDY)
    launches = {launch.key: launch for launch in study.launches}
    plans = {key: run.needed_plan() for key, run in proven.items()}
    for key, plan in plans.items():
        if why := _misfit(study, launches.get(key), plan):
            raise NotProvenError(f"{proven[key].run_id} is not of the launch {key}: {why}", where=STUDY)
    try:
        log = (data / LOG).read_bytes() if (data / LOG).is_file() else None
        points, losses, told = figures(study, proven, log, others)
    except (ArithmeticError, LookupError, ValueError, RunnerError) as error:
        raise NotProvenError(f"no table can be made of the study: {error}", where=STUDY) from None
    asked = next((line.question for line in read_log(log or b"").lines if line.question), "")
    if REDACTED.encode() not in question and asked not in ("", sha256(question)):
        told = (*told, f"its {STUDY} is not the one that it was begun with")
    named = {key: proven[key].run_id if key in proven else "" for key in sorted(launches)}
    doubted = (replace(each, doubts=(*gap_doubts(gaps), *each.doubts)) for each in points)
    unequal = {(each.gpus, each.arm, each.settings): each.unequal for each in points}
    at = {key: (each.gpus, each.arm, each.settings) for key, each in launches.items()}
    begun = (key for key, runs in read_log(log or b"").launched.items() if runs)
    lacks = Counter(at[key] for key in begun if key in at and key not in proven)
    of_figures = OfStudy(
        gaps,
        lacks={key: lacks[point] for key, point in at.items()},
        unequal={key: unequal.get(point, ()) for key, point in at.items()},
    )
    return BundledStudy(study.study, named, tuple(doubted), losses, gaps, told, others), of_figures


def beside_study(runs: Iterable[BundledRun], study: BundledStudy, of_figures: OfStudy) -> tuple[BundledRun, ...]:
    """The runs of a bundle's study as they are shown: their figures with what it says of them."""
    keys = {run: key for key, run in study.runs.items()}
    return tuple(
        replace(run, figure=run.figure.beside(of_figures, keys[run.run])) if run.figure and run.run in keys else run
        for run in runs
    )


def _misfit(study: Study, launch: Launch | None, plan: Plan) -> str:
    """Why a run cannot be one of this launch; empty if it can."""
    if launch is None:
        return "the study has no such launch"
    options = options_of(plan.program)
    # One GPU alone runs training as it is.
    arms = launch.arms or (launch.arm if launch.arm in ARMS else "full",)
    for what, given, wanted in (
        ("GPUs", plan.gpus, launch.gpus),
        ("recipe", plan.recipe, study.recipe),
        ("site", plan.site, study.site),
        ("arms", ",".join(plan.arms), ",".join(arms)),
        ("way", "separate" if plan.launch is None else "one-allocation", study.way),
    ):
        if given != wanted:
            return f"it has {what} {given}, the launch {wanted}"
    if (
        (place := plan.launch)
        and launch.node is not None
        and (launch.node, launch.device) != (place.first_node, place.first_gpu)
    ):
        return f"it ran on GPU {place.first_gpu} of node {place.first_node}"
    if launch.arm.startswith("solo") and launch.gpus != 1:
        return f"one GPU alone has no {gpus_text(launch.gpus)}"
    # A whole batch is divided among the GPUs.
    whole = {name: f"{int(own) * launch.gpus}" for name, own in options.items() if study.strong and own.isdecimal()}
    wrong = (
        name for name, value in launch.settings if not is_given(options.get(name), value) and whole.get(name) != value
    )
    return next((f"it has another {name}" for name in wrong), "")
