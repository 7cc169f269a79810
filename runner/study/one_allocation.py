"""The one allocation of a study: its directory, its script, and its job.

    STUDY/allocations/nodes     the nodes and their leaf switches, in the order of the study, by the first allocation
    STUDY/allocations/1/        of the first allocation: plan.json, job.sh, job.json, logs/, nodes, launches, exit.json

The run directories of its launches are made before it is submitted, each with the script that the allocation's
own runs (``render_launches``). So a process that ends at any moment leaves launches that have not begun, at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import QUIET_S, render_launches
from runner.core.errors import InfrastructureError, NotAcceptedError, UnknownStateError
from runner.core.files import sha256
from runner.core.text import counted, gpus_text
from runner.jobs import creation
from runner.jobs.campaign import Campaign
from runner.jobs.cost import last_sign_s
from runner.jobs.creation import write_script
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.life import WaitInterrupted
from runner.jobs.states import BEGUN, STOPPED, cancel_run, connected, has_begun, never_began, scheduler_of
from runner.jobs.watch import SILENCE_S, JobProgress, progress
from runner.model.job import ListedLaunch, Submitted
from runner.model.plan import LaunchPlace, Plan, record_of
from runner.model.site import Queue, Site
from runner.model.study import Launch
from runner.preparation.job import as_launch, command_of, make_launch, scheduler_for
from runner.study import separate
from runner.study.attempts import states
from runner.study.directory import name_of
from runner.study.plan import turns
from runner.study.question import launch_s, most_s, needed_s
from runner.study.separate import Work

ALLOCATIONS, LAUNCHES = "allocations", "launches"
_POLL_S = 1.0
_WHY = {
    "TIME": ": the next launch did not fit into its time limit",
    "CANCELLED": ": it was cancelled",
    "BUSY": ": a step of an earlier launch did not end",
    "DISK": ": a run directory could not be written",
}


def carry_out(work: Work, wanted: Sequence[Launch]) -> None:
    """As ``separate.carry_out``. While an allocation of the study is in the queue or runs, no other is made."""
    _discard_unbegun(work)
    if not separate.open_runs_of(work.campaign, work.launches) and wanted and not work.campaign.is_stopped:
        _start(work, wanted)
    if work.waits:
        _wait(work)


def cancel(study: Campaign) -> tuple[str, ...]:
    """Cancel the allocation, and with it all of its launches; returns the ids of jobs that had not ended."""
    cancelled = []
    for own in allocations(study.path):
        record = own.submitted
        if record is not None and (record.job_id or connected(own, record).find(own.path)):  # else no job was made
            job_id, had_ended = cancel_run(own)
            cancelled += [] if had_ended else [job_id]
    return tuple(cancelled)


def allocations(study: Path) -> tuple[Run, ...]:
    """The directories of a study's allocations, the oldest first."""
    numbers = sorted(int(name) for name in Run(study).names_in(ALLOCATIONS) if name.isdecimal())
    return tuple(Run(study / ALLOCATIONS / str(number)) for number in numbers)


def limit_s(launches: Sequence[tuple[float, int]], site: Site, queue: str | None) -> int:
    """The time limit of an allocation, seconds: what all launches need, at most what the site allows.

    Args:
        launches: expected length and time limit of each, seconds; of those that run at one time, the longest.
    """
    limits = (most_s(launches), site.queues.get(queue or "", Queue()).max_walltime_s, site.max_walltime_s)
    return min(each for each in limits if each is not None)


def in_place(plan: Plan, launch: Launch, largest: Plan) -> Plan:
    """The plan of a launch in an allocation of the largest one's shape. Pure."""
    first = launch.node or 0
    place = LaunchPlace(first, launch.device or 0, largest.gpus_per_node)
    placed = msgspec.structs.replace(plan, launch=place, divides_cpus=False)
    if placed.hosts is None or largest.hosts is None:
        return placed
    hosts = msgspec.structs.replace(placed.hosts, names=largest.hosts.names[first : first + placed.nodes])
    return msgspec.structs.replace(placed, hosts=hosts)


def _start(work: Work, wanted: Sequence[Launch]) -> None:
    """Make the run directories of these launches, in their order, and submit the allocation that runs them. Nothing is
    left where that fails; the run directories stay where it is unknown whether the scheduler accepted it.
    """
    # Of the study, not of what is left of it: each allocation has the same shape.
    largest = work.prepare(max(work.launches, key=lambda launch: launch.gpus))
    plans = {launch.key: work.prepare(launch).plan for launch in wanted}
    expected_s = {launch.key: launch_s(plans[launch.key], launch) for launch in wanted}
    together = [[launch.key for launch in turn] for turn in turns(wanted)]
    lengths = [(max(expected_s[key] for key in turn), max(plans[key].walltime_s for key in turn)) for turn in together]
    walltime_s = limit_s(lengths, largest.site, largest.plan.queue)
    study = work.campaign.path
    plan = msgspec.structs.replace(largest.plan, job_name=name_of(study.name), walltime_s=walltime_s)
    step = common.staged_step(plan, runtime(plan.runtime))
    render_launches(plan, step, ())  # refuses what cannot be, before anything is made
    own = _made(study)
    runs: list[Run] = []
    try:
        for launch in wanted:
            prepared = work.prepare(launch)
            placed = as_launch(prepared, in_place(prepared.plan, launch, largest.plan))
            folder = work.campaign.launches(launch.key)
            runs.append(make_launch(placed, folder, str(own.path), command=command_of(prepared)))
        beside = {key for turn in together for key in turn[:-1]}
        listed = [
            ListedLaunch(
                str(run.path),
                needed_s(expected_s[launch.key], plans[launch.key].walltime_s),
                launch.node or 0,
                plans[launch.key].nodes,
                launch.key in beside,
            )
            for run, launch in zip(runs, wanted, strict=True)
        ]
        script = render_launches(plan, step, listed)
        write_script(own.path, script)
        own.write("plan.json", record_of(plan, largest.findings))
        scheduler = scheduler_for(largest)
        digest = sha256(script.text.encode("utf-8", "surrogateescape"))
        own.write("job.json", Submitted(plan.started_by, "", str(scheduler.clients or ""), digest, time.time()))
        job_id = scheduler.submit(own.path, SCRIPT)
    except NotAcceptedError:
        _discard(own, *runs)
        raise
    except OSError as error:
        _discard(own, *runs)
        raise InfrastructureError(
            f"the study's directory cannot be filled: {error.strerror or error}",
            where=str(own.path),
            fix="free space there; nothing was submitted",
        ) from None
    for run in (own, *runs):
        with suppress(OSError):  # without its id, the job is found again by the directory
            if (record := run.submitted) is not None:
                run.write("job.json", msgspec.structs.replace(record, job_id=job_id))
    for launch, run in zip(wanted, runs, strict=True):
        work.campaign.note("launched", launch.key, [run])
    if work.campaign.is_stopped:  # since it was looked at: `cancel` may not have seen this job
        cancel(work.campaign)
    size = gpus_text(largest.plan.tasks)
    work.listener.tell(f"job {job_id}: {counted(len(wanted), 'launch')}, one after another, on {size}")


def _made(study: Path) -> Run:
    (study / ALLOCATIONS).mkdir(mode=0o700, exist_ok=True)
    number = max((int(each.path.name) for each in allocations(study)), default=0) + 1
    own = Run(study / ALLOCATIONS / str(number))
    own.path.mkdir(mode=0o700)
    own.logs.mkdir()
    return own


def _discard(*runs: Run) -> None:
    for run in reversed(runs):
        creation.discard(run)


def _discard_unbegun(work: Work) -> None:
    """Remove the run directories of launches whose allocation is over and never began them: they hold nothing."""
    runs = [(launch, run) for launch in work.launches for run in work.campaign.runs(launch.key) if not has_begun(run)]
    known = states(run for _, run in runs)
    for launch, run in runs:
        record = run.submitted
        if record is not None and never_began(run, record, known.get(run.path)):
            work.campaign.note("never-began", launch.key, [run])
            creation.discard(run)


def _wait(work: Work) -> None:
    """Until each launch has ended and was judged, or the allocation has."""
    for launch, run in separate.open_runs_of(work.campaign, work.launches):
        tasks = run.tasks

        def on_progress(now: JobProgress, tasks: int = tasks) -> None:
            work.listener.progress(now, tasks)

        if not _begins(run, on_progress):
            stopped = allocations(work.campaign.path)[-1].content(STOPPED)
            why = _WHY.get(stopped.decode("ascii", "replace").strip(), "")
            work.listener.warn(
                f"{launch.key} and what follows it have not begun, and the allocation is over{why}; "
                f"for what is missing: `{work.campaign.goes_on}`"
            )
            return
        separate.finished(work, launch, run)


def _begins(run: Run, on_progress: Callable[[JobProgress], None]) -> bool:
    """Wait until the launch has begun; False where its allocation is over before."""
    scheduler, job_id = scheduler_of(run)
    began = answered = time.monotonic()
    asked = -math.inf
    try:
        while not has_begun(run):
            if time.monotonic() - asked < QUIET_S:
                time.sleep(_POLL_S)
                continue
            asked = time.monotonic()
            try:
                state = scheduler.state(job_id, run.path)
                answered = time.monotonic()
            except UnknownStateError:
                if time.monotonic() - answered > SILENCE_S:
                    raise
            else:
                on_progress(progress(run, state, time.monotonic() - began))
                if state.phase in ("ended", "unknown"):
                    return has_begun(run)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise WaitInterrupted(job_id, cancelled=False) from None
    return True


def switches(study: Path) -> dict[str, str]:
    """The leaf switch of each node that the study had, where it is known; empty without an allocation."""
    lines = Run(study / ALLOCATIONS).content("nodes").decode("utf-8", "replace").splitlines()
    pairs = (line.partition("\t") for line in lines)
    return {node: switch for node, _, switch in pairs if switch not in ("", "-")}


def gpu_hours(study: Path, runs: Iterable[Run]) -> float:
    """GPU-hours of a study's allocations, from the start of the first launch to the last end that each recorded, or to
    the last sign of a launch in it: an allocation that was lost, or still runs, recorded no end.

    Args:
        runs: of the study.
    """
    by_allocation: dict[str, list[Run]] = {}
    for run in runs:
        if has_begun(run) and (record := run.submitted) is not None:
            by_allocation.setdefault(record.allocation, []).append(run)
    return math.fsum(_gpu_hours(own, by_allocation.get(str(own.path), ())) for own in allocations(study))


def _gpu_hours(own: Run, runs: Sequence[Run]) -> float:
    plan, marker = own.plan, own.marker
    if plan is None:
        return 0.0
    times: list[float] = []
    with suppress(ValueError):
        lines = own.content(LAUNCHES).decode("ascii", "replace").splitlines()
        times = [float(each) for line in lines for each in line.split("\t")[:2]]
    if marker is not None:
        times.append(marker.end_s)
    else:
        with suppress(OSError):
            times = times or [(run.path / BEGUN).lstat().st_mtime for run in runs]
        times += [sign_s for run in runs if (sign_s := last_sign_s(run))]
    used_s = min(max(times) - min(times), float(plan.walltime_s)) if times else 0.0
    return used_s * plan.occupied_gpus / 3600.0
