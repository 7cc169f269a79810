"""This machine as its own scheduler: one process for each job, in its own session, identified by its start time.

A process is the job's only where that is proven, for numbers of processes are given out again: no other is called
running, and no other gets a signal. A job's id is ``PID.START.BOOT`` of its script, which leads a session: process
number, start time in clock ticks since the boot (proc(5), field 22 of stat), and the beginning of the boot's id.

- Process 1 is no job's.
- While the script is in the process table with that start time, its session is the job's.
- A process of that number with another start time: the kernel gives out no number that a session still bears, so
  nothing of the job is left.
- No process of that number: a session may bear it all the same, the job's or that of another leader that has ended.
  It is the job's where a member was seen in it while that was certain, or has the job's id in its environment, which
  the script exports.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from runner.core import files, paths, process, process_identity
from runner.core.errors import NotAcceptedError, UnknownStateError
from runner.core.process_identity import Entry
from runner.model.job import ExitMarker, JobState
from runner.model.plan import Plan, upgraded

GRACE_S = 45.0  # more than the script gives its ranks
_POLL_S = 0.1
_ID = re.compile(r"([2-9]|[1-9]\d{1,9})\.(\d{1,20})\.([0-9a-f]{8})\Z", re.ASCII)


class JobProcesses:
    """What is running of a job.

    Attributes:
        of_this_boot: whether the job was started on this machine since its last boot; no process is its otherwise.
    """

    def __init__(self, job_id: str) -> None:
        match = _ID.match(job_id)
        self.of_this_boot = match is not None and match[3] == _boot()
        self._pid, self._start = (int(match[1]), int(match[2])) if match is not None else (0, 0)
        self._mark = f"RUNNER_JOB_ID={job_id}".encode()
        self._seen: frozenset[Entry] = frozenset()

    def script(self) -> Entry | None:
        """The job's script, while it runs."""
        script = process_identity.entry(self._pid) if self.of_this_boot else None
        return script if script is not None and script.running and script.start == self._start else None

    def running(self) -> tuple[Entry, ...]:
        """All that runs of the job, its script too; empty where nothing is proven to be the job's."""
        if not self.of_this_boot:
            return ()
        leader = process_identity.entry(self._pid)
        if leader is not None and leader.start != self._start:
            return ()
        members = frozenset(process_identity.session(self._pid))
        if leader is None and not (members & self._seen or any(map(self._is_marked, members))):
            return ()
        if leader is not None and leader.running:
            members |= {leader}  # it leads no session where it was started by hand
        self._seen |= members
        return tuple(members)

    def works_elsewhere(self, run_directory: Path) -> bool:
        """Whether the script runs, and not in the run directory, where ours stay, as far as can be seen; or what runs
        there is no script: a shell that the user has in a copy of a run directory.
        """
        script = self.script()
        if script is None:
            return False
        try:
            its = Path(f"/proc/{script.pid}")
            if not (its / "cwd").samefile(run_directory):
                return True
            words = (its / "cmdline").read_bytes().split(b"\0")
            by_words = any(word.rpartition(b"/")[2] == b"job.sh" for word in words)
            out = (run_directory / "logs" / "batch.out").lstat()  # no link of the job to the output of another process
            return not by_words and not os.path.samestat((its / "fd/1").stat(), out)
        except OSError:  # not ours to look into, or either is gone
            return self.script() is not None

    def _is_marked(self, process: Entry) -> bool:
        """Whether the process was started with the job's id in its environment; False where that cannot be read."""
        try:
            return self._mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _boot() -> str:
    return process_identity.boot_id().partition("-")[0]


class Local:
    """Jobs of this user on this machine, as ``Scheduler``, with no daemon and no privilege."""

    def __init__(self, clients: Path | None = None) -> None:
        self.clients = clients

    def submit(self, run_directory: Path, script: str) -> str:
        """Start ``script`` in a session of its own, where it outlives this process and its terminal. It does not take
        options and functions that the user's shell exports, which go, nor BASH_ENV (-p), which stays for the program.
        """
        shell = ("BASH_FUNC_", "SHELLOPTS", "BASHOPTS")
        given = self.environment(run_directory)
        env = {name: value for name, value in given.items() if not name.startswith(shell)}
        if self.clients is not None:
            env["PATH"] = f"{self.clients}:{env.get('PATH', os.defpath)}"
        argv, logs = ("bash", "-p", run_directory / script), run_directory / "logs"
        try:
            with _log(logs / "batch.out") as out, _log(logs / "batch.err") as err:
                child = process.start(argv, cwd=run_directory, stdout=out, stderr=err, env=env)
        except (OSError, process.CommandNotFoundError) as error:
            raise NotAcceptedError(
                f"the job cannot be started: {error}", where=str(run_directory / script), fix="see the reason above"
            ) from error
        # It has not been waited for, so its entry in /proc is there even if it has ended.
        entry = process_identity.entry(child.pid)
        assert entry is not None, "a child that was not waited for stays in the process table"
        return f"{entry.pid}.{entry.start}.{_boot()}"

    def environment(self, run_directory: Path) -> Mapping[str, str]:
        """Of the script, this shell's: of a step of an allocation, whose starter takes it to other nodes."""
        with suppress(UnknownStateError):
            held = plan_of(run_directory).existing_allocation
            if held is not None and not paths.are_this_machine(held.nodes):
                return paths.for_other_machines(os.environ)
        return os.environ

    def find(self, run_directory: Path) -> str | None:
        """The id that the job itself has left in the run directory; None if it has left none (yet)."""
        with suppress(OSError):
            left = files.Folder(run_directory).content_of("job.id").decode("ascii", "replace").strip()
            return left if _ID.match(left) else None
        return None

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """By the marker that the script leaves however it ends, and where there is none yet by the job's processes.

        A script that has gone and left none was killed. Of a job of another boot or another machine that is not known,
        nor of a process that works in another directory: a record that was copied, or made by another user, may name
        any.
        """
        here = socket.gethostname()
        job, marker = JobProcesses(job_id), None
        with suppress(OSError, msgspec.DecodeError):
            marker = msgspec.json.decode(files.Folder(run_directory).content_of("exit.json"), type=ExitMarker)
        # A marker of another id is that of the same script, started by hand: before this job ended, or after.
        if (marker is None or marker.job != job_id) and (job.script() or job.running()):
            if job.works_elsewhere(run_directory):
                return JobState("unknown", reason="its process works in another directory")
            return JobState("running", "RUNNING", nodes=here)
        if marker is not None:
            name = marker.why or ("FAILED" if marker.exit else "COMPLETED")
            return JobState("ended", name, nodes=here, exit_code=marker.exit)
        if not job.of_this_boot:
            return JobState("unknown", reason="of another boot or another machine")
        return JobState("ended", "KILLED", nodes=here)

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """A job without an id is looked for in its run directory."""
        known = dict.fromkeys(jobs, JobState(phase="unknown"))
        for run, name in jobs.items():
            with suppress(UnknownStateError):  # one run that cannot be read hides no other
                known[run] = self.state(name or self.find(run) or "", run)
        return known

    def cancel(self, job_id: str) -> None:
        """Ask the script to end its ranks; where it has not within GRACE_S, kill all that is left of the job. Raises
        UnknownStateError: the job is another user's.
        """
        job = JobProcesses(job_id)
        job.running()  # members that are seen while the script runs are known to be the job's after it
        try:
            if script := job.script():
                process_identity.send(script, signal.SIGTERM)
            until = time.monotonic() + GRACE_S
            while job.script() and time.monotonic() < until:
                time.sleep(_POLL_S)
        except PermissionError:
            where = f"process {job_id.partition('.')[0]}"
            raise UnknownStateError(f"job {job_id} is another user's", where=where) from None
        while any([_is_killed(each) for each in job.running()]):  # all of them
            time.sleep(_POLL_S)


def _is_killed(member: Entry) -> bool:
    """False: it is another user's by now, as below sudo."""
    try:
        process_identity.send(member, signal.SIGKILL)
    except PermissionError:
        return False
    return True


def plan_of(run_directory: Path) -> Plan:
    """Raises UnknownStateError: it cannot be read."""
    try:
        # Not msgspec's own decoder: a value may hold bytes that are no UTF-8, as escapes that it does not take.
        return msgspec.convert(upgraded(json.loads(files.Folder(run_directory).content_of("plan.json"))), Plan)
    except (OSError, ValueError) as error:
        raise UnknownStateError(f"the run's plan cannot be read: {error}", where=str(run_directory)) from error


def beside(
    _clients: Path | None, _job_id: str, _node: str, words: Sequence[str], *, plan: Plan | None, terminal: bool
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """See SchedulerModule: any process here is beside the job's."""
    return tuple(words), os.environ


def _log(path: Path) -> IO[bytes]:
    """A log to append to, for its owner alone."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
