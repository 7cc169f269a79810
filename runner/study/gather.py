"""A study as it stands: its facts from the runs' own verdicts; all studies as a list; and the wait until one is still.

Each run is read once, and its scheduler queried once for all. A launch that is not proven has no rate, and no point is
made of it.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from runner.core.errors import UnknownStateError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import gpus_text, percent
from runner.figures.compare.launches import device_of
from runner.jobs.campaign import log_remarks, read_log
from runner.jobs.comparison import (
    ONE_BATCH,
    SAME_BATCH,
    Batch,
    Ran,
    at_once,
    batch_of,
    beside_each_other,
    ran_with,
    together_doubts,
    unlike,
)
from runner.jobs.cost import began_and_ended_s, gpu_hours
from runner.jobs.directory import NODES, Run, Studies
from runner.jobs.life import Warn, finish
from runner.jobs.states import Answers
from runner.jobs.watch import REAL_CLOCK, Clock
from runner.model.figure import OWN_OF_A_POINT, Doubt, OfStudy, figure_keys, shared_doubts, spread_doubts
from runner.model.plan import Plan
from runner.model.study import (
    BASES,
    Arm,
    Estimate,
    Launch,
    LaunchFacts,
    ListedStudy,
    Loss,
    PointFacts,
    Scaling,
    Setting,
    Span,
    Study,
    StudyFacts,
)
from runner.statistics import launches as statistics
from runner.statistics.loss import attribution
from runner.statistics.single_gpus import launches_of_size, log_rates, single_gpus
from runner.study import one_allocation
from runner.study.attempts import Attempt, attempt_of, decisive, states, without_verdict
from runner.study.directory import StudyDirectory, ids, index, read
from runner.study.plan import is_whole
from runner.study.sameness import TWICE, only_first_program, only_own, run_differences

_SHORTEST_S, _LONGEST_S = 0.5, 10.0  # between two looks of one that waits
_SESSION_S = 600.0  # between launches that no turns connect
_STAMP = "20261122-120000"  # with which the id of a run begins
_MOST_EFFICIENT = 1.1  # of a GPU with the same batch at every size
_Point = tuple[Setting, int, Arm]
_Rates = Mapping[int, float]  # by the repeat


@dataclass(frozen=True)
class Look:
    """A study at one moment.

    Attributes:
        attempts: by the launch's key, the oldest first.
        gaps: what was launched and is not there any more, a sentence each, and what is wrong with the log that says so.
    """

    attempts: Mapping[str, tuple[Attempt, ...]]
    gaps: tuple[str, ...]


def look(study: StudyDirectory, answers: Answers | None = None) -> Look:
    """A study now. Runs that ended unnoticed are judged. One that ran another program than the study's first proven
    run counts as not proven.

    Args:
        answers: as of ``query``, from one look to the next; none counts once a run has ended.
    """
    log = study.log()  # before the runs: each that it has was made before it was noted
    launched, runs = log.launched, {launch.key: study.runs(launch.key) for launch in study.study.launches}
    gone = study.gone(log, runs)
    present = {key: [run for run in each if run.run_id not in gone.get(key, ())] for key, each in runs.items()}
    unjudged = without_verdict(run for each in present.values() for run in each)
    if answers and any(run.has_marker for run in unjudged):
        answers.clear()
    known = states(unjudged, answers)
    made: dict[str, list[Attempt]] = {}
    for key, each in present.items():
        # What is gone counts, and proves nothing.
        lost = gone.get(key, {}).items()
        made[key] = [Attempt(Run(study.launches(key) / name), "not-proven", why, is_gap=True) for name, why in lost]
        attempts = (attempt for run in each if (attempt := attempt_of(run, known.get(run.path))) is not None)
        in_log = (dataclasses.replace(attempt, place=log.place(key, attempt.run.run_id)) for attempt in attempts)
        made[key] += sorted(in_log, key=lambda each: each.place)
    own = only_own(study.study, made, launched if log.lines else None)
    alike = only_first_program(study.study.launches, own)
    changed = tuple(
        f"{key}: its run {each.run.run_id} is not as it was measured, and is left out"
        for key, attempts in alike.items()
        for each in attempts
        if each.state == "not-proven" and each.verdict and each.verdict.outcome == "measured"
        if each.verdict.anew or (each.why.startswith(TWICE) and each.run.run_id in log.measured)
    )
    return Look(alike, (*study.gaps(log, runs, gone), *changed))


def facts(study: StudyDirectory, seen: Look | None = None) -> StudyFacts:
    """All that is known of a study now. ``seen``: it, where it was looked at already."""
    seen = look(study) if seen is None else seen
    made, gaps = seen.attempts, seen.gaps
    asked = study.study
    last = {key: attempt for key, each in made.items() if (attempt := decisive(each)) is not None}
    proven = {key: each.run for key, each in last.items() if each.state == "proven"}
    runs = [attempt.run for each in made.values() for attempt in each if not attempt.is_gap]
    known = {study.path: OfStudy(gaps)}
    launches = _labelled(_launch_facts(launch, made.get(launch.key, ()), known) for launch in asked.launches)
    demonstration = _demonstration(launches)
    stand = {each.state for each in launches}
    together = asked.way == "one-allocation"
    all_points, all_losses, differences = _figures(asked, launches, proven, without_figure(seen))
    return StudyFacts(
        study=study.path.name,
        directory=str(study.path),
        name=study.name,
        state="running"
        if stand & {"pending", "running"}
        else "complete"
        if stand == {"proven"} and not gaps
        else "incomplete",
        site=asked.site,
        recipe=asked.recipe,
        way=asked.way,
        strong=asked.strong,
        created=asked.created,
        launches=launches,
        points=all_points,
        losses=all_losses,
        demonstration=demonstration,
        gpu_hours=one_allocation.gpu_hours(study.path, runs) if together else math.fsum(map(gpu_hours, runs)),
        single_gpus=tuple(replace(each, demonstration=demonstration) for each in single_gpus(launches))
        if together
        else (),
        differences=differences,
        switches=one_allocation.switches(study.path) if together else {},
        gaps=gaps,
    )


def figures(
    study: Study, proven: Mapping[str, Run], log: bytes | None, others: Iterable[Span] = ()
) -> tuple[tuple[PointFacts, ...], tuple[Loss, ...], tuple[str, ...]]:
    """Points and losses of a study from the runs that its launches are proven by, by the launch's key, and what its log
    says beside them. ``others``: when runs without a figure ran. No scheduler is queried: these runs were judged.

    Raises:
        UsageError: two launches are one, as where their settings were edited, or are hidden as secrets are.
    """
    if not is_whole(study):
        raise UsageError("two of its launches are one, or one is not of its sizes, arms and settings")
    runs = {launch.key: proven[launch.key] for launch in study.launches if launch.key in proven}
    noted = read_log(log or b"")
    made = {
        key: [dataclasses.replace(attempt, place=noted.place(key, run.run_id))]
        for key, run in runs.items()
        if (attempt := attempt_of(run, None)) is not None
    }
    alike = only_first_program(study.launches, only_own(study, made, bundled=noted.launched))
    launches = _labelled(_launch_facts(launch, alike.get(launch.key, ()), {}) for launch in study.launches)
    places = {launch.key: launch.place for launch in study.launches}
    ids_of = {key: run.run_id for key, run in proven.items()}
    return (*_figures(study, launches, proven, others)[:2], log_remarks(log, places, ids_of))


def _figures(
    study: Study, launches: Sequence[LaunchFacts], proven: Mapping[str, Run], others: Iterable[Span] = ()
) -> tuple[tuple[PointFacts, ...], tuple[Loss, ...], tuple[str, ...]]:
    """Points, losses, and what was not the same for the launches of one allocation: of others much differs anyway. Of
    launches that differ by more than their arm no loss is attributed.
    """
    differences = run_differences(proven) if study.way == "one-allocation" else ()
    all_losses = _losses(study, launches)
    of_ratio: tuple[Doubt, ...] = ()
    if differences:
        why = f"the launches differ: {differences[0]}"
        all_losses = tuple(Loss(each.gpus, each.settings, why=why) for each in all_losses)
        of_ratio = (Doubt("unequal", f"efficiency: {why}"),)
    label, unequal = _demonstration(launches), _unequal(study, proven)
    own = {
        point: replace(each, doubts=(*each.doubts, *unequal.get(point, ())))
        for each in points(study, launches, others)
        for point in [(each.settings, each.gpus, each.arm)]
    }
    all_points = tuple(
        replace(each, doubts=(*each.doubts, *of_ratio, *_of_base(own, each.settings)))
        if each.efficiency_of_one
        else each
        for each in own.values()
    )
    return all_points, tuple(replace(each, demonstration=label) for each in all_losses), differences


def _of_base(own: Mapping[_Point, PointFacts], setting: Setting) -> tuple[Doubt, ...]:
    """What is doubtful in the rate of one GPU alone, beside its launches' figures, and so in efficiencies by it."""
    bases = (own.get((setting, 1, name)) for name in BASES)
    base = next((each for each in bases if each is not None and each.images_per_s), None)
    doubts = (each for each in (base.doubts if base else ()) if each.code == "unequal")
    return tuple(replace(each, words=f"efficiency: of one GPU alone: {each.words}") for each in doubts)


def _unequal(study: Study, proven: Mapping[str, Run]) -> Mapping[_Point, tuple[Doubt, ...]]:
    """Of points whose launches were planned otherwise than each other, as after a change of the site file: in what. Of
    larger sizes also whether all of the curve were, and one GPU alone.
    """
    groups: dict[_Point, list[Ran]] = defaultdict(list)
    curves: dict[tuple[Setting, Arm], list[Ran]] = defaultdict(list)
    runs: list[tuple[Launch, Ran]] = []
    for each in study.launches:
        if (run := proven.get(each.key)) is not None and (plan := run.plan) is not None:
            runs.append((each, ran_with(run, plan, None, {}, batch_of(run), recorded=True)))
    for (each, _), ran in zip(runs, beside_each_other(ran for _, ran in runs), strict=True):
        for arm in each.arms or (each.arm,):
            groups[each.settings, each.gpus, arm].append(ran)
    for (settings, _, arm), group in groups.items():
        curves[settings, arm] += group
    doubts: dict[_Point, tuple[Doubt, ...]] = {}
    for (settings, gpus, arm), group in groups.items():
        alone = next((own for name in BASES if (own := groups.get((settings, 1, name)))), [])
        curve = [*curves[settings, arm], *alone]
        if differing := unlike("point", group):
            words = f"its launches differ in {', '.join(fact.with_names(group) for fact in differing)}"
        elif (others := unlike("sizes", curve)) and (group is not alone if alone else gpus > min(study.gpus)):
            words = (
                f"efficiency: launches of its sizes differ in {', '.join(fact.with_names(curve) for fact in others)}"
            )
        else:
            continue
        doubts[settings, gpus, arm] = (Doubt("unequal", words),)
    return doubts


def _demonstration(launches: Iterable[LaunchFacts]) -> str:
    return next((each.demonstration for each in launches if each.demonstration), "")


def _labelled(launches: Iterable[LaunchFacts]) -> tuple[LaunchFacts, ...]:
    """Where one figure of a study is a demonstration's, each is."""
    every = tuple(launches)
    label = _demonstration(every)
    return tuple(
        replace(each, figure=each.figure.labelled(label), demonstration=each.demonstration or label)
        if each.figure and label
        else each
        for each in every
    )


class _Times(NamedTuple):
    """When the proven launches of a study ran: by their keys, pairs ``at_once``, and its pauses."""

    spans: Mapping[str, Span]
    at_once: Sequence[tuple[str, str]]
    pauses: Sequence[float]


def points(study: Study, launches: Sequence[LaunchFacts], others: Iterable[Span] = ()) -> tuple[PointFacts, ...]:
    """Every size, arm and setting with the estimates over its proven launches. ``others``: runs that are in none. Pure.

    Settings keep the study's order; within one, sizes rise and arms keep theirs. An arm that a process alternated with
    another one has the launches of that.
    """
    groups: dict[_Point, list[LaunchFacts]] = defaultdict(list)
    for each in launches:
        for arm in each.launch.arms or (each.launch.arm,):
            groups[each.launch.settings, each.launch.gpus, arm].append(each)
    rates = {point: _rates(each, point[2]) for point, each in groups.items()}
    kinds = {setting: scaling(study, setting, launches) for setting in study.settings}
    order = sorted(groups, key=lambda point: (study.settings.index(point[0]), point[1], study.arms.index(point[2])))
    spans = {each.launch.key: _span(each) for each in launches if each.state == "proven"}
    times = _Times(spans, at_once((*spans.values(), *others)), _pauses(spans.values()))
    return tuple(_point(study, point, groups, rates, kinds[point[0]], times) for point in order)


def scaling(study: Study, setting: Setting, launches: Iterable[LaunchFacts]) -> tuple[Scaling | None, str]:
    """Which scaling the proven launches of a setting show, by the batches that their ranks recorded, and what is
    doubtful in it; or why none.
    """
    proven = [each for each in launches if each.state == "proven" and each.launch.settings == setting]
    each_gpu = [(each.launch.gpus, each.batch) for each in proven if each.batch]
    if not proven or len(each_gpu) < len(proven):
        return (
            None,
            "the ranks recorded no batch: give the samples of a step (--meter-batch, or the meter's batch_size)",
        )
    sizes = {size: fmean(batch for gpus, batch in each_gpu if gpus == size) for size, _ in sorted(each_gpu)}
    of_gpu, whole = [batch for _, batch in each_gpu], [gpus * batch for gpus, batch in each_gpu]
    kinds: list[tuple[Scaling, list[float]]] = [("weak", of_gpu), ("strong", whole)]
    for kind, batches in reversed(kinds) if study.strong else kinds:
        if max(batches) <= SAME_BATCH * min(batches):
            apart = max(batches) / min(batches)
            return kind, f"its batches differ by {percent(apart - 1.0)}" if apart > ONE_BATCH else ""
    shown = ", ".join(f"{batch:.6g} on {gpus_text(gpus)}" for gpus, batch in sizes.items())
    return (
        None,
        f"neither the batch of a GPU nor the whole batch is the same in all launches: on average a rank took {shown}",
    )


def _losses(study: Study, launches: Sequence[LaunchFacts]) -> tuple[Loss, ...]:
    """Where the loss goes, at each size above one GPU and setting; empty where no arm was run to tell it."""
    if "uncoupled" not in study.arms:
        return ()
    by_setting: dict[Setting, list[LaunchFacts]] = defaultdict(list)
    for each in launches:
        by_setting[each.launch.settings].append(each)
    kinds = {setting: scaling(study, setting, launches) for setting in study.settings}
    return tuple(
        attribution(gpus, setting, by_setting[setting], study.way, strong=kinds[setting][0] == "strong")
        if kinds[setting][0]
        else Loss(gpus, setting, why=kinds[setting][1])
        for setting in study.settings
        for gpus in study.gpus
        if gpus > 1
    )


def list_studies(
    *, name: str = "", site: str = "", since_s: float = 0.0, last: int | None = None
) -> tuple[ListedStudy, ...]:
    """Studies of this user, the newest first. ``since_s``: begun at this Unix time or later; ``last``: so many."""
    studies = (study for study_id in ids() if (study := read(index() / study_id)) is not None)
    wanted = (
        each
        for each in studies
        if each.name.startswith(name) and site in ("", each.study.site) and each.study.created.timestamp() >= since_s
    )
    return tuple(_listed(each) for each in islice(wanted, last))


def _listed(study: StudyDirectory) -> ListedStudy:
    asked, seen = study.study, look(study)
    made = seen.attempts.values()
    proven = sum(any(attempt.state == "proven" for attempt in each) for each in made)
    is_running = any(not attempt.gone for each in made for attempt in each)
    return ListedStudy(
        study=study.path.name,
        directory=str(study.path),
        name=study.name,
        state="running"
        if is_running
        else "complete"
        if proven == len(asked.launches) and not seen.gaps
        else "incomplete",
        site=asked.site,
        recipe=asked.recipe,
        gpus=asked.gpus,
        created=asked.created,
        launches=len(asked.launches),
        proven=proven,
        gaps=seen.gaps,
    )


def wait(study: StudyDirectory, warn: Warn, *, timeout_s: float | None = None, clock: Clock = REAL_CLOCK) -> StudyFacts:
    """The study's facts once it is still. Its runs are judged as they end. UnknownStateError: the time is over."""
    began = clock.monotonic()
    pause, answers = _SHORTEST_S, Answers()
    while True:
        is_driven = study.is_held
        seen = look(study, answers)
        awaited = [each.run for attempts in seen.attempts.values() for each in attempts if each.awaited]
        for run in awaited:
            left_s = None if timeout_s is None else max(0.0, timeout_s - (clock.monotonic() - began))
            finish(run, lambda _progress: None, warn, timeout_s=left_s, clock=clock)
        if awaited:
            continue
        now = facts(study, seen)
        if now.state != "running" and not is_driven:
            return now
        if timeout_s is not None and clock.monotonic() - began > timeout_s:
            raise UnknownStateError(
                f"the study has not ended within {timeout_s:g} s",
                where=str(study.path),
                fix=f"continue with `{PROGRAM} wait {study.path.name}`, or `cancel` it",
            )
        clock.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_S)


def _point(
    study: Study,
    point: _Point,
    groups: Mapping[_Point, Sequence[LaunchFacts]],
    rates: Mapping[_Point, _Rates],
    kind: tuple[Scaling | None, str],
    times: _Times,
) -> PointFacts:
    setting, gpus, arm = point
    own, launches = rates[point], groups[point]
    values = list(own.values())
    spread = statistics.spread(values)
    base_point = next((each for name in BASES if rates.get(each := (setting, 1, name))), None)
    alone: list[LaunchFacts] = []
    base: _Rates = {}
    lacks = ""
    if base_point is not None and base_point != point and own:
        # The rates of one GPU alone: of the GPUs that these launches have, where these are known.
        ranks = next((each.gpus_by_node for each in launches if each.gpus_by_node), ())
        alone, lacks = launches_of_size([each for each in groups[base_point] if each.state == "proven"], ranks)
        base = _rates(alone, base_point[2])
        devices = {each.device for each in alone}
        if gpus > 1 and all(each.launch.node is None for each in alone):
            if study.way == "one-allocation":
                lacks = "one GPU alone is the first of them, and others may be faster or slower: --arms solo runs each"
            elif len(alone) > 1 == len(devices) and all(devices):
                lacks = (
                    "one GPU alone is the same in each launch, and others may be faster or slower: "
                    "--same-nodes --arms solo runs each"
                )
    scaled, about = kind if base else (None, "")
    made_of = (*launches, *alone) if scaled else launches
    of_ranks = _ranks_apart(made_of, scaled)
    own_doubts = [Doubt("unequal", f"efficiency: {each}") for each in (about, of_ranks, lacks) if scaled and each]
    own_doubts += spread_doubts(values)
    ran, ran_alone = (
        [times.spans[key] for each in side if (key := each.launch.key) in times.spans] for side in (launches, alone)
    )
    runs = {each.run for each in ran}
    own_doubts += together_doubts(pair for pair in times.at_once if runs & {*pair})
    of_one = _efficiency(study, own, gpus, base) if scaled else None
    if of_one and _are_sessions(ran, ran_alone, times.pauses):
        own_doubts.append(
            Doubt("unequal", "efficiency: all of its launches ran before or after those of one GPU alone")
        )
    if of_one and of_one.value > _MOST_EFFICIENT:
        own_doubts.append(Doubt("unequal", "efficiency: above 100 %: one GPU alone did more work, or waited"))
    together = rates.get((setting, gpus, "uncoupled"), {})
    both = sorted(own.keys() & together.keys())
    return PointFacts(
        gpus=gpus,
        arm=arm,
        settings=setting,
        proven=sum(each.state == "proven" for each in launches),
        wanted=len(launches),
        images_per_s=statistics.mean_rate(values) if values else None,
        efficiency_of_one=of_one,
        scaling=scaled,
        why="" if scaled else about,
        # Of one process and one allocation: what changes from launch to launch cancels.
        efficiency_of_uncoupled=statistics.efficiency(
            [own[each] for each in both], [together[each] for each in both], rounds=True
        )
        if both and together is not own
        else None,
        spread=spread,
        launches_needed=statistics.needed(spread),
        doubts=(*shared_doubts((each.figure for each in made_of), without=OWN_OF_A_POINT), *own_doubts),
    )


def _ranks_apart(launches: Iterable[LaunchFacts], kind: Scaling | None) -> str:
    """How far apart the batches of a launch's ranks are, which wait for the largest; empty where about as far as they
    always are: where steps vary, or a whole batch does not divide evenly.
    """
    every = list(launches)
    apart = max(each.batch_apart for each in every)
    alike = SAME_BATCH if kind == "strong" or any(each.batch_varies for each in every) else ONE_BATCH
    return f"the batches of its ranks differ by {percent(apart - 1.0)}" if apart > alike else ""


def _pauses(spans: Iterable[Span]) -> list[float]:
    """When one began after long enough without any: Unix times."""
    known = sorted((each.began_s, max(each.began_s, each.ended_s)) for each in spans if each.began_s)
    ends = accumulate((end for _, end in known), max)
    return [began for end, (began, _) in zip(ends, known[1:], strict=False) if began - end > _SESSION_S]


def _are_sessions(own: Iterable[Span], base: Iterable[Span], pauses: Sequence[float]) -> bool:
    """Whether no launch of one side began in a session, between two pauses, of the other side's, or several of
    each well apart, as where ``--resume`` of another day measured a whole size: what changed meanwhile is in the
    efficiency, and not in its interval.
    """
    sides = [[each for each in side if each.began_s] for side in (own, base)]
    if not all(sides):
        return False
    first, second = sorted(sides, key=lambda side: max(each.began_s for each in side))
    between_s = min(each.began_s for each in second) - max(max(each.began_s, each.ended_s) for each in first)
    is_apart = len(first) > 1 < len(second) and between_s > _SESSION_S
    sessions, others = ({bisect_right(pauses, each.began_s) for each in side} for side in sides)
    return is_apart or sessions.isdisjoint(others)


def _span(of: LaunchFacts) -> Span:
    """Of a proven launch; where its job script left no end, it has none."""
    marker = Run(Path(of.directory)).marker
    return Span(of.run, _began_s(of), marker.end_s if marker else 0.0, tuple(of.nodes))


def without_figure(seen: Look) -> tuple[Span, ...]:
    """Of runs that gave none: they computed, too, from the start of their ranks on. A copy has files of other times, so
    that its own say nothing of an end that no record has.
    """
    made = ((each, decisive(every)) for every in seen.attempts.values() for each in every)
    runs = (each.run for each, counts in made if not each.is_gap and (each.state != "proven" or each != counts))
    whole = (run for run in runs if run.marker is not None or run.ran_in == run.path)
    known = ((run, times_s) for run in whole if (times_s := began_and_ended_s(run)) is not None)
    return tuple(Span(run.run_id, *times_s, tuple(_nodes(run, run.plan))) for run, times_s in known)


def _began_s(of: LaunchFacts) -> float:
    """Unix time: as its first rank says, as its job was submitted, or by the id, which has the time of a zone; 0 where
    that has none.
    """
    run = Run(Path(of.directory))
    if (start := run.records.start(0)) is not None and start.time_s:
        return start.time_s
    if (record := run.submitted) is not None:
        return record.submitted_s
    with suppress(ValueError):
        return datetime.strptime(of.run[: len(_STAMP)], "%Y%m%d-%H%M%S").timestamp()
    return 0.0


def _efficiency(study: Study, own: _Rates, gpus: int, base: _Rates) -> Estimate:
    """Against one GPU: rate of each GPU over the base's. With a fixed whole batch this is the strong efficiency, as the
    rate is the batch over the time of a step. What ran in one allocation is compared repeat by repeat.
    """
    per_gpu = {repeat: rate / gpus for repeat, rate in own.items()}
    both = sorted(per_gpu.keys() & base.keys())
    if study.way == "one-allocation" and len(both) == len(per_gpu) == len(base):
        return statistics.efficiency([per_gpu[each] for each in both], [base[each] for each in both], rounds=True)
    return statistics.efficiency(list(per_gpu.values()), list(base.values()), rounds=False)


def _rates(launches: Iterable[LaunchFacts], arm: Arm) -> _Rates:
    """A rate for each repeat: of several launches of one repeat (solo, on other GPUs) the geometric mean, whichever of
    the GPUs it has.
    """
    by_repeat: dict[int, list[float]] = defaultdict(list)
    proven = [each for each in launches if each.state == "proven"]
    alone = [each for each in proven if each.launch.node is not None and each.images_per_s]
    levelled = {each.launch.key: math.exp(log) for each, log in zip(alone, log_rates(alone), strict=True)}
    for each in proven:
        rate = levelled.get(each.launch.key, each.images_per_s)
        if each.launch.arm != arm:
            rate = next((own.samples_per_s for own in each.arms if own.arm == arm), None)
        if rate:
            by_repeat[each.launch.repeat].append(rate)
    return {repeat: statistics.mean_rate(values).value for repeat, values in sorted(by_repeat.items())}


def _launch_facts(launch: Launch, made: Sequence[Attempt], studies: Studies) -> LaunchFacts:
    attempt = decisive(made)
    if attempt is None:
        return LaunchFacts(launch, "missing")
    run, plan = attempt.run, None if attempt.is_gap else attempt.run.plan  # of a gap, what is there may be anything
    verdict = attempt.verdict if attempt.state == "proven" else None
    batch = batch_of(run) if verdict and verdict.unit != "steps" else Batch()
    device = device_of(run.records.start(0), run.records.report(0)) if verdict and launch.gpus == 1 else ""
    # Of each node of the study's allocation, from its first GPU on; unknown outside of one.
    place = plan.launch if plan and verdict and launch.node is None else None
    return LaunchFacts(
        launch=launch,
        state=attempt.state,
        run=run.run_id,
        directory="" if attempt.is_gap else str(run.path),
        attempts=len(made),
        outcome=attempt.verdict.outcome if attempt.verdict else None,
        why=attempt.why,
        **figure_keys(verdict, run.figure_by(verdict, plan, studies)),
        step_s=_step_s(run) if verdict else None,
        nodes=() if attempt.is_gap else _nodes(run, plan),
        gpus_by_node=plan.gpus_by_node if plan and place and not place.first_gpu else (),
        sm_clock_mhz=verdict.sm_clock_mhz if verdict else None,
        arms=verdict.arms if verdict else (),
        batch=batch.mean,
        batch_apart=batch.apart,
        batch_varies=batch.varies,
        device=device,
    )


def _step_s(run: Run) -> float | None:
    """Median time of a step, by the groups of rank 0."""
    report = run.records.report(0)
    if report is None or not report.group_steps or not report.ends_s:
        return None
    return median(end - begin for begin, end in pairwise((0.0, *report.ends_s))) / report.group_steps


def _nodes(run: Run, plan: Plan | None) -> tuple[str, ...]:
    """As the first rank on each did, whose records are sealed; without them as the scheduler named them."""
    first = accumulate(plan.tasks_per_node[:-1], initial=0) if plan is not None and plan.tasks_per_node else ()
    starts = (run.records.start(rank) for rank in first)
    seen = tuple(start.node_name or start.host for start in starts if start is not None)
    return seen or tuple(run.content(NODES).decode("utf-8", "replace").split())
