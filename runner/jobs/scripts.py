"""Jobs that run a batch script of the user: submitted as it is by us, or by anything else.

Of such a job there are the scheduler's record and its own output files. No rank has left a record, and nothing is said
of ranks.
"""

from __future__ import annotations

import errno
import os
import platform
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from runner import __version__
from runner.backends.schedulers import scheduler_module
from runner.core import files, process
from runner.core.errors import NotAcceptedError, RunnerError, UnknownStateError
from runner.diagnosis.catalogue import find, state_cause
from runner.diagnosis.logs import telling
from runner.jobs import code_record, creation
from runner.jobs.directory import CODE, CODE_DIFF, COMMAND, JOB, PROVENANCE, SCRIPT, Run, linked
from runner.jobs.states import Elsewhere, clients_of
from runner.model.backends import SCHEDULERS
from runner.model.job import CommandLine, JobState, Provenance, SchedulerRecord, Submitted
from runner.model.verdict import Verdict

_RECENT = 20  # runs whose schedulers are asked for a job's id
_LOG_BYTES = 1 << 16
# Of the shell that submits: which environment and which modules the script starts with.
_ENVIRONMENT = ("VIRTUAL_ENV", "CONDA_PREFIX", "LOADEDMODULES")


class JobOfOthers(Run):
    """A job that something else has submitted, as a run: it has no directory of its own, and nothing is kept of it."""

    exchangeable_by = ""
    has_marker = False

    def __init__(self, job_id: str, record: SchedulerRecord, scheduler: str, clients: str) -> None:
        super().__init__(Path(record.directory or "/"))
        self.run_id = job_id
        self.submitted = Submitted(scheduler, job_id, clients, "", record.submitted_s or 0.0, record=record)
        self.ended = record.state if record.state.phase == "ended" else None

    @property
    def owner(self) -> int:
        """Ours, as ``job_of_others`` looks for no other's; it may start in any directory."""
        return os.geteuid()

    def _enter(self) -> int:
        """What lies in the directory where the job starts is not its."""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))

    def write(self, name: str, value: msgspec.Struct | Mapping[str, object], at: Path | None = None) -> None:
        """Nothing is kept."""


def job_of_others(job_id: str) -> JobOfOthers | None:
    """The job of this user with that id, by a scheduler in PATH, or of a recent run; None where none knows it. Raises
    RefusedError: it is another user's.
    """
    places = [
        (name, "") for name in SCHEDULERS.every() if process.find(SCHEDULERS[name].submit.partition(" ")[0]) is not None
    ]
    for run in islice(linked(), _RECENT):
        with suppress(UnknownStateError, OSError):
            if (record := run.submitted) is not None:
                places.append((record.scheduler, str(clients_of(run, record) or "")))
    for name, clients in dict.fromkeys(places):
        if SCHEDULERS[name].records:
            with suppress(NotAcceptedError, UnknownStateError):
                known = scheduler_module(name).record(Path(clients) if clients else None, job_id)
                if known is not None:
                    return JobOfOthers(job_id, known, name, clients)
    return None


class OfScript(Elsewhere):
    """The scheduler of such a job, which starts in a directory that is not its run's."""

    _started = "was submitted as it is"

    def find(self, run_directory: Path) -> str | None:  # noqa: ARG002
        """None: other jobs start in the same directory."""
        return None


def submit_script(
    script: Path, arguments: Sequence[str], *, scheduler: str, clients: Path | None, runs: Path, command: CommandLine,
    with_diff: bool,
) -> Run:  # fmt: skip
    """Submit a batch script byte for byte, and record what it came from. Raises UsageError, NotAcceptedError,
    UnknownStateError: nothing is kept of a script that was not accepted.
    """
    content = files.read_named(script)
    code, diff = code_record.code_record((str(script),), Path.cwd(), with_diff=with_diff)
    run = creation.create(runs, f"{script.stem}-1", time.time())
    try:
        (run.path / SCRIPT).write_bytes(content)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if os.environ.get(name)}
        run.write(COMMAND, command)
        run.write(CODE, code)
        run.write(PROVENANCE, Provenance(
            __version__, None, platform.python_version(), str(Path.cwd()), platform.node(), scheduler,
            environment=environment,
        ))  # fmt: skip
        if diff:
            files.write_private(run.path / CODE_DIFF, diff)
        job_id = scheduler_module(scheduler).submit_script(clients, str(script), arguments)
    except BaseException:
        creation.discard(run)
        raise
    record = None
    with suppress(RunnerError):
        record = scheduler_module(scheduler).record(clients, job_id)
    record = record or SchedulerRecord(JobState("unknown"), script.name, str(script), str(Path.cwd()))
    run.write(JOB, Submitted(scheduler, job_id, str(clients or ""), files.sha256(content), time.time(), record=record))
    return run


def outputs(record: SchedulerRecord, job_id: str) -> tuple[Path, ...]:
    """The files that the job writes, as its scheduler says; else where Slurm writes by default."""
    named = record.output or f"{record.directory}/slurm-{job_id}.out"
    return tuple(Path(name) for name in dict.fromkeys((named, record.error)) if name)


@dataclass(frozen=True)
class ScriptEnd:
    """The evidence of such a job: its state, and its last lines. Nothing of it can be damaged, or older. ``lacks``: the
    directory of its output, which is not there.
    """

    state: JobState
    lines: tuple[str, ...]
    log: str
    lacks: str = ""
    damaged: tuple[str, ...] = ()
    has_older_records: bool = False


def end_of(run: Run, submitted: Submitted, state: JobState) -> ScriptEnd:
    """What the job has left; the scheduler's record is kept as it is at the end."""
    assert submitted.record is not None
    with suppress(RunnerError, OSError):
        clients = clients_of(run, submitted)
        module = scheduler_module(submitted.scheduler)
        record = module.record(clients, submitted.job_id) if SCHEDULERS[submitted.scheduler].records else None
        if record is not None:
            named = msgspec.structs.replace(
                record, output=record.output or submitted.record.output, error=record.error or submitted.record.error,
                script=record.script or submitted.record.script,
            )  # fmt: skip
            submitted = msgspec.structs.replace(submitted, record=named)  # of an array now the task that tells
            run.keep(JOB, submitted)
    assert submitted.record is not None
    places = outputs(submitted.record, submitted.job_id)
    lacks = next((str(each.parent) for each in places if not each.parent.exists()), "")
    return ScriptEnd(state, tuple(_last_lines(run, places[-1])), str(places[-1]), lacks)


def _last_lines(run: Run, path: Path) -> Iterator[str]:
    with suppress(OSError), files.open_regular(path, run.owner_of_outputs) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        yield from file.read().decode("utf-8", "replace").splitlines()


def judge_script(end: ScriptEnd) -> Verdict:
    """The verdict on a script: ``ran`` where the scheduler says that it ended with 0, and no more than that. Pure."""
    state = end.state
    if state.name == "COMPLETED" and not state.exit_code:
        proven = "the scheduler reports COMPLETED: the script ended with 0"
        return Verdict(
            "ran", proven=(proven,), remarks=("what its processes did, and whether they met, was not looked at",)
        )
    line = telling(end.lines)
    log = f"{end.log}: {line}" if line else ""
    failure = find("scheduler state", state.name, state.reason)
    if failure is not None and failure.code == "script-not-started" and end.lacks:
        why = f"the scheduler could not start the script: the directory of its output is not there, {end.lacks}"
        return Verdict("failed", (why,), fix=f"mkdir -p {shlex.quote(end.lacks)}", who="user")
    if failure is not None:
        cause = state_cause(failure, state)
        return Verdict(failure.outcome, (cause,), fix=failure.fix, who=failure.who, log=log)
    if state.phase != "ended":
        fix = f"see its output, {end.log}, and the site's accounting" if end.log else "see the site's accounting"
        return Verdict("unknown", ("the scheduler does not know the job any more",), fix=fix, who="user", log=log)
    by_log = find("program log", line)
    reasons = (
        f"the script ended with {state.exit_code}",
        *((by_log.cause,) if by_log and "{" not in by_log.cause else ()),
    )
    return Verdict("failed", reasons, fix=by_log.fix if by_log else "", who=by_log.who if by_log else "", log=log)
