"""The clients of PBS Pro and OpenPBS: submit, one state query, cancel. Every call is bounded in time."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runner.backends import schedulers
from runner.core import process
from runner.core.errors import NotAcceptedError, RefusedError, UnknownStateError
from runner.model.job import AllocatedNode, Allocation, JobState, Phase
from runner.model.site import Site

# qstat(1B), "Job states". What is not listed is unknown, never success.
_PHASES: Final[dict[str, Phase]] = {
    **dict.fromkeys("HQTW", "pending"),
    **dict.fromkeys("BERSU", "running"),
    **dict.fromkeys("FX", "ended"),
}
# Exit_status below zero: what ended a job instead of itself (OpenPBS, src/include/job.h).
_ENDS: Final = {
    **dict.fromkeys((-24, -25), "FAILED"),
    **dict.fromkeys((-26, -27), "OUT_OF_MEMORY"),
    **dict.fromkeys((-28, -29), "TIMEOUT"),
}
_TERMINATED = 91  # substate of a job that was deleted
_GONE = ("Unknown Job", "has finished")
_CHUNK = re.compile(r"([\w.-]+)(?:\[\d+\])?((?::\w+=[\w.]+)*)")  # of exec_vnode: "(n1:ncpus=8:ngpus=1+n2[0]:ncpus=4)"


class Pbs:
    """One PBS complex, as ``Scheduler``, through the client programs in ``clients`` (None: PATH).

    Job ids may come again, so a job of the same id from another directory is another job, and the run's own is unknown.
    """

    def __init__(self, clients: Path | None = None) -> None:
        self.clients = clients

    def submit(self, run_directory: Path, script: str) -> str:
        try:
            done = self._client("qsub", script, cwd=run_directory)
        except process.CommandTimeoutError as error:
            if job_id := self.find(run_directory):
                return job_id
            raise UnknownStateError(
                "qsub did not answer, and no job of this run is known to PBS",
                where=str(run_directory),
                fix="ask `status` again later; submit anew only when the queue is known not to hold it",
            ) from error
        if done.code != 0:
            raise NotAcceptedError(
                f"PBS did not accept the job: {done.last_lines(3)}",
                where=str(run_directory / script),
                fix="see the script and the site's limits (`qstat -Qf`)",
            )
        return done.out.strip()

    def find(self, run_directory: Path) -> str | None:
        return next((job_id for job_id, job in self._mine() if _work_directory(job) == str(run_directory)), None)

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """Finished jobs are included where the server keeps them. In what another user left, a job's id could name any
        server: that is asked for its number alone.
        """
        with suppress(OSError):
            if run_directory.stat().st_uid != os.geteuid():
                job_id = job_id.partition(".")[0]
        for job in self._jobs(job_id).values():
            if _work_directory(job) == str(run_directory):
                return _state(job)
        return JobState(phase="unknown")

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """By one listing of this user's jobs."""
        known = {_work_directory(job): _state(job) for _, job in self._mine()}
        return {run: known.get(str(run), JobState(phase="unknown")) for run in jobs}

    def cancel(self, job_id: str) -> None:
        done = self._client("qdel", job_id)
        if done.code != 0 and not any(word in done.err for word in _GONE):
            raise UnknownStateError(f"qdel failed: {done.last_lines(2)}", where=f"qdel {job_id}")

    def _mine(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Every job of this user that the server knows, with its id."""
        mine = self._client("qselect", "-x", "-u", getpass.getuser())
        if mine.code != 0:
            raise schedulers.no_answer("PBS", mine)
        ids = mine.out.split()
        return self._jobs(*ids).items() if ids else ()

    def _jobs(self, *ids: str) -> dict[str, Any]:
        done = self._client("qstat", "-x", "-f", "-F", "json", *ids)
        if done.code != 0 and any(word in done.err for word in _GONE):
            return {}
        if done.code != 0:
            raise schedulers.no_answer("PBS", done)
        try:
            jobs = json.loads(done.out, strict=False).get("Jobs", {})
        except ValueError as error:
            raise schedulers.no_answer("PBS", done) from error
        return jobs if isinstance(jobs, dict) else {}

    def _client(self, program: str, *options: str, cwd: Path | None = None) -> process.Completed:
        return schedulers.call_client("PBS", self.clients, program, *options, cwd=cwd)


def allocation(clients: Path | None, site: Site) -> Allocation | None:
    """The allocation of this shell (``qsub -I``), as schedulers.SchedulerModule has it."""
    job_id = os.environ.get("PBS_JOBID", "")
    if not job_id:
        return None
    try:
        job: dict[str, Any] = next(iter(Pbs(clients)._jobs(job_id).values()), {})
        listed = Path(os.environ.get("PBS_NODEFILE", "")).read_text(errors="replace").split()
    except (NotAcceptedError, OSError) as error:
        what = f"PBS_JOBID is set, but this is no shell of its job: {error}"
        raise RefusedError(what, where="PBS_JOBID", fix="run this in the shell of `qsub -I`") from error
    if job.get("job_state") != "R":
        raise RefusedError(
            f"allocation {job_id} is not running: {job.get('job_state') or 'PBS does not know it'}",
            where="PBS_JOBID",
            fix="get one with qsub -I, or `unset PBS_JOBID` and use `submit`",
        )
    has: dict[str, list[int]] = {}
    for host, resources in _CHUNK.findall(str(job.get("exec_vnode", ""))):
        held = has.setdefault(host, [0, 0])
        for at, name in enumerate(("ncpus", "ngpus")):
            held[at] += sum(int(number) for number in re.findall(rf":{name}=(\d+)", resources))
    if site.settings.takes_whole_nodes({}):
        has = {host: [site.node.cpus, site.node.gpus] for host in has}
    names = {host: next((each for each in listed if each.split(".")[0] == host.split(".")[0]), host) for host in has}
    return Allocation(job_id, tuple(AllocatedNode(names[host], *held) for host, held in has.items()))


def _work_directory(job: dict[str, Any]) -> str:
    variables = job.get("Variable_List")
    return str(variables.get("PBS_O_WORKDIR", "")) if isinstance(variables, dict) else ""


def _state(job: dict[str, Any]) -> JobState:
    """One job's state; the name of how it ended is the same for all schedulers (``TIMEOUT``)."""
    name, exit_status = str(job.get("job_state", "")), job.get("Exit_status")
    phase = _PHASES.get(name, "unknown")
    if phase == "ended" and isinstance(exit_status, int) and exit_status < 0:
        name = _ENDS.get(exit_status, "LAUNCH_FAILED")
    elif phase == "ended":
        ended = {None: "UNKNOWN", 0: "COMPLETED"}.get(exit_status, "FAILED")
        name = "CANCELLED" if job.get("substate") == _TERMINATED else ended
    return JobState(
        phase=phase,
        name=name,
        reason=str(job.get("comment", "")),
        nodes=str(job.get("exec_host", "")),
        exit_code=exit_status if isinstance(exit_status, int) and exit_status >= 0 else None,
    )
