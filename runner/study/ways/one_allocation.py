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
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render_launches
from runner.core import files
from runner.core.errors import InfrastructureError, NotAcceptedError, UnknownStateError
from runner.core.files import sha256
from runner.core.text import counted, gpus_text
from runner.jobs import directory
from runner.jobs.directory import SCRIPT, RunDirectory, write_script
from runner.jobs.in_allocation import BEGUN, STOPPED, has_begun, never_began
from runner.jobs.life import WaitInterrupted
from runner.jobs.states import cancel_run, connected, scheduler_of
from runner.jobs.watch import SILENCE_S, JobProgress, progress
from runner.model.job import ListedLaunch, Submitted
from runner.model.plan import LaunchPlace, Plan, record_of
from runner.model.site import Queue, Site
from runner.model.study import Launch
from runner.preparation.job import PreparedJob, as_launch, command_of, make_launch, scheduler_for
from runner.study import cost
from runner.study import plan as plans
from runner.study.attempts import states
from runner.study.campaign import Campaign
from runner.study.directory import name_of
from runner.study.ways import Work, separate

ALLOCATIONS, LAUNCHES = "allocations", "launches"


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch that an allocation is to run.

    Attributes:
        prepared: as a job of its own. runs: where its run directory is made.
        expected_s: how long it is expected to take.
    """

    launch: Launch
    prepared: PreparedJob
    runs: Path
    expected_s: float


def limit_s(launches: Sequence[tuple[float, int]], site: Site, queue: str | None) -> int:
    """The time limit of an allocation, seconds: what all launches need, at most what the site allows.

    Args:
        launches: expected length and time limit of each, seconds; of those that run at one time, the longest.
    """
    most = (site.queues.get(queue or "", Queue()).max_walltime_s, site.max_walltime_s)
    return (
        min(cost.most_s(launches), *(each for each in most if each is not None)) if any(most) else cost.most_s(launches)
    )


def place(launch: Launch, largest: Plan) -> LaunchPlace:
    """Where a launch runs in an allocation of the largest one's shape."""
    return LaunchPlace(launch.node or 0, launch.device or 0, largest.gpus_per_node)


def in_place(plan: Plan, launch: Launch, largest: Plan) -> Plan:
    """The plan of a launch in an allocation of the largest one's shape. Pure."""
    placed = msgspec.structs.replace(plan, launch=place(launch, largest), divides_cpus=False)
    if placed.hosts is None or largest.hosts is None:
        return placed
    first = launch.node or 0
    names = largest.hosts.names[first : first + placed.nodes]
    return msgspec.structs.replace(placed, hosts=msgspec.structs.replace(placed.hosts, names=names))


def start(
    study: Path, name: str, launches: Sequence[PlannedLaunch], largest: PreparedJob
) -> tuple[str, tuple[RunDirectory, ...]]:
    """Make the run directories of these launches, in their order, and submit the allocation that runs them.

    Args:
        name: of its job. largest: the largest launch of the study, as a job of its own.

    Returns:
        The id of its job, and the run directories.

    Raises:
        RefusedError: jobs of this scheduler cannot have several launches.
        UsageError, InfrastructureError, NotAcceptedError: as ``runner.preparation.job.start``; nothing is left.
        UnknownStateError: it is unknown whether the scheduler accepted it; the run directories stay.
    """
    planned = {each.launch.key: each for each in launches}
    turns = [[planned[each.key] for each in turn] for turn in plans.turns(each.launch for each in launches)]
    lengths = [
        (max(each.expected_s for each in turn), max(each.prepared.plan.walltime_s for each in turn)) for turn in turns
    ]
    plan = msgspec.structs.replace(
        largest.plan, job_name=name, walltime_s=limit_s(lengths, largest.site, largest.plan.queue)
    )
    step = common.staged_step(plan, runtime(plan.runtime))
    render_launches(plan, step, ())  # refuses what cannot be, before anything is made
    own = _made(study)
    runs: list[RunDirectory] = []
    try:
        for each in launches:
            placed = as_launch(each.prepared, in_place(each.prepared.plan, each.launch, largest.plan))
            runs.append(make_launch(placed, each.runs, own, command=command_of(each.prepared)))
        beside = {each.launch.key for turn in turns for each in turn[:-1]}
        listed = [
            _listed(run, each, largest.plan, with_next=each.launch.key in beside)
            for run, each in zip(runs, launches, strict=True)
        ]
        script = render_launches(plan, step, listed)
        write_script(own, script)
        RunDirectory(own).write("plan.json", record_of(plan, largest.findings))
        scheduler = scheduler_for(largest)
        record = Submitted(
            scheduler=plan.started_by,
            job_id="",
            clients=str(scheduler.clients or ""),
            script_sha256=sha256(script.text.encode("utf-8", "surrogateescape")),
            submitted_s=time.time(),
        )
        RunDirectory(own).write("job.json", record)
        job_id = scheduler.submit(own, SCRIPT)
    except NotAcceptedError:
        _discard(own, runs)
        raise
    except OSError as error:
        _discard(own, runs)
        raise InfrastructureError(
            f"the study's directory cannot be filled: {error.strerror or error}",
            where=str(own),
            fix="free space there; nothing was submitted",
        ) from None
    _keep_id(RunDirectory(own), job_id)
    for run in runs:
        _keep_id(run, job_id)
    return job_id, tuple(runs)


def allocations(study: Path) -> tuple[RunDirectory, ...]:
    """The directories of a study's allocations, the oldest first."""
    numbers = sorted(int(name) for name in files.names_in(study / ALLOCATIONS) if name.isdigit())
    return tuple(RunDirectory(study / ALLOCATIONS / str(number)) for number in numbers)


def switches(study: Path) -> dict[str, str]:
    """The leaf switch of each node that the study had, where it is known; empty without an allocation."""
    with suppress(OSError):
        lines = files.read_bytes(study / ALLOCATIONS / "nodes").decode("utf-8", "replace").splitlines()
        found = (line.partition("\t") for line in lines)
        return {node: switch for node, _, switch in found if switch not in ("", "-")}
    return {}


def gpu_hours(study: Path, runs: Iterable[RunDirectory]) -> float:
    """GPU-hours of a study's allocations, from the start of the first launch to the last end that each recorded, or to
    the last sign of a launch in it: an allocation that was lost, or still runs, recorded no end.

    Args:
        runs: of the study.
    """
    by_allocation: dict[str, list[RunDirectory]] = {}
    for run in runs:
        if has_begun(run) and (record := run.submitted) is not None:
            by_allocation.setdefault(record.allocation, []).append(run)
    return math.fsum(_gpu_hours(own, by_allocation.get(str(own.path), ())) for own in allocations(study))


def last_sign_s(run: RunDirectory) -> float:
    """Unix time of the last change of a log or a rank's record; 0 without any."""
    found = [0.0]
    for folder in (run.logs, run.ranks):
        for name in files.names_in(folder):
            with suppress(OSError):
                found.append((folder / name).lstat().st_mtime)
    return max(found)


def _gpu_hours(own: RunDirectory, runs: Sequence[RunDirectory]) -> float:
    plan, marker = own.plan, own.marker
    times = []
    with suppress(OSError, ValueError):
        lines = files.read_bytes(own.path / LAUNCHES).decode("ascii", "replace").splitlines()
        times = [float(each) for line in lines for each in line.split("\t")[:2]]
    if plan is None:
        return 0.0
    if marker is not None:
        times.append(marker.end_s)
    else:
        with suppress(OSError):
            times = times or [(run.path / BEGUN).lstat().st_mtime for run in runs]
        times += [sign_s for run in runs if (sign_s := last_sign_s(run))]
    used_s = min(max(times) - min(times), float(plan.walltime_s)) if times else 0.0
    return used_s * plan.occupied_gpus / 3600.0


def _made(study: Path) -> Path:
    root = study / ALLOCATIONS
    root.mkdir(mode=0o700, exist_ok=True)
    number = max((int(each.path.name) for each in allocations(study)), default=0) + 1
    own = root / str(number)
    own.mkdir(mode=0o700)
    (own / "logs").mkdir()
    return own


def _listed(run: RunDirectory, planned: PlannedLaunch, largest: Plan, *, with_next: bool) -> ListedLaunch:
    plan = planned.prepared.plan
    first = place(planned.launch, largest).first_node
    needs_s = cost.needed_s(planned.expected_s, plan.walltime_s)
    return ListedLaunch(str(run.path), needs_s, first, plan.nodes, with_next)


def _keep_id(run: RunDirectory, job_id: str) -> None:
    """Without it, it is found again by the directory."""
    record = run.submitted
    if record is not None:
        with suppress(OSError):
            run.write("job.json", msgspec.structs.replace(record, job_id=job_id))


def _discard(own: Path, runs: Sequence[RunDirectory]) -> None:
    for run in (*runs, RunDirectory(own)):
        directory.discard(run)


_POLL_S = 1.0
_WHY = {
    "TIME": ": the next launch did not fit into its time limit",
    "CANCELLED": ": it was cancelled",
    "BUSY": ": a step of an earlier launch did not end",
    "DISK": ": a run directory could not be written",
}


def carry_out(work: Work, wanted: Sequence[Launch]) -> None:
    """See ``Way``. While an allocation of the study is in the queue or runs, no other is made."""
    _discard_unbegun(work)
    if not separate.open_runs_of(work.campaign, work.launches) and wanted and not work.campaign.is_stopped:
        _start(work, wanted)
    if work.waits:
        _wait(work)


def cancel(study: Campaign) -> tuple[str, ...]:
    """See ``Way``: the allocation, and with it all of its launches."""
    cancelled = []
    for own in allocations(study.path):
        record = own.submitted
        if record is None or not (record.job_id or connected(own, record).find(own.path)):
            continue  # it never came to the scheduler
        job_id, had_ended = cancel_run(own)
        if not had_ended:
            cancelled.append(job_id)
    return tuple(cancelled)


def _start(work: Work, wanted: Sequence[Launch]) -> None:
    largest = work.prepare(_largest(work.launches))
    planned = []
    for launch in wanted:
        prepared = work.prepare(launch)
        expected_s = cost.launch_s(prepared.plan, launch)
        planned.append(PlannedLaunch(launch, prepared, work.campaign.launches(launch.key), expected_s))
    path = work.campaign.path
    job_id, runs = start(path, name_of(path.name), planned, largest)
    for launch, run in zip(wanted, runs, strict=True):
        work.campaign.note("launched", launch.key, [run])
    if work.campaign.is_stopped:  # since it was looked at: `cancel` may not have seen this job
        cancel(work.campaign)
    work.listener.tell(
        f"job {job_id}: {counted(len(planned), 'launch')}, one after another, on {gpus_text(largest.plan.tasks)}"
    )


def _largest(launches: Sequence[Launch]) -> Launch:
    """Of the study, not of what is left of it: each allocation has the same shape."""
    return max(launches, key=lambda launch: launch.gpus)


def _discard_unbegun(work: Work) -> None:
    """Remove the run directories of launches whose allocation is over and never began them: they hold nothing."""
    runs = [(launch, run) for launch in work.launches for run in work.campaign.runs(launch.key)]
    unbegun = [(launch, run) for launch, run in runs if not has_begun(run)]
    known = states([run for _, run in unbegun])
    for launch, run in unbegun:
        record = run.submitted
        if record is not None and never_began(run, record, known.get(run.path)):
            work.campaign.note("never-began", launch.key, [run])
            directory.discard(run)


def _wait(work: Work) -> None:
    """Until each launch has ended and was judged, or the allocation has."""
    for launch, run in separate.open_runs_of(work.campaign, work.launches):
        tasks = run.tasks

        def on_progress(now: JobProgress, tasks: int = tasks) -> None:
            work.listener.progress(now, tasks)

        if not _begins(run, on_progress):
            work.listener.warn(
                f"{launch.key} and what follows it have not begun, and the allocation is over{_why(work.campaign)}; "
                f"for what is missing: `{work.campaign.goes_on}`"
            )
            return
        separate.finished(work, launch, run)


def _begins(run: RunDirectory, on_progress: Callable[[JobProgress], None]) -> bool:
    """Wait until the launch has begun; False where its allocation is over before.

    Raises:
        WaitInterrupted: Ctrl-C.
        UnknownStateError: the scheduler did not answer for SILENCE_S.
    """
    scheduler, job_id = scheduler_of(run)
    began = answered = time.monotonic()
    try:
        while not has_begun(run):
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


def _why(study: Campaign) -> str:
    """Why the last allocation did not run all of its launches, where its script could tell."""
    own = allocations(study.path)[-1]
    try:
        return _WHY.get((own.path / STOPPED).read_text().strip(), "")
    except OSError:
        return ""
