"""This machine as its own scheduler: one process for each job, in a session of its own, known again by its start.

A job's id is ``PID.START.BOOT``: process number, start time in clock ticks since the boot (proc(5), field 22 of
stat), and the beginning of the boot's own id. A process number that comes again, after a reboot too, is another job.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from runner import process
from runner.errors import NotAcceptedError, UnknownStateError
from runner.files import process_identity
from runner.model.job import ExitMarker, JobState

GRACE_S = 45.0  # more than the script gives its ranks
_POLL_S = 0.1
_ID = re.compile(r"([1-9]\d{0,9})\.(\d{1,20})\.([0-9a-f]{8})\Z", re.ASCII)


def connect(clients: Path | None) -> Local:
    """This machine; ``clients`` are programs that the job finds first (those of an allocation's scheduler)."""
    return Local(clients)


class Local:
    """Jobs of this user on this machine, with no daemon and no privilege."""

    def __init__(self, clients: Path | None = None) -> None:
        self.clients = clients

    def submit(self, run_directory: Path, script: str) -> str:
        """Start ``script`` in a session of its own, where it outlives this process and its terminal.

        Raises:
            NotAcceptedError: it cannot be started.
        """
        env = dict(os.environ)
        if self.clients is not None:
            env["PATH"] = f"{self.clients}:{env.get('PATH', os.defpath)}"
        try:
            with _log(run_directory / "logs" / "batch.out") as out, _log(run_directory / "logs" / "batch.err") as err:
                child = process.start(
                    ("bash", run_directory / script), cwd=run_directory, stdout=out, stderr=err, env=env
                )
        except (OSError, process.CommandNotFoundError) as error:
            raise NotAcceptedError(
                f"the job cannot be started: {error}", where=str(run_directory / script), fix="see the words above"
            ) from error
        # Nobody has waited for it yet, so even if it has ended its entry is still there.
        entry = process_identity.entry(child.pid)
        assert entry is not None, "a child that was not waited for stays in the process table"
        return f"{child.pid}.{entry.start}.{_boot()}"

    def find(self, run_directory: Path) -> str | None:
        """The id that the job itself has left in the run directory; None if it has left none (yet)."""
        with suppress(OSError):
            left = (run_directory / "job.id").read_text(errors="replace").strip()
            return left if _ID.match(left) else None
        return None

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """By the process, and when it has gone by the marker that its script leaves on every way out.

        A script that left none was killed outright, unless this machine was not up when it began: then nobody knows.
        """
        here = socket.gethostname()
        pid, start = _of(job_id)
        if pid and (process_identity.is_running(pid, start) or any(process_identity.session(pid))):
            return JobState("running", "RUNNING", nodes=here)
        marker = _marker(run_directory)
        if marker is not None:
            name = marker.why or ("FAILED" if marker.exit else "COMPLETED")
            return JobState("ended", name, nodes=here, exit_code=marker.exit)
        if not pid:
            return JobState("unknown", reason="of another boot or another machine")
        return JobState("ended", "KILLED", nodes=here)

    def cancel(self, job_id: str) -> None:
        """Ask the script to end its ranks; where it has not within GRACE_S, kill all that is left of the job.

        Raises:
            UnknownStateError: the job is another user's.
        """
        pid, start = _of(job_id)
        if not pid:
            return
        try:
            if process_identity.is_running(pid, start):
                os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + GRACE_S
            while process_identity.is_running(pid, start) and time.monotonic() < until:
                time.sleep(_POLL_S)
            while left := tuple(process_identity.session(pid)):
                for each in left:
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
                time.sleep(_POLL_S)
        except PermissionError:
            raise UnknownStateError(f"job {job_id} is another user's", where=f"process {pid}") from None


def _log(path: Path) -> IO[bytes]:
    """A log to append to, for its owner alone."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def is_of_this_boot(job_id: str) -> bool:
    """Whether the id is of a job of this machine since it was last started."""
    return _of(job_id)[0] != 0


def _of(job_id: str) -> tuple[int, int]:
    """Process number and start time; 0 where the id is not of this boot of this machine."""
    match = _ID.match(job_id)
    return (int(match[1]), int(match[2])) if match and match[3] == _boot() else (0, 0)


def _boot() -> str:
    return process_identity.boot_id().partition("-")[0]


def _marker(run_directory: Path) -> ExitMarker | None:
    try:
        return msgspec.json.decode((run_directory / "exit.json").read_bytes(), type=ExitMarker)
    except (OSError, msgspec.DecodeError):
        return None
