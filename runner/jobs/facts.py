"""What is known of a run, in the one form in which commands print it as JSON."""

from __future__ import annotations

import msgspec

from runner.jobs.directory import RunDirectory
from runner.jobs.life import Standing
from runner.jobs.presence import presence
from runner.jobs.times import utc
from runner.model.job import ExitMarker, JobState, Phase, Submitted
from runner.model.output import RunFacts
from runner.model.plan import Finding, PlanRecord
from runner.model.records import Seconds
from runner.model.verdict import Verdict


class _Start(msgspec.Struct):
    time_s: Seconds


class _Provenance(msgspec.Struct):
    findings: tuple[Finding, ...] = ()
    unconfirmed: tuple[str, ...] = ()


def run_facts(run: RunDirectory, now: Verdict | Standing | None) -> RunFacts:
    """All facts about a run, from its directory and ``now``: its verdict or state; None where it was just submitted.

    No scheduler is queried. What cannot be read is empty, 0 or None.
    """
    plan = run.read("plan.json", PlanRecord)
    submitted = run.read("job.json", Submitted)
    provenance = run.read("provenance.json", _Provenance) or _Provenance()
    start = run.read("ranks/0.start.json", _Start)
    marker = run.read("exit.json", ExitMarker)
    started, ended = _counts(run, now)
    verdict = now if isinstance(now, Verdict) else None
    answer = now.progress.state if isinstance(now, Standing) else run.read("ended.json", JobState)
    return RunFacts(
        run=run.run_id,
        directory=str(run.path),
        name=plan.job_name if plan else "",
        job=now.job_id if isinstance(now, Standing) else submitted.job_id if submitted else "",
        state=_state(now),
        scheduler=answer,
        site=plan.site if plan else "",
        recipe=plan.recipe if plan else "",
        runtime=plan.runtime if plan else "",
        image=plan.image.pinned if plan else "",
        gpus=plan.gpus if plan else 0,
        nodes=plan.nodes if plan else 0,
        ranks=plan.tasks if plan else 0,
        ranks_started=started,
        ranks_ended=ended,
        submitted=utc(submitted.submitted_s) if submitted else None,
        started=utc(start.time_s) if start else None,
        ended=utc(marker.end_s) if marker else None,
        findings=provenance.findings,
        unconfirmed=provenance.unconfirmed,
        verdict=verdict,
        exit_code=verdict.exit_code if verdict else None,
    )


def _state(now: Verdict | Standing | None) -> Phase:
    if now is None:
        return "pending"
    if isinstance(now, Verdict):
        return "unknown" if now.outcome == "unknown" else "ended"
    return now.progress.state.phase if now.progress.state else "unknown"


def _counts(run: RunDirectory, now: Verdict | Standing | None) -> tuple[int, int]:
    """How many ranks have recorded their start, and their end."""
    if now is None:
        return 0, 0
    if isinstance(now, Standing):
        return now.progress.started, now.progress.ended
    try:
        there = presence(run)
    except OSError:
        return 0, 0
    return len(there.starts), len(there.exits)
