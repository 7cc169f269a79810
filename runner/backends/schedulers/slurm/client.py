"""Slurm's clients: submit, one state query, cancel, and what its messages mean. Every call is bounded.

Sources of the messages: slurm_errno.c and ``job_reason_string`` of Slurm 22.05 to 26.05; squeue(1), "JOB REASON CODES".
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from runner.backends import schedulers
from runner.core import paths, process
from runner.core.errors import NotAcceptedError, RefusedError, UnknownStateError
from runner.core.invocation import PROGRAM
from runner.core.text import clock_s, gpus_text
from runner.model.job import AllocatedNode, Allocation, JobState, Phase, SchedulerRecord
from runner.model.plan import Plan
from runner.model.site import Site

_MINE = "`sacctmgr show associations user=$USER format=cluster,account%30,partition,qos%40` lists yours"
_REFUSALS: Final = (
    (r"invalid account", f"name an account of yours with --account; {_MINE}"),
    (r"invalid qos", f"name a QOS that your account may use, with --queue or --qos; {_MINE}"),
    (
        r"violates accounting/qos policy",
        "ask for fewer GPUs or less time, or use another account or QOS; "
        "`sacctmgr show qos format=name,maxwall,maxtres%40,maxtrespu%40,maxjobspu` lists the limits",
    ),
    (r"invalid partition|group not permitted", "name another with --queue; `sinfo --summarize` lists them"),
    (r"requested time limit", "ask for less with --time; `sinfo --format='%P %l'` lists the limits"),
    (r"node count specification", "ask for as many nodes as the partition takes; `scontrol show partition` says"),
    (
        r"invalid feature",
        "no node has what --constraint, or the site file, names; `sinfo --format='%P %f'` lists features",
    ),
    (r"dependency problem", "write afterok:RUN, or afterany, afternotok, after; several with commas between"),
    (r"reservation is invalid", "name one that you may use; `scontrol show reservation` lists them"),
    (r"error: invalid --[a-z-]+ specification", "correct the value of that option; sbatch(1) has its forms"),
    (
        r"requested node configuration",
        "no node has so many GPUs or CPUs, so much memory, or such a GPU; `sinfo --format='%P %D %c %m %G %f'` says",
    ),
    (
        r"failed to initialize plugin stack|plug-in initialization failed|dlopen of plugin file failed",
        "the cluster's plugin configuration (plugstack.conf) is broken: show these lines to the administrator; "
        "no job can be submitted until it is corrected",
    ),
    (
        r"unrecognized option|unknown option",
        "the cluster's sbatch has no such option: the runtime is not installed there or its plugin is not loaded "
        "(ask the administrator; --runtime names another), or -S or the site's file has misspelt one",
    ),
)
_OF_SIZE = r"more processors requested than permitted|node count specification|requested node configuration"
_ANY_REFUSAL = "see the script and the site's limits (`sinfo`, `scontrol show partition`)"

_LIMITED: Final = {
    **{"GRES": "GPUs", "GRESMinutes": "GPU time", "GRESRunMinutes": "GPU time of running jobs"},
    **{"Cpu": "CPUs", "CPUS": "CPUs", "CPUMinutes": "CPU time", "CPURunMinutes": "CPU time of running jobs"},
    **{"Mem": "memory", "Memory": "memory", "Node": "nodes", "Nodes": "nodes", "Jobs": "jobs at once"},
    **dict.fromkeys(("Submit", "SubmitJobs"), "jobs in the queue"),
    **{"Wall": "time", "WallDuration": "time", "Billing": "billing units"},
}
_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)([A-Z][A-Za-z]*?)(?:Limit|PerJob|PerUser|PerAccount|PerNode)*\Z")
_WAITS: Final = {
    "Priority": "jobs of a higher priority come first",
    "Resources": "the nodes that it needs are busy",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on did not end as required: it will never start; cancel it",
    "BeginTime": "its start time has not come",
    "InvalidAccount": "its account is not (or no longer) one of yours: it will never start; cancel it",
    "InvalidQOS": "its QOS is not (or no longer) one of yours: it will never start; cancel it",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives: it will never start; cancel it",
    "PartitionTimeLimit": "it asks for more time than the partition gives: it will never start; cancel it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is down",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "JobHeldAdmin": "an administrator holds it back",
    "user_env_retrieval_failed_requeued_held": "the login shell that Slurm starts on the node because of --export=NONE "
    "failed or was too slow. `scontrol release` tries again; or cancel it, and submit with `slurm: {export: nil}` in "
    "the site file, which starts none",
    "JobHeldUser": "its user holds it back (scontrol release)",
    "Licenses": "it waits for a licence",
}

# Every state of slurm.h's job_states and flags (Slurm 22.05 to 26.05). What is not listed is unknown, never success.
_STATES: Final[dict[Phase, str]] = {
    "pending": "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD",
    "running": "RUNNING COMPLETING SUSPENDED RESIZING SIGNALING STAGE_OUT STOPPED EXPEDITING POWER_UP_NODE",
    "ended": "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE REVOKED "
    "SPECIAL_EXIT LAUNCH_FAILED RECONFIG_FAIL",
}
_PHASES: Final = {name: phase for phase, names in _STATES.items() for name in names.split()}

# Variables of the user's shell that shape what Slurm's clients do: an existing allocation must not shape a new job, and
# squeue would leave jobs out (SQUEUE_PARTITION).
_SHAPING = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_", "PYXIS_")
# Messages of a client that has sent its request and lost the answer (slurm_errno.c): the request may have succeeded.
_ANSWER_LOST = r"(?i)timed out|zero bytes were transmitted|\((send|receive|shutdown) failure\)|connection reset"
# Of an allocation's job, as scontrol shows it in detail.
_ALLOCATED = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=(\S+) Mem=\d+ GRES=(\S*)", re.MULTILINE)
_GPUS = re.compile(r"\bgpu:(?:[^:,(]+:)?(\d+)")  # of GRES: gpu:a100:8(S:0-1), gpu:8
_ESTIMATE_S = 5.0  # a submission does not wait longer for an estimate
_DIRECTIVE = re.compile(r"^#SBATCH --(nodes|partition)=(\S+)$", re.MULTILINE)


class Slurm:
    """One Slurm cluster, as ``Scheduler``, through the client programs in ``clients`` (None: PATH).

    Job ids come again, so a job of the same id from another directory is another job, and the run's own is unknown.
    A task of an array (``12_3``) was submitted from the array's directory, and is known by the path ``3`` below it.
    """

    def __init__(self, clients: Path | None = None) -> None:
        self.clients = clients

    def submit(self, run_directory: Path, script: str) -> str:
        """Where sbatch does not answer in time, or did not hear the controller's answer, Slurm may have the job: it is
        looked for by its working directory, which no other job has, so that nothing is submitted twice. The job may get
        sbatch's environment (--export).
        """
        env, sbatch = _environment(), "sbatch"
        others = paths.for_other_machines(env)
        if others != env and not schedulers.are_nodes_this_machine("slurm", self.clients, env):
            env, sbatch = others, sbatch if self.clients else _whole(sbatch)
        try:
            done = self._client(sbatch, "--parsable", script, cwd=run_directory, env=env)
        except process.CommandTimeoutError:
            return self._accepted_job(run_directory, "sbatch did not answer")
        if done.code == 0:
            return done.out.strip().split(";")[0]
        if re.search(_ANSWER_LOST, done.err):
            return self._accepted_job(run_directory, done.last_lines(1))
        raise NotAcceptedError(
            f"Slurm did not accept the job: {done.last_lines(3)}",
            where=str(run_directory / script),
            fix=self._too_few_nodes(done.err, run_directory / script)
            or self._accounts(done.err)
            or self._partitions(done.err)
            or fix(done.err),
        )

    def _accounts(self, refusal: str) -> str:
        """This user's accounts, where the job's was refused; empty where it was not, or they are unknown."""
        if not re.search("invalid account", refusal, re.IGNORECASE):
            return ""
        with suppress(KeyError, OSError):  # a user id without a name
            words = ("show", "associations", f"user={getpass.getuser()}", "format=Account")
            if yours := self._names("sacctmgr", "--noheader", "--parsable2", *words):
                return f"--account with one of yours, or another partition (--queue); yours: {', '.join(yours)}"
        return ""

    def _partitions(self, refusal: str) -> str:
        """The cluster's partitions, where the job's is none; empty where it is, or they are unknown."""
        is_none = re.search("invalid partition", refusal, re.IGNORECASE)
        names = self._names("sinfo", "--noheader", "--format=%R") if is_none else ()
        return f"--queue with one of this cluster's: {', '.join(names)}" if names else ""

    def _names(self, *words: str) -> Sequence[str]:
        """The words that a client prints, each once; none where it does not answer well."""
        with suppress(NotAcceptedError, process.CommandTimeoutError):
            done = self._client(*words)
            return list(dict.fromkeys(done.out.split())) if done.code == 0 else ()
        return ()

    def estimate(self, run_directory: Path, script: str) -> float | None:
        """By a trial of sbatch's, which submits nothing."""
        try:
            done = self._client("sbatch", "--test-only", script, cwd=run_directory, timeout_s=_ESTIMATE_S)
        except (NotAcceptedError, process.CommandTimeoutError):
            return None
        said = re.search(r"to start at (\S+)", f"{done.out}\n{done.err}")
        return _time_s(said[1]) if said and done.code == 0 else None

    def _too_few_nodes(self, refusal: str, script: Path) -> str:
        """The nodes that a refused job asks for and those that there are; empty where it asks for no more."""
        if not re.search(_OF_SIZE, refusal, re.IGNORECASE):
            return ""
        requested = dict(_DIRECTIVE.findall(script.read_text("utf-8", "surrogateescape")))
        partition = (f"--partition={requested['partition']}",) if "partition" in requested else ()
        nodes = self._names("sinfo", "--noheader", "--Node", "--format=%N|%G", *partition)
        return more_than_there_is(int(requested.get("nodes", 0)), nodes)

    def _accepted_job(self, run_directory: Path, why: str) -> str:
        job_id = self.find(run_directory)
        if job_id:
            return job_id
        raise UnknownStateError(
            f"{why}, and no job of this run is in the queue",
            where=str(run_directory),
            fix=f"ask `{PROGRAM} status {run_directory.name}` again later; "
            "submit anew only when the queue is known not to hold it",
        )

    def find(self, run_directory: Path) -> str | None:
        """Also of an array, by its directory."""
        wanted = str(run_directory)
        for job_id, _, _, directory in self._queue([run_directory]):
            if directory == wanted:
                return job_id
            if "_" in job_id and directory.rpartition("/")[0] == wanted:
                return job_id.partition("_")[0]
        return None

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """By the controller, then by accounting where there is any."""
        done = self._client("scontrol", "show", "job", job_id)
        if done.code == 0 and "JobState=" in done.out:
            if _of_others(_SHOWN_OWNER.findall(done.out), _owners([run_directory])):
                return JobState(phase="unknown")
            answer = _telling(done.out.split("\n\n"), r"JobState=(\S+)")
            state = _from_scontrol(answer, run_directory.parent if "_" in job_id else run_directory)
            if state.name == "CANCELLED":  # the controller does not say by whom; accounting does, where there is any
                with suppress(UnknownStateError):
                    accounted = self._accounted(job_id, run_directory)
                    if accounted.name == state.name:
                        return msgspec.structs.replace(state, reason=accounted.reason)
            return state
        if not re.search(r"Invalid job id|Job \d+_\d+ not found", done.err + done.out):  # of a task, on stdout
            raise schedulers.no_answer("Slurm", done)
        return self._accounted(job_id, run_directory)

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """The queue once, and accounting once for those not in it. Why a job waits is Slurm's own word alone. By
        directory and number: anybody's job may name any directory.
        """
        numbers = {str(run): job_id.partition("_")[0] for run, job_id in jobs.items()}

        def is_meant(job_id: str, directory: str) -> bool:
            return numbers.get(directory) in ("", job_id.partition("_")[0])

        queued = {run: _state_of(name, why) for job, name, why, run in self._queue(jobs) if is_meant(job, run)}
        gone = [job_id for run, job_id in jobs.items() if job_id and str(run) not in queued]
        accounted = self._accounting(gone, jobs) if gone else []
        ended = {run: _state_of(name.partition(" by ")[0]) for job, name, _, _, run in accounted if is_meant(job, run)}
        known = ended | queued
        return {run: known.get(str(run), _state_of("")) for run in jobs}

    def cancel(self, job_id: str) -> None:
        done = self._client("scancel", job_id)
        if done.code != 0 and "Invalid job id" not in done.err and "already completing" not in done.err:
            raise UnknownStateError(f"scancel failed: {done.last_lines(2)}", where=f"scancel {job_id}")

    def _accounted(self, job_id: str, run_directory: Path) -> JobState:
        whole = "" if "_" in job_id else f"{run_directory}/"  # of an array its tasks
        rows = [
            "|".join(row)
            for row in self._accounting([job_id], [run_directory])
            if row[-1] in (str(run_directory), whole and whole + row[0].partition("_")[2])
        ]
        if not rows:
            return JobState(phase="unknown")
        _, state, code, nodes, _ = _telling(rows, r"\|(\w+)").split("|", 4)
        name, _, by = state.partition(" by ")  # "CANCELLED by 1000"
        reason = f"by uid {by}" if by else ""
        return JobState(_PHASES.get(name, "unknown"), name, reason, _nodes(nodes), _exit_code(code))

    def _accounting(self, job_ids: Iterable[str], runs: Iterable[Path]) -> list[tuple[str, ...]]:
        """Id, state, exit code, nodes and directory of each of these jobs that accounting knows of the owners of these
        directories, the oldest first.
        """
        fields = "JobID,State,ExitCode,NodeList,WorkDir"
        options = ("--noheader", "--parsable2", "--allocations", f"--format={fields}", f"--jobs={','.join(job_ids)}",
                   _by_user(runs))  # fmt: skip
        try:
            done = self._client("sacct", *options)
        except NotAcceptedError:  # a site may well have no accounting client
            return []
        return [row for row in _rows(done.out, 5) if row[1]] if done.code == 0 else []

    def _queue(self, runs: Iterable[Path]) -> list[tuple[str, ...]]:
        """Id, state, reason and directory of each job that the controller knows of the owners of these directories:
        others may give theirs any directory, and lines of their own in its name.
        """
        options = ("--all", "--array", "--format=%i|%T|%r|%Z", "--states=all")
        done = self._client("squeue", "--noheader", *options, _by_user(runs))
        if done.code != 0:
            raise schedulers.no_answer("Slurm", done)
        return _rows(done.out, 4)

    def _client(
        self,
        program: str,
        *options: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> process.Completed:
        env = env or _environment()
        return schedulers.call_client("Slurm", self.clients, program, *options, cwd=cwd, env=env, timeout_s=timeout_s)


def _owners(runs: Iterable[Path]) -> set[int]:
    """This user, and the owners of these directories."""
    owners = {os.geteuid()}
    for run in runs:
        with suppress(OSError):
            owners.add(run.stat().st_uid)
    return owners


def _by_user(runs: Iterable[Path]) -> str:
    return f"--user={','.join(map(str, sorted(_owners(runs))))}"


# Whose a job is. What its owner has named is printed as it is, and may hold lines of another's; the true one is always
# among them. So all must be right.
_SHOWN_OWNER = re.compile(r"UserId=(.*?\([0-9]{1,10}\))")
_ACCOUNTED_OWNER = re.compile(r"^[^\x1f\n]*\x1f([0-9]{1,10})\x1f", re.MULTILINE)


def _of_others(named: Iterable[str], owners: set[int]) -> str:
    """The last of these names of owners, with or without a number in parentheses, that is none of ``owners``."""
    others = [each for each in named if int(each.rpartition("(")[2].rstrip(")")) not in owners]
    return others[-1] if others else ""


# Of a job's record: sacct's name of a field -> scontrol's; and those that a user can name, which end their lines.
_RECORDED = {
    **{"JobIDRaw": "JobId", "UID": "UserId", "State": "JobState", "ExitCode": "ExitCode", "NodeList": "NodeList"},
    **{"AllocTRES": "TRES", "Submit": "SubmitTime", "Start": "StartTime", "End": "EndTime"},
    **{"JobName": "JobName", "WorkDir": "WorkDir"},
}
_NAMED = ("JobName", "WorkDir", "Command", "StdOut", "StdErr")


def record(clients: Path | None, job_id: str) -> SchedulerRecord | None:
    """See ``SchedulerModule``: by the controller, then by accounting where there is any."""
    slurm = Slurm(clients)
    done = slurm._client("scontrol", "show", "job", job_id)
    known = dict.fromkeys((*_RECORDED.values(), *_NAMED), "")
    owners = _SHOWN_OWNER.findall(done.out)
    if done.code == 0 and "JobState=" in done.out:
        answer = _telling(done.out.split("\n\n"), r"JobState=(\S+)")
        for name in known:
            value = ".*" if name in _NAMED else r"\S*"
            # What a person has named stands at the end of the first line, and may look like anything.
            first = r"|JobId=\S+ (?:\S+ )*?" if name == "JobName" else ""
            match = re.search(rf"^(?: +(?:\S+ )*?{first})?{name}=({value})", answer, re.MULTILINE)
            known[name] = match[1] if match else ""
        state = _from_scontrol(answer, Path(known["WorkDir"]))
        if host := re.search(r"^ +BatchHost=([^\s.]+)", answer, re.MULTILINE):  # which scontrol does not fill in
            known |= {name: known[name].replace("%N", host[1]).replace("%n", "0") for name in ("StdOut", "StdErr")}
    elif "Invalid job id" not in done.err:
        raise schedulers.no_answer("Slurm", done)
    else:
        options = ("--noheader", "--parsable2", "--allocations", "--delimiter=\x1f", f"--format={','.join(_RECORDED)}")
        try:
            rows = slurm._client("sacct", *options, f"--jobs={job_id}").out
        except NotAcceptedError:  # a site may well have no accounting client
            rows = ""
        owners = _ACCOUNTED_OWNER.findall(rows)
        if not rows.strip():
            return None
        at = list(_RECORDED).index("State")
        row = _telling(rows.split("\n"), rf"(?:[^\x1f]*\x1f){{{at}}}(\w+)")
        known |= zip(_RECORDED.values(), row.split("\x1f"), strict=False)
        name, _, by = known["JobState"].partition(" by ")
        nodes, code = _nodes(known["NodeList"]), _exit_code(known["ExitCode"])
        state = JobState(_PHASES.get(name, "unknown"), name, by and f"by uid {by}", nodes, code, known["TRES"])
    other = _of_others(owners, {os.geteuid()})
    if other or not owners:
        what = f"job {job_id} is another user's: {other or 'whose is unknown'}"
        raise RefusedError(what, where=f"job {job_id}", fix="name a job of your own: `squeue --me` lists them")
    return SchedulerRecord(
        state,
        name=known["JobName"],
        script=_nodes(known["Command"]),
        directory=known["WorkDir"],
        output=known["StdOut"],
        error=known["StdErr"],
        submitted_s=_time_s(known["SubmitTime"]),
        started_s=_time_s(known["StartTime"]) if state.nodes else None,
        ended_s=_time_s(known["EndTime"]) if state.phase == "ended" else None,
    )


def _telling(jobs: Sequence[str], state: str) -> str:
    """Of an array's tasks, or the parts of a job, one that has not ended; else one that did not end well; else the
    last. ``state``: the pattern of its state.
    """

    def rank(job: str) -> tuple[bool, bool]:
        name = match[1] if (match := re.search(state, job)) else "COMPLETED"
        return _PHASES.get(name) == "ended", name == "COMPLETED"

    return min(reversed([job for job in jobs if job.strip()]), key=rank)


def submit_script(clients: Path | None, script: str, arguments: Sequence[str]) -> str:
    """See ``SchedulerModule``: with all variables of this shell, as sbatch itself."""
    try:
        done = schedulers.call_client("Slurm", clients, "sbatch", "--parsable", script, *arguments)
    except process.CommandTimeoutError:
        advice = "`squeue --me` shows whether it did; submit again only if not"
        raise UnknownStateError("sbatch did not answer: Slurm may have the job", where=script, fix=advice) from None
    if done.code != 0:
        raise NotAcceptedError(f"Slurm did not accept the job: {done.last_lines(3)}", where=script, fix=fix(done.err))
    return done.out.strip().split(";")[0]


def beside(
    clients: Path | None,
    job_id: str,
    node: str,
    words: Sequence[str],
    *,
    plan: Plan | None,
    terminal: bool,
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """See SchedulerModule: a step that shares all that the job has on that node (srun(1): without ``--exact``). Unless
    ``--unbuffered``, Slurm holds output back until its line ends.
    """
    srun = _whole("srun") if clients is None else str(clients / "srun")
    if "_" in job_id:  # of an array: srun takes the job's own number alone
        asked = Slurm(clients)._client("squeue", "--noheader", f"--jobs={job_id}", "--format=%A")
        job_id = asked.out.strip() or job_id
    where = f"--nodelist={node}" if node else "--relative=0"
    step = ("--overlap", "--nodes=1", "--ntasks=1", where, "--mpi=none", "--quiet")
    words = (srun, f"--jobid={job_id}", *step, "--pty" if terminal else "--unbuffered", *words)
    return words, paths.for_other_machines(_environment())


def _whole(program: str) -> str:
    """Its path, by which it is run with another PATH."""
    return str(process.find(program) or program)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not name.startswith(_SHAPING)}


def array_size(clients: Path | None) -> int:
    """One less than MaxArraySize, which no task's number reaches (slurm.conf(5))."""
    done = schedulers.call_client("Slurm", clients, "scontrol", "show", "config")
    if done.code != 0:
        raise schedulers.no_answer("Slurm", done)
    size = re.search(r"^MaxArraySize\s*=\s*(\d+)$", done.out, re.MULTILINE)
    return max(0, int(size[1]) - 1) if size else 0


def allocation(clients: Path | None, _site: Site) -> Allocation | None:
    """The allocation whose number is in SLURM_JOB_ID; None where there is no such variable. Raises RefusedError: it has
    ended, or has not begun; UnknownStateError: Slurm does not answer.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return None

    def scontrol(*words: str) -> process.Completed:
        try:
            return schedulers.call_client("Slurm", clients, "scontrol", *words)
        except NotAcceptedError as error:
            what = "SLURM_JOB_ID is set, but scontrol was not found"
            raise RefusedError(what, where="PATH", fix="run this on a Slurm host") from error

    job = scontrol("--details", "show", "job", job_id)
    state = re.search(r"^ +JobState=(\S+)", job.out, re.MULTILINE)
    if job.code != 0 and "Invalid job id" not in job.err:
        raise UnknownStateError(f"Slurm does not answer: {job.last_lines(2)}", where=f"scontrol show job {job_id}")
    if state is None or state[1] != "RUNNING":
        raise RefusedError(
            f"allocation {job_id} is not running: {state[1] if state else 'Slurm does not know it'}",
            where="SLURM_JOB_ID",
            fix="get one with salloc, or `unset SLURM_JOB_ID` and use `submit`",
        )
    nodes = [
        AllocatedNode(name, cpus=_count(cpu_ids), gpus=_gpu_count(gres))
        for names, cpu_ids, gres in _ALLOCATED.findall(job.out)
        for name in scontrol("show", "hostnames", names).out.split()
    ]
    in_step = os.environ.get("SLURM_STEP_ID", "").isdigit()
    return Allocation(job_id, tuple(sorted(nodes, key=lambda node: node.name)), in_step)


def fix(refusal: str) -> str:
    """What to do about a refusal of sbatch."""
    return next((advice for words, advice in _REFUSALS if re.search(words, refusal, re.IGNORECASE)), _ANY_REFUSAL)


def more_than_there_is(nodes: int, listing: Sequence[str]) -> str:
    """What to do where a job asks for more nodes than there are; empty where it does not.

    Args:
        listing: ``NODE|GRES`` for each node, as ``sinfo --Node --format='%N|%G'`` prints it.
    """
    gpus = {name: _gpu_count(gres) for name, _, gres in (row.partition("|") for row in listing)}
    if not gpus or nodes <= len(gpus):
        return ""
    there = f"{len(gpus)} ({gpus_text(sum(gpus.values()))})"
    return f"the job needs {nodes} nodes; this cluster has {there}: request no more"


def explained(reason: str) -> str:
    """A reason for waiting with what it means: ``AssocGrpGRES: ...``; the reason alone where it is not listed.

    A ``Grp`` limit is used up by other jobs and is free again when they end. A ``Max`` limit of a single job is
    refused or waits for ever; one per user is free again, too.
    """
    meaning = _WAITS.get(reason.partition(",")[0], "")
    if not meaning and (match := _LIMIT.match(reason)):
        owner = "account" if match[1] == "Assoc" else "QOS"
        what = _LIMITED.get(match[3], "")
        limit = f"the {owner}'s limit on {what}" if what else f"a limit of the {owner}"
        if "PerJob" in reason:
            meaning = f"it asks for more than {limit} of one job: it will never start; cancel it"
        else:
            meaning = (
                f"{limit} is reached: it starts when jobs under the same {owner} end, or never if it alone is too large"
            )
    return f"{reason}: {meaning}" if meaning else reason


def _from_scontrol(answer: str, run_directory: Path) -> JobState:
    """One job's state out of ``scontrol show job``. Lines are distinguished by their beginnings: what a user can name
    (a directory, a comment) may look like any field, but is preceded by its own name.
    """

    def field(pattern: str) -> str:
        match = re.search(f"^ +{pattern}", answer, re.MULTILINE)
        return match[1] if match else ""

    if field("WorkDir=(.*)$") != str(run_directory):
        return JobState(phase="unknown")
    name, nodes = field(r"JobState=(\S+)"), _nodes(field(r"NodeList=(\S*)"))
    phase = _PHASES.get(name, "unknown")
    account = field(r"Priority=.* Account=(\S+)")
    reason = field(r"JobState=\S+ Reason=(\S+)")
    if reason == "None":
        reason = ""
    return JobState(
        phase=phase,
        name=name,
        reason=explained(reason) if phase == "pending" else reason,
        nodes=nodes,
        exit_code=_exit_code(field(r"Requeue=.* ExitCode=(\S+)")),
        allocated=_nodes(field(r"(?:Alloc)?TRES=(\S+)")) if nodes else "",
        partition=field(r"Partition=(\S+)"),
        account="" if account == "(null)" else account,
        limit_s=clock_s(field(r"RunTime=\S+ TimeLimit=(\S+)")),
        elapsed_s=clock_s(field(r"RunTime=(\S+)")) if phase != "pending" else None,
        start_s=_time_s(field(r"StartTime=(\S+)")) if phase == "pending" else None,
    )


def _time_s(text: str) -> float | None:
    """Unix time of Slurm's ``2026-11-23T20:31:05``, in this machine's time zone; None for ``Unknown``, ``N/A``."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _state_of(name: str, reason: str = "") -> JobState:
    phase = _PHASES.get(name, "unknown")
    return JobState(phase, name, reason if phase == "pending" and reason != "None" else "")


def _rows(listing: str, fields: int) -> list[tuple[str, ...]]:
    """The fields of each line: first the job's id, last its directory, that of a task with its number."""
    rows = [(*line.split("|", fields - 1), *[""] * fields)[:fields] for line in listing.splitlines()]
    return [(*row[:-1], f"{row[-1]}/{task}" if (task := row[0].partition("_")[2]) else row[-1]) for row in rows]


def _nodes(field: str) -> str:
    """A list of nodes; empty for a job that never had any, by scontrol and by sacct."""
    return "" if field in ("(null)", "None assigned") else field


def _exit_code(field: str) -> int | None:
    """Slurm's ``CODE:SIGNAL``."""
    code = field.partition(":")[0]
    return int(code) if code.isdigit() else None


def _gpu_count(gres: str) -> int:
    return sum(map(int, _GPUS.findall(gres)))


def _count(ids: str) -> int:
    """How many numbers Slurm's ``0-63,128-191`` names."""
    ranges = [part.partition("-") for part in ids.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
