"""The processes of a local job, and the proof that they are the job's: numbers of processes are given out again.

A job's id is ``PID.START.BOOT`` of its script, which leads a session: process number, start time in clock ticks since
the boot (proc(5), field 22 of stat), and the beginning of the boot's id.

- While the script is in the process table with that start time, its session is the job's.
- A process of that number with another start time: the kernel gives out no number that a session still bears, so
  nothing of the job is left.
- No process of that number: a session may bear it all the same, the job's or that of another leader that has ended.
  It is the job's where a member was seen in it while that was certain, or has the job's id in its environment, which
  the script exports.
"""

from __future__ import annotations

import re
from pathlib import Path

from runner.core import process_identity
from runner.core.process_identity import Entry

_ID = re.compile(r"([1-9]\d{0,9})\.(\d{1,20})\.([0-9a-f]{8})\Z", re.ASCII)


def is_job_id(text: str) -> bool:
    """Whether the text has the form of a local job's id."""
    return _ID.match(text) is not None


def job_id(script: Entry) -> str:
    """The id of the job whose script this process runs."""
    return f"{script.pid}.{script.start}.{_boot()}"


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
        """Whether the script runs, and not in the run directory, where ours stay, as far as can be seen."""
        script = self.script()
        if script is None:
            return False
        try:
            return not Path(f"/proc/{script.pid}/cwd").samefile(run_directory)
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
