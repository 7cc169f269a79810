"""What to see first, and what to quote. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runner import __version__
from runner.core.text import counted, efficiency, gpus_text, percent, point_text, rate, settings_text, span
from runner.figures.tables import (
    all_settings,
    chosen_text,
    curve,
    estimate_per_gpu,
    interval,
    launch_text,
    unit_of,
    units_of,
)
from runner.model.expectation import Comparison
from runner.model.figure import Doubt, in_words, spread_doubts
from runner.model.report import Highlight, Row, RunReport
from runner.model.study import Loss, PointFacts, StudyFacts

_TRAINING = ("", "full")  # arms whose figure is one of training as it is


def largest_point(study: StudyFacts) -> PointFacts | None:
    """The point that a summary is about: of the largest size with a figure, the setting with the greatest one."""
    points = [point for setting in all_settings(study.points) for point in curve(study.points, setting)]
    return max(
        points, key=lambda point: (point.gpus, point.images_per_s.value if point.images_per_s else 0.0), default=None
    )


def highlights(
    study: StudyFacts | None, rows: Sequence[Row], details: Sequence[RunReport], expected: Sequence[Comparison]
) -> tuple[Highlight, ...]:
    """Throughput per GPU, efficiency, the slow node, the cause; of single runs what there is of them."""
    if study is not None and (point := largest_point(study)) is not None:
        return (*_of_point(study, point, details, unit_of(rows)), *_alarm(expected, unit_of(rows)))
    measured = [row for row in rows if row.per_gpu is not None and row.arm in _TRAINING]
    if not measured:
        arm = next((row.arm for row in rows if row.per_gpu is not None), "")
        otherwise = f"arm {arm}: no figure of training" if arm else "no run has a figure"
        failed = [row for row in rows if row.state != "ran"]
        value = "not measured" if rows and not failed else "not proven"
        why = next((row.why for row in failed or rows if row.why), otherwise)
        return (Highlight("Throughput per GPU", value, why),)
    return (*_of_runs(measured), *_slow(details))


def _of_runs(measured: Sequence[Row]) -> Iterator[Highlight]:
    """Of single runs with figures that of the most GPUs, for each thing that they count."""
    for unit in units_of(measured):
        best = max((row for row in measured if row.unit == unit), key=lambda row: (row.gpus, row.per_gpu or 0.0))
        precision = ""
        if best.low is not None and best.high is not None:
            precision = f"precision of the run: {span(best.low / best.gpus, best.high / best.gpus, rate)}"
        own = [row for row in measured if row.unit == unit]
        note = "; ".join(filter(None, (chosen_text(best), fastest_of(best, own), precision)))
        value = f"{rate(best.per_gpu or 0.0)} {unit}/s"
        yield Highlight(f"Throughput per GPU at {gpus_text(best.gpus)}", value, note)


def fastest_of(best: Row, rows: Sequence[Row]) -> str:
    """Of a run that was chosen by its rate among those of its size, and how far its like are apart; empty for one."""
    others = [row for row in rows if row.gpus == best.gpus]
    apart = spread_doubts([row.per_gpu or 0.0 for row in others if chosen_text(row) == chosen_text(best)])
    chosen = f"the fastest of {len(others)} runs" if len(others) > 1 else ""
    return "; ".join(filter(None, (chosen, in_words(apart))))


def _of_point(study: StudyFacts, point: PointFacts, details: Sequence[RunReport], unit: str) -> Iterator[Highlight]:
    each = estimate_per_gpu(point)
    assert each is not None
    sure = interval(each, rate)
    note = f"95 %: {sure}" if sure else f"no interval: {point.proven} of {counted(point.wanted, 'launch')} proven"
    note += chosen(study, point)
    at = point_text(point.gpus, point.settings)
    yield Highlight(f"Throughput per GPU at {at}", f"{rate(each.value)} {unit}/s", note)
    estimate, base = point.efficiency_of_one, f"relative to {point.gpus} x one GPU"
    if estimate is None:
        estimate, base = point.efficiency_of_uncoupled, "of as many GPUs at once that do not communicate"
    if point.why:
        yield Highlight("Efficiency", "unknown", point.why)
    if estimate is not None:
        sure = interval(estimate)
        precision = f"95 %: {sure}" if sure else "no interval"
        yield Highlight("Efficiency", efficiency(estimate.value), f"{base}; {precision}")
    yield from _slow(details)
    here = (loss for loss in study.losses if (loss.gpus, loss.settings) == (point.gpus, point.settings))
    loss = next(here, None)
    if loss is not None and loss.rows:
        yield _largest_loss(loss)
    elif loss is not None and loss.why:
        yield Highlight("Largest loss", "unknown", loss.why)
    yield from _alone(study, point)


def _largest_loss(loss: Loss) -> Highlight:
    """The part that takes most. Whose interval holds 0 may take nothing, and is not named as the cause."""
    worst = max(loss.rows, key=lambda row: row.loss.value)
    sure, takes = interval(worst.loss), efficiency(worst.loss.value)
    if worst.loss.value <= 0.0:
        return Highlight("Largest loss", "none", f"{worst.name} takes {takes} of the ideal, and no part more")
    if worst.loss.low is not None and worst.loss.low <= 0.0:
        about = f"most is {worst.name} with {takes} of the ideal, and it may be nothing; 95 %: {sure}"
        return Highlight("Largest loss", "cannot tell", about)
    about = "; ".join(filter(None, (f"takes {takes} of the ideal", sure and f"95 %: {sure}", worst.note)))
    return Highlight("Largest loss", worst.name, about)


def _alone(study: StudyFacts, point: PointFacts) -> Iterator[Highlight]:
    """How the GPUs differ alone. Of a demonstration none is named as slow."""
    alone = next((each for each in study.single_gpus if (each.arm, each.settings) == ("solo", point.settings)), None)
    if alone is not None and alone.spread is not None:
        note = f"standard deviation between {alone.gpus} of {alone.wanted} GPUs"
        if not study.demonstration and alone.launches < 2:
            note += "; one launch of each names none as slow"
        elif not study.demonstration:
            note += f"; slowest: {alone.slowest}, {percent(alone.slowest_by or 0.0)} below the mean"
        yield Highlight("Difference between GPUs, each alone", percent(alone.spread), note)


def _slow(details: Sequence[RunReport]) -> Iterator[Highlight]:
    """Slow nodes and ranks over the runs that are shown in detail: the worst one, and in how many runs.

    Of demonstrations none is named, as their verdicts name none: what stands out is shown as that.
    """
    known = [report for report in details if len(report.ranks) > 1]
    claiming = [report for report in known if not report.row.demonstration]
    if claiming or not known:
        yield from _slowest(claiming)
        return
    for each in _slowest(known):
        name = "Stands out" if each.name == "Slowest" else each.name
        yield Highlight(f"{name} (demonstration)", each.value, f"{each.note}; a demonstration names none as slow")


def _slowest(known: Sequence[RunReport]) -> Iterator[Highlight]:
    if not known:
        return
    worst: dict[str, tuple[list[float], int]] = {}
    for report in known:
        nodes = {str(rank.rank): rank.node for rank in report.ranks}
        named = [(f"node {node}", node, excess) for node, excess in report.slow_nodes.items()]
        named += [(f"rank {rank} on {nodes[rank]}", nodes[rank], excess) for rank, excess in report.slow_ranks.items()]
        for name, node, excess in named:
            had_it = sum(any(rank.node == node for rank in other.ranks) for other in known)
            worst.setdefault(name, ([], had_it))[0].append(excess)
    if worst:
        name, (excesses, had_it) = max(worst.items(), key=lambda item: (len(item[1][0]), max(item[1][0])))
        others = f"; {len(worst) - 1} more slow" if len(worst) > 1 else ""
        runs = f"in {len(excesses)} of the {had_it} runs shown that had this node" if had_it > 1 else "in the run shown"
        yield Highlight("Slowest", name, f"{percent(max(excesses))} slower than the others, {runs}{others}")
    elif any(report.cannot_tell for report in known):
        largest = max(max(rank.relative for rank in report.ranks) for report in known)
        note = f"the slowest rank is {percent(largest)} slower; healthy ones may be, too"
        yield Highlight("Slow node", "cannot tell", note)
    else:
        note = f"no rank of {counted(len(known), 'run')} is 2 % slower than the others"
        yield Highlight("Slow node", "none", note)


def _alarm(expected: Sequence[Comparison], unit: str) -> Iterator[Highlight]:
    """Where the largest size that falls short of its expected range does so, and what shows why."""
    below = [each for each in expected if each.state == "below"]
    if below:
        worst = max(below, key=lambda each: each.gpus)
        likely = [cause for cause in worst.causes if cause.state != "excluded"]
        cause = f"; {likely[0].state}: {likely[0].name}" if likely else ""
        yield Highlight(f"Expected at {gpus_text(worst.gpus)}", "more than measured", f"{against(worst, unit)}{cause}")


def against(each: Comparison, unit: str) -> str:
    """The measured interval and the expected range, in words."""
    reach = f"{span(each.expected.low, each.expected.high, rate)} {unit}/s expected"
    return f"{reach}, {interval(each.measured, rate) or rate(each.measured.value)} measured"


def citation(
    study: StudyFacts | None, rows: Sequence[Row], details: Sequence[RunReport], demonstration: str
) -> tuple[str, ...]:
    """Sentences to quote: the figure with its interval, what it was measured on and how, and what it does not say."""
    sentences = [f"{demonstration[0].upper()}{demonstration[1:]}."] if demonstration else []
    sentences += _figures(study, rows)
    facts = {fact.name: fact.value for report in details[:1] for fact in report.environment}
    names = ("device", "driver", "NCCL", "Horovod", "framework", "image digest", "code commit", "gpu-runner")
    if made_of := "; ".join(f"{name} {facts[name]}" for name in names if facts.get(name)):
        sentences.append(f"Environment: {made_of}.")
    proven = [row for row in rows if row.state == "proven"]
    unexamined = sum(bool(row.synchronisation) for row in proven)
    if proven:
        devices = "" if demonstration else ", each on its own device"
        together = [row for row in proven if row.arm in (*_TRAINING, "solo", "solo-hooks")]
        alike = "" if len(together) == len(proven) else " where they trained together"
        in_step = "" if unexamined or not together else f", and trained in step{alike}"
        sentences.append(
            f"Every figure is computed from each rank's own times, only from runs in which it is proven that all ranks "
            f"ran{devices}{in_step}. Report by gpu-runner {__version__}."
        )
    if unexamined:
        sentences.append(
            f"Synchronisation was not examined in {unexamined} of {counted(len(proven), 'run')}: that their ranks "
            "trained together is not proven."
        )
    ran = sum(row.state == "ran" for row in rows)
    for count, what in ((ran, "ran and measured nothing"), (len(rows) - len(proven) - ran, "not proven")):
        if count:
            sentences.append(f"{count} of {counted(len(rows), 'run')} {what}, and in no figure.")
    again = sum(each.attempts > 1 for each in study.launches if each.state == "proven") if study else 0
    sentences += [f"Of several runs the first proven one counts: {counted(again, 'launch')}."] if again else []
    sentences += [f"Not to be quoted: {each.row.run}: {each.problem}." for each in details if each.problem]
    return tuple(sentences)


def _figures(study: StudyFacts | None, rows: Sequence[Row]) -> Iterator[str]:
    if study is None:
        for row in rows[:5]:
            if row.images_per_s is not None:
                on = _ranks(row.gpus, row.demonstration)
                doubts = _doubts(row.figure.doubts if row.figure else ())
                figure = f"{rate(row.images_per_s)} {row.unit}/s on {on} in one launch{doubts}"
                yield f"Run {launch_text(row)}: {figure}, which is no claim about other launches."
        return
    point = largest_point(study)
    if point is None or point.images_per_s is None:
        return
    setting, launches = settings_text(point.settings), counted(point.proven, "launch")
    text = f"{study.recipe}{f' ({setting})' if setting else ''} on {_ranks(point.gpus, study.demonstration)} "
    text += f"of {study.site}{chosen(study, point)}: {rate(point.images_per_s.value)} {unit_of(rows)}/s"
    sure, of_one = interval(point.images_per_s, rate), point.efficiency_of_one
    text += f" (95 % interval over {launches}: {sure})" if sure else f" in {launches}, too few for an interval"
    text += _doubts(point.doubts)
    if of_one is not None:
        alone = "rank" if study.demonstration else "GPU"
        text += f", {point.scaling}-scaling efficiency {efficiency(of_one.value)} of one {alone} alone"
        text += f" ({sure})" if (sure := interval(of_one)) else ""
    if study.gaps:
        text += f"; {counted(len(study.gaps), 'launched run')} of the study cannot be shown any more"
    yield f"{text}."


def chosen(study: StudyFacts, point: PointFacts) -> str:
    """Behind the setting of a point that was chosen by its rate."""
    alike = [each for each in study.points if (each.gpus, each.arm) == (point.gpus, point.arm) and each.images_per_s]
    return f", the fastest of {counted(len(alike), 'setting')}" if len(alike) > 1 else ""


def _ranks(gpus: int, demonstration: str) -> str:
    """A sentence is quoted without the label of its page: of a demonstration it claims no GPUs."""
    return f"{counted(gpus, 'rank')} (a demonstration)" if demonstration else gpus_text(gpus)


def _doubts(doubts: Iterable[Doubt]) -> str:
    """In brackets behind a figure; that it is a demonstration, its sentence says."""
    words = in_words(doubts, labelled=True)
    return f" ({words})" if words else ""
