"""Climb a ladder: submit each rung's jobs, wait, judge, keep the result; what was done with the same inputs is kept.

    RUNS/prove-SITE/RUNG.json          how the rung ended (RungRecord), written whole or not at all
    RUNS/prove-SITE/jobs/RUNG-KEY.A/N  the run directories of its job number N, in attempt A
    ...                                as of every campaign (runner.jobs.campaign)

A climb that was ended at any moment goes on where it was: a job that still runs is waited for.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from runner.core import files, paths
from runner.core.errors import RefusedError, UsageError
from runner.core.files import files_below, key_of, tree_hash
from runner.core.invocation import PROGRAM
from runner.core.progress import Progress
from runner.core.text import instead
from runner.environments.make import make
from runner.jobs.campaign import Campaign
from runner.jobs.collect import collect
from runner.jobs.creation import make_root
from runner.jobs.directory import Run
from runner.jobs.life import finish
from runner.jobs.watch import JobProgress
from runner.model.backends import SCHEDULERS
from runner.model.job import JobState, Submitted
from runner.model.records import ProvingRecord
from runner.model.request import Request
from runner.model.study import Launch
from runner.model.verdict import REQUIRED, ProofRecord, RungRecord
from runner.preparation.environment import PreparedEnvironment, prepare_environment
from runner.preparation.job import PreparedJob, prepare
from runner.preparation.request import make_request
from runner.preparation.site import read_user_site
from runner.proving import rungs
from runner.proving.ladder import Job, JobOutcome, Ladder, Rung
from runner.sites.loader import gpu_driver, gpu_uuids
from runner.sites.proofs import digest_of, user_records
from runner.study import separate
from runner.study.attempts import settle

_RECIPES = ("lib", "horovod-pytorch", "prove", *rungs.FEW_STEPS)


@dataclass(frozen=True)
class Place:
    """Where and with what the jobs run.

    Attributes:
        root: the ladder's own directory, absolute.
        options: of every job, fields of ``Request``: site, image or environment, account and the like.
        machine: what names the machine among others, where it can be seen from here: UUIDs of its GPUs, its driver.
    """

    root: Path
    options: dict[str, Any]
    machine: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listener:
    """What is called on the way: before a rung, with the most seconds that its jobs may take, after it, while a job
    runs, and with warnings.
    """

    begins: Callable[[Rung, int], None]
    ended: Callable[[Rung, RungRecord, bool], None]
    progress: Callable[[JobProgress], None]
    warn: Callable[[str], None]


@dataclass(frozen=True)
class Climb:
    """A climb that came to its end.

    Attributes:
        records: of every rung that was tried or does not apply, in their order.
        blocked: rungs that were not tried -> why.
        prepared: one of its jobs; None where all were done before any was prepared.
    """

    records: tuple[RungRecord, ...]
    blocked: dict[str, str]
    prepared: PreparedJob | None


def program_hash() -> str:
    """Hash of all that decides what a climb does: launcher, recipes, ladder."""
    trees = [paths.share("recipes") / name for name in _RECIPES]
    return key_of(*(tree_hash(files_below(tree)) for tree in (*trees, Path(__file__).parent)))


class LadderDirectory(Campaign):
    """The ladder's own directory."""

    folder = "jobs"
    at_work = "another `prove` is at work on this ladder"
    instead = "use --runs with another directory"
    goes_on = f"{PROGRAM} prove"
    is_logged = False  # what a rung was worth stands in its own record


def exclusive(root: Path) -> AbstractContextManager[None]:
    """Hold the ladder during the block. Raises RefusedError: another process climbs it."""
    make_root(root)
    return LadderDirectory(root).exclusive(lambda _line: None)


def climb(ladder: Ladder, rungs: Sequence[Rung], place: Place, listener: Listener, again: Sequence[str] = ()) -> Climb:
    """Climb it to its end: a rung that fails hinders only those that need it.

    Args:
        again: rungs to do anew, though they have passed.

    Raises:
        RunnerError: as ``prepare``, ``start`` and ``finish`` raise it; the next call goes on with that rung.
    """
    earlier: dict[str, RungRecord] = {}
    blocked: dict[str, str] = {}
    some_job: PreparedJob | None = None
    program = program_hash()
    for rung in rungs:
        missing = [name for name in rung.needs if name not in earlier or earlier[name].state != "passed"]
        if missing:
            blocked[rung.name] = f"{', '.join(missing)} did not pass"
            continue
        jobs = () if (why := rung.obstacle(ladder, earlier)) else rung.jobs(ladder, earlier)
        try:
            prepared = [_prepared(job, place) for job in jobs]
        except RefusedError as error:
            if not rung.is_refusable:
                raise
            why = error.what
        if why:
            record, is_new = RungRecord(rung.name, "not applicable", why, finished=time.time()), True
        else:
            some_job = some_job or next(iter(prepared), None)
            # The key of all that goes into a rung; one without jobs depends on the rungs that it needs.
            plans = [json.dumps(msgspec.to_builtins(each.plan), sort_keys=True) for each in prepared]
            below = [f"{name} {earlier[name].finished}" for name in rung.needs] if not prepared else []
            inputs = key_of(rung.name, *plans, *below, program, *place.machine)
            known = _kept(place.root / f"{rung.name}.json", inputs)
            is_new = known is None or known.state != "passed" or rung.name in again
            if known is not None and not is_new:
                record = known
            else:
                attempt = _attempt(place.root, rung.name, inputs, known, anew=rung.name in again)
                listener.begins(rung, sum(job.limit_s for job in jobs))
                tried = f"{rung.name}-{inputs[:12]}.{attempt}"
                outcomes = [
                    _outcome(each, place, f"{tried}/{number}", listener) for number, each in enumerate(prepared)
                ]
                record = RungRecord(
                    rung=rung.name,
                    **vars(rung.judge(ladder, earlier, outcomes)),
                    inputs=inputs,
                    runs=tuple(outcome.run for outcome in outcomes),
                    attempt=attempt,
                    finished=time.time(),
                )
                files.write_private(place.root / f"{rung.name}.json", _json(record))
        earlier[rung.name] = record
        listener.ended(rung, record, is_new)
    return Climb(tuple(earlier.values()), blocked, some_job)


def _json(record: RungRecord | ProofRecord) -> str:
    return json.dumps(msgspec.to_builtins(record), indent=1) + "\n"


def _kept(file: Path, inputs: str) -> RungRecord | None:
    """A rung's result with these inputs; None where it is not there, or not whole."""
    try:
        known = msgspec.json.decode(files.read_bytes(file), type=RungRecord)
    except (OSError, ValueError, RecursionError):
        return None
    return known if known.inputs == inputs else None


def _attempt(root: Path, rung: str, inputs: str, known: RungRecord | None, *, anew: bool) -> int:
    if known is not None:
        return known.attempt + 1
    # With these inputs it may have been tried before others were: such an attempt is finished, not repeated.
    tried = attempts(files.names_in(root / LadderDirectory.folder), rung, inputs)
    return max(tried, default=0) + 1 if anew or not tried else max(tried)


def attempts(names: Iterable[str], rung: str, inputs: str) -> set[int]:
    """Numbers of a rung's attempts with these inputs, from the names of the directories that they left. Pure."""
    head = f"{rung}-{inputs[:12]}."
    ends = (name[len(head) :] for name in names if name.startswith(head))
    return {int(end) for end in ends if re.fullmatch(r"[1-9]\d{0,5}", end, re.ASCII)}


def _prepared(job: Job, place: Place) -> PreparedJob:
    """A job of the ladder, planned and checked. Raises RefusedError where a check refuses it."""
    request = make_request(
        {
            **place.options,
            **({"recipe": job.recipe} if job.recipe else {"arguments": job.program, "meter": True}),
            "gpus": job.gpus,
            "options": job.options,
            "env": job.env,
            "walltime_s": job.limit_s,
            "runs": str(place.root / "jobs"),
        }
    )
    prepared = prepare(request)
    if prepared.is_refused:
        refusals = [each for each in prepared.findings if each.severity == "refuse" and not each.forced]
        raise RefusedError(
            "; ".join(f"[{each.code}] {each.what}" for each in refusals),
            where=f"a job of the recipe {job.recipe}" if job.recipe else "a metered program",
            fix="; ".join(each.fix for each in refusals if each.fix),
        )
    return prepared


def _outcome(prepared: PreparedJob, place: Place, key: str, listener: Listener) -> JobOutcome:
    """Of a job that is run now, or that an earlier call has left."""
    directory = LadderDirectory(place.root)
    launch, tasks = Launch(key, prepared.plan.gpus, "full", 1, 0), prepared.plan.tasks
    settle(directory, [launch])
    if not (left := _submitted(directory, launch)):
        progress = separate.Listener(lambda _line: None, lambda now, _tasks: listener.progress(now), listener.warn)
        work = separate.Work(directory, [launch], lambda _launch: prepared, progress, waits=True, limit=1)
        separate.carry_out(work, [launch])
        left = _submitted(directory, launch)
    run = left[-1]
    verdict = finish(run, listener.progress, listener.warn)
    evidence = collect(run, run.ended or JobState("ended", ""))
    facts = run.records.records("proving", ProvingRecord, range(tasks))
    times = [(each.instrumentation_s, each.elapsed_s) for each in evidence.reports.values()]
    shares = [spent_s / elapsed_s for spent_s, elapsed_s in times if spent_s is not None and elapsed_s]
    return JobOutcome(
        verdict,
        facts=tuple(facts.values()) if len(facts) == tasks else (),  # of every planned rank, or of none
        nccl_processes=evidence.nccl.processes,
        instrumentation_share=max(shares) if shares and len(shares) == len(times) else None,
        run=str(run.path),
    )


def _submitted(directory: LadderDirectory, launch: Launch) -> list[Run]:
    """The runs of a job that its scheduler took."""
    records = ((run, run.read("job.json", Submitted)) for run in directory.runs(launch.key))
    return [run for run, record in records if record is not None and not record.refused]


def keep_record(ladder: Ladder, climb: Climb, root: Path) -> tuple[ProofRecord | None, Path | None]:
    """Write the record of a climb into the ladder's directory and, if it proves something, where ``site show`` looks;
    returns it, and that file. None where not even a job could be planned; never there with ``--pretend-cpu``.
    """
    if climb.prepared is None:
        return None, None
    plan = climb.prepared.plan
    by_name = {each.rung: each for each in climb.records}
    devices = by_name.get("devices", RungRecord("devices", "failed"))
    versions = dict(devices.versions)
    last_s = max((each.finished for each in climb.records), default=0.0)
    record = ProofRecord(
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last_s)),
        pretend=ladder.pretend,
        quick=ladder.quick,
        site=plan.site,
        runtime=plan.runtime,
        image=plan.image.pinned,
        program=program_hash(),
        driver=versions.pop("driver", ""),
        gpus=devices.gpus,
        versions=versions,
        rungs=climb.records,
    )
    record = msgspec.structs.replace(record, digest=digest_of(record))
    files.write_private(root / "record.json", _json(record))
    if record.pretend or any(record.state_of(rung) != "passed" for rung in REQUIRED):
        return record, None
    files.make_closed(user_records())
    machine = key_of(*sorted(gpu.uuid for gpu in record.gpus))[:8]
    path = user_records() / f"{record.site}-{record.runtime}-{machine}.json"
    files.write_private(path, _json(record))
    return record, path


@dataclass(frozen=True)
class Choices:
    """What was decided.

    Attributes:
        environment: to be made, or found up to date, before the first rung; None where one or an image is named.
    """

    ladder: Ladder
    place: Place
    environment: PreparedEnvironment | None


def choose(
    *,
    site: str,
    runs: Path,
    gpus: int | None,
    quick: bool,
    pretend: bool,
    again: tuple[str, ...],
    at: Path | None,
    kind: str | None,
    wheels: Path | None,
    requirements: tuple[str, ...] = (),
    **options: Any,
) -> Choices:
    """Decide it.

    Args:
        runs: directory for run directories; the ladder's own lies in it.
        gpus: None for all of a node.
        at, kind, wheels, requirements: of the environment, as ``env create`` takes them.
        options: of every job, as ``make_options`` takes them.

    Raises:
        RefusedError: the site has no GPU, and the ladder does not pretend. UsageError: options that do not fit.
    """
    for name in again:
        if name not in rungs.names():
            fix = instead(name, rungs.names(), f"rungs: {', '.join(rungs.names())}")
            raise UsageError(f"no rung named {name!r}", where="--again", fix=fix)
    read = read_user_site(site, Request(gpus=1, scratch=options.get("scratch")), for_job=False).site
    if read.device == "cpu" and not pretend:
        raise RefusedError(
            f"{read.name} has no NVIDIA GPU that can be seen and opened from here",
            where=f"--site {site}",
            fix="run it on a machine with GPUs (`nvidia-smi` lists them); --pretend-cpu climbs the ladder on "
            "processors, which proves the command and nothing of GPUs",
        )
    if read.device != "cpu" and pretend:
        raise UsageError(f"{read.name} has GPUs", where="--pretend-cpu", fix="leave it out")
    count = gpus if gpus is not None else 2 if pretend else read.node.gpus
    if count < 1:
        raise UsageError(f"{count} GPUs are not possible", where="--gpus", fix="request one or more")
    root = runs.absolute() / f"prove-{read.name}"
    environment = None
    given = [name for name in ("image", "env_name", "runtime") if options.get(name)]
    if given and (at or kind or wheels or requirements):
        raise UsageError(
            "no environment is made where an image, an environment or a runtime is named",
            where="--at, --kind, --wheels, --requirement",
            fix=f"leave out these, or --{given[0].replace('_', '-')}",
        )
    if not given:
        environment = prepare_environment(
            "prove",  # its name
            site=site,
            scratch=options.get("scratch"),
            at=at or root / "environments",
            force=tuple(code for code in options.get("force", ()) if code == "environment-in-home"),
            framework=None,
            kind=kind,
            wheels=wheels,
            modules=(),
            mpi="auto",
            nccl="auto",
            requirements=requirements,
            cuda_archs=None,
            channels=(),
        )
        options["env_name"] = str(environment.root)
    options["force"] = tuple(code for code in options.get("force", ()) if code != "environment-in-home")
    here = SCHEDULERS[read.scheduler].nodes == "this-machine"
    place = Place(root, {**options, "site": site}, (*sorted(gpu_uuids()), gpu_driver()) if here else ())
    return Choices(Ladder(count, quick=quick, pretend=pretend), place, environment)


def make_environment(choices: Choices, progress: Progress) -> None:
    """Make the environment, if one is to be made; one that is up to date is kept."""
    if choices.environment is not None:
        prepared = choices.environment
        make(prepared.spec, prepared.root, progress, given=prepared.given)
