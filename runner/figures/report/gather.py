"""The facts of a report, out of run directories and of a study."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from statistics import median, median_low

import msgspec

from runner import __version__
from runner.core.errors import RefusedError, RunnerError
from runner.core.hide import hidden_value
from runner.core.text import counted, first_of, gpus_text
from runner.expectation.alarm import compare
from runner.figures.report.summary import citation, highlights
from runner.figures.tables import curve, main_settings, unit_of
from runner.jobs import expected as inputs
from runner.jobs import figure as figures
from runner.jobs import mixture
from runner.jobs.collect import Evidence
from runner.jobs.comparison import Ran, batch_of, ran_with, unlike
from runner.jobs.directory import SCRIPT, Run, Studies
from runner.jobs.expected import OneGpu, signs_of
from runner.jobs.facts import run_facts
from runner.jobs.redaction import redacted_text, secrets_of
from runner.model.expectation import Comparison
from runner.model.figure import OWN_OF_A_POINT, OfStudy, figure_keys, in_words, shared_doubts
from runner.model.plan import PlanRecord
from runner.model.report import NamedFact, RankFacts, Report, Row, RunReport, StepTimes
from runner.model.study import BASES, LaunchFacts, Setting, StudyFacts
from runner.model.verdict import Verdict
from runner.recipes import loader as recipes
from runner.sites import loader as sites
from runner.statistics.stragglers import Stragglers

MOST_POINTS = 240  # of a time line
_MOST_SCRIPT = 100_000  # bytes
_UNSHOWN = 10_000  # bytes read beyond it: of a secret that is cut there, none of its part is shown
_MOST_DETAILED = 6
_MOST_VALUES = 4  # of one fact that differs between runs
_SAME = 1e-6  # relative, of two figures of the same records
_SHORTEST_SECRET = 4  # what is shorter may be a part of any text


_Judged = Mapping[str, Verdict]  # by the runs' directories


def _verdict(run: Run, judged: _Judged) -> Verdict | None:
    return judged.get(str(run.path)) or run.verdict


def study_report(study: StudyFacts) -> Report:
    """The report on a study. The run of each size whose figure is the median of its size is read in detail."""
    of_study = study.of_figures
    rows = tuple(_row_of_launch(each, of_study) for each in study.launches)
    sizes = sorted({row.gpus for row in rows})
    shape = f"{sizes[0]} to {sizes[-1]} GPUs" if len(sizes) > 1 else gpus_text(sizes[0] if sizes else 0)
    kind = "".join(f", {kind} scaling" for kind in dict.fromkeys(each.scaling for each in study.points) if kind)
    subtitle = f"{study.recipe} on {study.site}, {shape}{kind}; {_proven(rows)}"
    studies = {Path(study.directory): of_study}
    return _report(f"{study.name or study.study}: how it scales", subtitle, study, rows, studies, {})


def runs_report(runs: Sequence[tuple[Run, Verdict | str]], studies: Studies | None = None) -> Report:
    """The report on single runs. Each comes with the state of one that has no verdict yet, or its verdict, which is not
    kept in another user's; empty for one that has it. ``studies``: as ``seen`` of ``Run.of_study``.

    Runs whose figures count different things, or that differ in model, batch or precision, are kept apart in it.
    """
    studies = {} if studies is None else studies
    judged = {str(run.path): now for run, now in runs if isinstance(now, Verdict)}
    known = [_row_of_run(run, now if isinstance(now, str) else "", judged, studies) for run, now in runs]
    facts = unlike("curve", [ran for row, ran in known if ran is not None and row.images_per_s is not None])
    rows = tuple(
        msgspec.structs.replace(row, settings=tuple((fact.key, fact.value(ran)) for fact in facts)) if ran else row
        for row, ran in known
    )
    names = list(dict.fromkeys(run.name for run, _ in runs))
    title = (
        f"{names[0]}: a run"
        if len(rows) == 1
        else f"{', '.join(names[:3])}{' ...' * (len(names) > 3)}: {len(rows)} runs"
    )
    subtitle = f"{_proven(rows)}; single runs are no claim about scaling: `scale` measures one"
    measured = [row for row in rows if row.images_per_s is not None]
    differing = [name for name, _ in measured[0].settings] if measured else []
    differing += ["what they count"] if len({row.unit for row in measured}) > 1 else []
    if differing:
        subtitle += f"; kept apart: they differ in {', '.join(differing)}"
    return _report(title, subtitle, None, rows, studies, judged)


def _report(
    title: str, subtitle: str, study: StudyFacts | None, rows: tuple[Row, ...], studies: Studies, judged: _Judged
) -> Report:
    details = tuple(_detailed(row, studies, judged) for row in _chosen(rows))
    expected, why_not = ((), "") if study is None else _comparisons(study, rows, details)
    labels = [row.demonstration for row in rows if row.demonstration] if study is None else [study.demonstration]
    label = next(iter(labels), "")
    return Report(
        schema="1",
        title=title,
        subtitle=subtitle,
        made=datetime.now(timezone.utc).replace(microsecond=0),
        version=__version__,
        demonstration=label,
        unit=unit_of(rows),
        study=study,
        rows=rows,
        detailed=details,
        highlights=highlights(study, rows, details, expected),
        environment=_common_environment(rows, details, judged),
        cite=citation(study, rows, details, label),
        expected=expected,
        why_not_expected=why_not,
        doubts=(
            *shared_doubts((row.figure for row in rows), "run", without=() if study is None else OWN_OF_A_POINT),
            *(study.doubts_of_points if study else ()),
        ),
    )


def _proven(rows: Sequence[Row]) -> str:
    proven, runs = sum(row.state == "proven" for row in rows), counted(len(rows), "run")
    return f"{proven} of {runs} proven" if proven or not rows or rows[0].repeat else f"{runs}, none measured"


def _row_of_launch(facts: LaunchFacts, of_study: OfStudy) -> Row:
    """A launch; where no figure of its study is a claim, nor is its own."""
    demonstration = of_study.demonstration
    launch, figure = facts.launch, facts.figure
    same = ("run", "directory", "images_per_s", "unit", "synchronisation", "step_s", "sm_clock_mhz", "nodes", "why")
    return Row(
        key=launch.key,
        gpus=launch.gpus,
        state=facts.state if facts.state != "not-proven" else facts.outcome or "not-proven",
        arm=launch.arm,
        settings=launch.settings,
        repeat=launch.repeat,
        figure=figure.beside(of_study, launch.key) if figure else None,
        per_gpu=None if facts.images_per_s is None else facts.images_per_s / max(launch.gpus, 1),
        demonstration=facts.demonstration or demonstration,
        **{name: getattr(facts, name) for name in same},
    )


def _row_of_run(run: Run, state: str, judged: _Judged, studies: Studies) -> tuple[Row, Ran | None]:
    """A run, and what it was; None where its plan cannot be read."""
    plan, verdict = run.plan, _verdict(run, judged)
    gpus = plan.gpus if plan and plan.tasks else 0
    figure = run.figure_by(verdict, plan, studies) if gpus else None
    keys = figure_keys(verdict, figure)
    outcome = "proven" if figure is not None else verdict.outcome if verdict is not None else state or "unknown"
    why = ""
    if not gpus:
        outcome, why = "not-proven", "its plan cannot be read"
    elif verdict is None:
        why = "it has no verdict yet"
    elif outcome != "proven":
        why = verdict.why_unmeasured or f"it is {outcome}"
    low, high = figure.interval if figure and figure.interval else (None, None)
    row = Row(
        key=run.run_id,
        run=run.run_id,
        directory=str(run.path),
        gpus=gpus,
        state=outcome,
        arm="" if plan is None or plan.arms[-1:] == ("full",) else plan.arms[-1],
        values=run.swept,
        per_gpu=None if figure is None else figure.value / gpus,
        low=low,
        high=high,
        why=why,
        **(keys if figure else {"demonstration": keys.get("demonstration", "")}),
    )
    return row, None if plan is None else ran_with(run, plan, verdict, {}, batch_of(run))


def _chosen(rows: Sequence[Row]) -> Sequence[Row]:
    """The runs to show in detail: of each size the proven one whose figure is the median, the largest sizes first;
    where none is proven, the first that has a run. Single runs: each is of interest.
    """
    whole = [row for row in rows if row.state == "proven" and row.arm in ("", "full") and row.images_per_s is not None]
    whole.sort(key=lambda row: (-row.gpus, row.settings, row.images_per_s or 0.0))
    others = [row for row in rows if row.directory]
    if rows and rows[0].repeat:
        by_size = [list(each) for _, each in groupby(whole, key=lambda row: row.gpus)]
        whole, others = [own[len(own) // 2] for own in by_size], others[:1]
    return (whole or others)[:_MOST_DETAILED]


def _common_environment(rows: Sequence[Row], details: Sequence[RunReport], judged: _Judged) -> tuple[NamedFact, ...]:
    """Each fact of the environment once; where runs differ in it, each value with the number of its runs."""
    known = {report.row.key: report.environment for report in details}
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        if row.directory:
            for fact in known.get(row.key) or _environment(Run(Path(row.directory)), judged):
                counts.setdefault(fact.name, Counter())[fact.value] += 1

    def text(values: Counter[str]) -> str:
        shown = [f"{value} ({counted(count, 'run')})" for value, count in values.items()]
        return first_of(shown, _MOST_VALUES, "; ") if len(values) > 1 else next(iter(values))

    return tuple(NamedFact(name, text(values)) for name, values in counts.items())


def _detailed(row: Row, studies: Studies, judged: _Judged) -> RunReport:
    """All about one run; what cannot be read is left out, and ``problem`` says why."""
    run = Run(Path(row.directory))
    try:
        verdict, environment = _verdict(run, judged), _environment(run, judged)
        report = RunReport(row, run_facts(run, verdict, studies), environment=environment, script=_script(run))
        if verdict is None or verdict.outcome != "measured":
            return report
        evidence = run.evidence
        problem = next(iter(figures.faults(evidence)), "")
        return msgspec.structs.replace(report, problem=problem) if problem else _measured(report, evidence, verdict)
    except RunnerError as error:
        return RunReport(row, problem=error.what)
    except OSError as error:
        return RunReport(row, problem=f"{error.filename or row.directory}: {error.strerror}")


def _measured(report: RunReport, evidence: Evidence, verdict: Verdict) -> RunReport:
    made = figures.figure(evidence)
    throughput, slow = made.throughput, made.stragglers
    says, gives = verdict.images_per_s or 0.0, throughput.samples_per_s
    # Ranks that train each for itself have a figure of their own.
    if evidence.plan.arms[-1] != "uncoupled" and not math.isclose(says, gives, rel_tol=_SAME):
        problem = f"the verdict says {says:.1f} {verdict.unit}/s, and the records give {gives:.1f}"
        return msgspec.structs.replace(report, problem=problem)
    seen = {
        **mixture.reported(evidence),
        "NCCL's networks": ", ".join(sorted(evidence.nccl.networks)),
        "topology, by NCCL": evidence.nccl.sentence,
    }
    return msgspec.structs.replace(
        report,
        row=msgspec.structs.replace(report.row, step_s=made.step_s),
        ranks=() if slow is None else _rank_facts(evidence, slow),
        slow_nodes={} if slow is None else dict(slow.nodes),
        slow_ranks={} if slow is None else {str(rank): excess for rank, excess in slow.ranks.items()},
        cannot_tell=None if slow is None else slow.cannot_tell,
        removable=0.0 if slow is None else slow.removable,
        steps=step_times(made.ends_s, throughput.group_steps, throughput.cut_s),
        signs=signs_of(evidence),
        environment=(
            *(fact for fact in report.environment if fact.name not in seen),
            *(NamedFact(name, value) for name, value in seen.items() if value),
        ),
    )


def _rank_facts(evidence: Evidence, slow: Stragglers) -> tuple[RankFacts, ...]:
    """Each rank's compute time against the median of those that are not named as slow. Linear in ranks."""
    ranks = range(evidence.plan.tasks)
    named = {rank for rank in ranks if rank in slow.ranks or evidence.nodes[rank] in slow.nodes}
    quarters = [evidence.reports[rank].compute_quarters_p50_s for rank in ranks]
    healthy = [own for rank, own in enumerate(quarters) if rank not in named]
    middles = [median(quarter) for quarter in zip(*(healthy or quarters), strict=True)]
    return tuple(
        RankFacts(
            rank=rank,
            node=evidence.nodes[rank],
            local_rank=evidence.starts[rank].local_rank,
            compute_s=median(own),
            relative=median_low([value / middle for value, middle in zip(own, middles, strict=True)]) - 1.0,
            slow=rank in named,
        )
        for rank, own in zip(ranks, quarters, strict=True)
    )


def step_times(ends_s: Sequence[float], group_steps: int, cut_s: float) -> StepTimes:
    """The world's step times from the ends of groups, seconds after the common start: at most MOST_POINTS of them, each
    with the range of the groups that it stands for.
    """
    steps_s = [(end - before) / group_steps for before, end in zip([0.0, *ends_s[:-1]], ends_s, strict=True)]
    each = math.ceil(len(steps_s) / MOST_POINTS)
    blocks = [steps_s[at : at + each] for at in range(0, len(steps_s), each)]
    return StepTimes(
        groups=len(ends_s),
        groups_per_point=each,
        at_s=tuple(ends_s[min(at + each, len(ends_s)) - 1] for at in range(0, len(steps_s), each)),
        middle_s=tuple(map(median, blocks)),
        low_s=tuple(map(min, blocks)),
        high_s=tuple(map(max, blocks)),
        cut_s=cut_s,
    )


def _script(run: Run) -> str:
    """The script exactly as it was submitted, but for ``***`` in place of secrets. Empty where it cannot be read."""
    try:
        with run.open(SCRIPT) as file:
            size, raw = os.fstat(file.fileno()).st_size, file.read(_MOST_SCRIPT + _UNSHOWN)
    except OSError:
        return ""
    shown = redacted_text(raw.decode("utf-8", "surrogateescape"), secrets_of(run, _SHORTEST_SECRET))
    shown = shown.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if size > len(raw):  # what is hidden makes the text shorter
        shown = shown[:-_UNSHOWN]
    return shown if size <= _MOST_SCRIPT else f"{shown[:_MOST_SCRIPT]}\n... ({size} bytes in all)\n"


def _environment(run: Run, judged: _Judged) -> tuple[NamedFact, ...]:
    """What the run was made of, as its plan and its provenance record it."""
    plan, provenance, verdict, code = run.plan, run.provenance, _verdict(run, judged), run.code
    facts = list(_planned(plan)) if plan else []
    if code is not None and code.commit:
        facts.append(("code commit", f"{code.commit}{', with uncommitted changes' if code.dirty else ''}"))
    facts += ((f"{name} (first node)", version) for name, version in (verdict.versions if verdict else {}).items())
    source, runner = provenance.source, provenance.runner
    if source is not None and source.commit:
        runner += f" ({source.commit[:12]}{', with changes' if source.dirty else ''})"
    facts += [("gpu-runner", runner.strip()), ("python", provenance.python)]
    return tuple(NamedFact(name, hidden_value(value)) for name, value in facts if value)


def _planned(plan: PlanRecord) -> Iterator[tuple[str, str]]:
    yield "site", plan.site
    yield "recipe", plan.recipe
    yield "runtime", plan.runtime
    yield "device", " ".join(filter(None, (plan.device, plan.gpu_type)))
    yield "ranks per node", ", ".join(dict.fromkeys(str(count) for count in plan.tasks_per_node))
    yield "batch of a rank", "" if plan.samples_per_step is None else str(plan.samples_per_step)
    yield "image", plan.image.reference or plan.image.path
    yield "image digest", plan.image.digest
    yield "image file sha256", plan.image.sha256
    about = plan.image.about
    if about is not None:
        yield "framework", f"{about.framework} {about.framework_version}".strip()
        yield "CUDA", about.cuda
        yield "NCCL", about.nccl
        yield "Horovod", about.horovod.version
    yield "planned transport", plan.transport or ""


def _comparisons(
    study: StudyFacts, rows: Sequence[Row], details: Sequence[RunReport]
) -> tuple[tuple[Comparison, ...], str]:
    """Each point of the first setting against its expected range, and an empty text; or none, and why.

    The rate of one GPU is the study's own; without a proven run of one GPU, a published one.
    """
    settings = next(iter(main_settings(study)), None)
    if settings is None:
        return (), "no point has a figure"
    if study.demonstration:
        return (), f"nothing is expected of a demonstration ({study.demonstration})"
    if why := next((each.why for each in study.points if each.why), ""):
        return (), why
    if any(each.scaling == "strong" for each in study.points):
        return (), "strong scaling: with another batch on each size, one GPU's rate says nothing of the others"
    points = curve(study.points, settings)
    try:
        _check_named(study)
        one = _one_gpu(study, settings, rows)
        wanted = settings if one is None else inputs.with_settings(one, settings)
        sizes = [point.gpus for point in points]
        answer = inputs.expect(sites.read_site(study.site), study.recipe, wanted, sizes, one)
    except (RunnerError, OSError) as error:
        return (), getattr(error, "what", "") or str(error)
    signs = {each.row.gpus: each.signs for each in reversed(details) if each.row.settings == settings}
    return tuple(
        compare(place, point.images_per_s, signs.get(point.gpus))
        for place, point in zip(answer.points, points, strict=True)
        if point.images_per_s is not None
    ), ""


def _check_named(study: StudyFacts) -> None:
    """Raises RefusedError: its site or recipe is not to be read."""
    named = ((study.site, sites.names()), (study.recipe, recipes.names()))
    if not all(inputs.may_name(Run(Path(study.directory)), *each) for each in named):
        raise RefusedError("it is another user's study, for which only shipped sites and recipes are read")


def _one_gpu(study: StudyFacts, settings: Setting, rows: Sequence[Row]) -> OneGpu | None:
    """The study's rate of one GPU, with its interval over launches; None where it has none."""
    alone = [row for row in rows if row.gpus == 1 and row.state == "proven" and row.settings == settings]
    bases = (point for arm in BASES for point in curve(study.points, settings, arm) if point.gpus == 1)
    base = next(bases, None)
    if not alone or base is None or base.images_per_s is None:
        return None
    rate = base.images_per_s
    low, high = (rate.value if value is None else value for value in (rate.low, rate.high))
    doubts = f" ({in_words(base.doubts)})" if base.doubts else ""
    source = f"measured by {counted(base.proven, 'launch')} of the study {study.study}{doubts}"
    return OneGpu(rate.value, low, high, source, inputs.one_gpu_of(Run(Path(alone[0].directory))).settings)
