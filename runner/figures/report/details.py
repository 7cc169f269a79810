"""How fast each rank computed, and the step times of the whole world, from a run's evidence. Pure; linear in ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, median_low

import msgspec

from runner.core.errors import RunnerError
from runner.core.hide import REDACTED, hidden_value, is_secret_name, redacted
from runner.jobs import figure as figures
from runner.jobs.collect import Evidence
from runner.jobs.expected import signs_of
from runner.jobs.facts import run_facts
from runner.jobs.figure import Measurement
from runner.jobs.run import SCRIPT, Run
from runner.model.job import CodeRecord, Source
from runner.model.plan import PlanRecord
from runner.model.report import NamedFact, RankFacts, Row, RunReport, StepTimes
from runner.model.verdict import Verdict

MOST_POINTS = 240


def rank_facts(evidence: Evidence, made: Measurement) -> tuple[RankFacts, ...]:
    """Each rank's compute time against the median of those that are not named as slow; empty where not every rank
    recorded it.
    """
    slow = made.stragglers
    if slow is None:
        return ()
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


def step_times(made: Measurement) -> StepTimes:
    """The world's step times, at most MOST_POINTS of them; each has the range of the groups that it stands for."""
    return points(made.ends_s, made.throughput.group_steps, made.throughput.cut_s)


def points(ends_s: Sequence[float], group_steps: int, cut_s: float) -> StepTimes:
    """Step times from the ends of groups, in seconds after the common start."""
    steps_s = [(end - before) / group_steps for before, end in zip([0.0, *ends_s[:-1]], ends_s, strict=True)]
    each = math.ceil(len(steps_s) / MOST_POINTS)
    blocks = [steps_s[at : at + each] for at in range(0, len(steps_s), each)]
    return StepTimes(
        groups=len(ends_s),
        groups_per_point=each,
        at_s=tuple(ends_s[min(at + each, len(ends_s)) - 1] for at in range(0, len(steps_s), each)),
        middle_s=tuple(median(block) for block in blocks),
        low_s=tuple(min(block) for block in blocks),
        high_s=tuple(max(block) for block in blocks),
        cut_s=cut_s,
    )


_MOST_SCRIPT = 100_000  # characters
_SAME = 1e-6  # relative, of two figures of the same records
_SHORTEST_SECRET = 4  # what is shorter may be a part of any text


def detailed(row: Row) -> RunReport:
    """All about one run; what cannot be read is left out, and ``problem`` says why."""
    run = Run(Path(row.directory))
    try:
        verdict = run.verdict
        report = RunReport(row, run_facts(run, verdict), environment=environment(run), script=script(run))
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
    says, gives = verdict.images_per_s or 0.0, made.throughput.samples_per_s
    # Ranks that train each for itself have a figure of their own.
    if evidence.plan.arms[-1] != "uncoupled" and not math.isclose(says, gives, rel_tol=_SAME):
        problem = f"the verdict says {says:.1f} {verdict.unit}/s, and the records give {gives:.1f}"
        return msgspec.structs.replace(report, problem=problem)
    slow = made.stragglers
    return msgspec.structs.replace(
        report,
        row=msgspec.structs.replace(report.row, step_s=made.step_s),
        ranks=rank_facts(evidence, made),
        slow_nodes={} if slow is None else dict(slow.nodes),
        slow_ranks={} if slow is None else {str(rank): excess for rank, excess in slow.ranks.items()},
        cannot_tell=None if slow is None else slow.cannot_tell,
        removable=0.0 if slow is None else slow.removable,
        steps=step_times(made),
        signs=signs_of(evidence),
        environment=(*report.environment, *_seen_on_nodes(evidence)),
    )


def script(run: Run) -> str:
    """The script exactly as it was submitted, but for ``***`` in place of secrets: values of variables with secret
    names, tokens of known forms, passwords of URLs. Empty where it cannot be read.
    """
    content = run.content(SCRIPT).decode("utf-8", "backslashreplace")
    plan = run.plan
    for name, value in plan.env if plan else ():
        if is_secret_name(name) and len(value) >= _SHORTEST_SECRET:
            content = content.replace(value, REDACTED)
    shown, _ = redacted(content)
    return shown if len(shown) <= _MOST_SCRIPT else f"{shown[:_MOST_SCRIPT]}\n... ({len(shown)} characters in all)\n"


def environment(run: Run) -> tuple[NamedFact, ...]:
    """What the run was made of, as its plan and its provenance record it."""
    plan, provenance, verdict = run.plan, run.provenance, run.verdict
    facts = [*(_planned(plan) if plan else ()), *_code(run.code)]
    facts += [(name, version) for name, version in (verdict.versions if verdict else {}).items()]
    facts += [
        ("gpu-runner", f"{provenance.runner} {_commit(provenance.source)}".strip()),
        ("python", provenance.python),
    ]
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


def _code(code: CodeRecord | None) -> Iterator[tuple[str, str]]:
    if code is not None and code.commit:
        yield "code commit", f"{code.commit}{', with uncommitted changes' if code.dirty else ''}"


def _commit(source: Source | None) -> str:
    if source is None or not source.commit:
        return ""
    return f"({source.commit[:12]}{', with changes' if source.dirty else ''})"


def _seen_on_nodes(evidence: Evidence) -> Iterator[NamedFact]:
    """What the nodes themselves said: driver, and the ways that NCCL took."""
    drivers = dict.fromkeys(record.driver for record in evidence.watched.values() if record.driver)
    if drivers:
        yield NamedFact("driver", ", ".join(drivers))
    if evidence.nccl.networks:
        yield NamedFact("NCCL's networks", ", ".join(sorted(evidence.nccl.networks)))
    if evidence.nccl.sentence:
        yield NamedFact("topology, by NCCL", evidence.nccl.sentence)
