"""A job: an existing allocation, its states, the records of its submission, and where its run comes from."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.plan import Finding


class AllocatedNode(msgspec.Struct, frozen=True):
    """What the allocation has of one node: schedulable CPUs, and GPUs."""

    name: str
    cpus: int
    gpus: int


class Allocation(msgspec.Struct, frozen=True):
    """One existing allocation.

    Attributes:
        nodes: in the scheduler's order.
        in_step: this process runs in one of its steps, which already uses the resources.
    """

    job_id: str
    nodes: tuple[AllocatedNode, ...]
    in_step: bool = False


class ListedLaunch(msgspec.Struct, frozen=True):
    """A launch in the script of a study's allocation.

    Attributes:
        directory: of its run, absolute.
        needs_s: it is begun only where so many seconds are left.
        first_node, nodes: which of the allocation's nodes it has.
        with_next: the next one in the list, which is on other nodes, runs at the same time.
    """

    directory: str
    needs_s: int
    first_node: int = 0
    nodes: int = 1
    with_next: bool = False


Phase = Literal["pending", "running", "ended", "unknown"]


class JobState(msgspec.Struct, frozen=True):
    """One answer of a scheduler about one job.

    Attributes:
        phase: what it means for waiting; ``unknown`` where the scheduler does not know the job (any more).
        name: the state's name as the scheduler gives it (``COMPLETED``, ``NODE_FAIL``); empty where unknown.
        reason: the scheduler's reason (why it pends, why it failed).
        nodes: the node list in the scheduler's notation.
        exit_code: of the batch script, where the scheduler says.
        allocated: what the job got, in the scheduler's notation (``cpu=8,gres/gpu:a100=4``); empty where unknown.
        partition, account: that the scheduler runs it in and charges; empty where it does not say.
        limit_s, elapsed_s: its time limit, and how long it has run; None where the scheduler does not say.
        start_s: of a job that waits, when the scheduler estimates its start, Unix time; None where it does not.
    """

    phase: Phase
    name: str = ""
    reason: str = ""
    nodes: str = ""
    exit_code: int | None = None
    allocated: str = ""
    partition: str = ""
    account: str = ""
    limit_s: int | None = None
    elapsed_s: int | None = None
    start_s: float | None = None


class SchedulerRecord(msgspec.Struct, frozen=True):
    """What a scheduler knows of a job, whatever has submitted it. Empty where it does not say.

    Attributes:
        script: that was submitted. directory: that it starts in. output, error: its files, absolute.
        submitted_s, started_s, ended_s: Unix times.
    """

    state: JobState
    name: str = ""
    script: str = ""
    directory: str = ""
    output: str = ""
    error: str = ""
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None


class Submitted(msgspec.Struct, frozen=True):
    """The record of a submission (``job.json``): enough to find the job again from any process.

    Attributes:
        job_id: empty until the scheduler has answered.
        refused: the scheduler's message where it did not accept the job.
        clients: directory of the scheduler's client programs; empty for PATH.
        script_sha256: of ``job.sh``, as submitted.
        submitted_s: Unix time.
        allocation: of a launch in a study's one allocation: the directory of that allocation's own job, whose job this
            is; empty for a job of its own.
        place: of a task of an array: the path by which the scheduler knows it, the task's number below the array's
            directory; empty for a job that was submitted from its run directory.
        estimated_s: when the scheduler estimated, at submission, that the job would start, Unix time; None where it
            was not asked, or did not say.
        record: of a job that runs a script of the user, as it is: what the scheduler says of it.
        by_attempt: of an attempt of a chain: the one before queues it, and leaves its number in ``job.id``.
    """

    scheduler: str
    job_id: str
    clients: str
    script_sha256: str
    submitted_s: float
    refused: str = ""
    allocation: str = ""
    place: str = ""
    estimated_s: float | None = None
    record: SchedulerRecord | None = None
    by_attempt: bool = False


class Cancelled(msgspec.Struct, frozen=True):
    """Who cancelled the job through this program (``cancelled.json``).

    Attributes:
        user: login name; host: where.
        time_s: Unix time.
    """

    user: str
    host: str
    time_s: float


class ExitMarker(msgspec.Struct, frozen=True):
    """What the batch script leaves when it ends (``exit.json``).

    Attributes:
        exit: the step's exit code; end_s: Unix time.
        why: what ended it (``TIMEOUT``, ``CANCELLED``, ``FAILED``), where only the script knows.
    """

    job: str
    exit: int
    end_s: float
    why: str = ""


class CommandLine(msgspec.Struct, frozen=True):
    """The command that submitted a run (``command.json``).

    Attributes:
        arguments: the command's name and its arguments, exactly as they were typed, for a reader; empty for a run from
            Python. Runs without ``request.json`` have no other record of what was asked for.
        directory: the working directory that relative paths among them mean.
        site: the site that was used where the arguments name none; empty where they do.
        rerun_of: id of the run that this one repeats; empty for none.
    """

    arguments: tuple[str, ...]
    directory: str
    site: str = ""
    rerun_of: str = ""


class Sweep(msgspec.Struct, frozen=True):
    """Runs that were submitted together (``sweep.json``). Never changed after it was written.

    Attributes:
        runs: number of each, from 1 -> name and value of what is its own.
        command: as of a run.
        is_chain: they are attempts at one job, of which each queues the next.
        sweep: its id, so that two that ask the same are two; empty in an older one.
    """

    runs: dict[str, dict[str, str]]
    command: CommandLine
    is_chain: bool = False
    sweep: str = ""
    schema: Literal["1"] = "1"


class CodeRecord(msgspec.Struct, frozen=True):
    """The user's code when a run was submitted (``code.json``), as git describes it.

    Attributes:
        repository: top directory of the git repository; empty where the program is in none.
        commit: of HEAD; empty for a repository without commits. branch: empty where HEAD is detached.
        dirty: tracked files, without documentation, differ from the commit; None where that is unknown.
        changed: these files, below the repository; at most 1000 of them.
        binary: of these, those that are not text. too_long: those whose diff did not fit. Neither is in the kept diff.
        redacted: number of places in the kept diff that looked like secrets and were replaced.
        diff_kept: ``code.diff`` has the difference.
        untracked: the program's own file, where git does not track it: the commit says nothing about it.
        problem: what could not be recorded, and why; empty if nothing. sources: SHA-256 of the index but documentation.
        other_sources: of it but documentation and Python.
    """

    repository: str = ""
    commit: str = ""
    branch: str = ""
    dirty: bool | None = None
    changed: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    too_long: tuple[str, ...] = ()
    redacted: int = 0
    diff_kept: bool = False
    untracked: str = ""
    problem: str = ""
    sources: str = ""
    other_sources: str = ""


class Source(msgspec.Struct, frozen=True):
    """A checkout of gpu-runner: its commit, and whether it had changes."""

    commit: str = ""
    dirty: bool = False


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a run comes from besides its command line and its code (``provenance.json``). No environment: it may hold
    secrets, and the plan has its result.

    Attributes:
        runner: version of gpu-runner. source: its checkout; null where it was installed. python: that it ran on.
        directory, host: where it was submitted.
        findings: of the checks. unconfirmed: keys of the site's facts that the job uses and are unconfirmed.
        versions: of the runtime and the scheduler, once the run was judged.
        environment: of the shell that submitted a script as it is: its modules, its environment's directory.
    """

    runner: str = ""
    source: Source | None = None
    python: str = ""
    directory: str = ""
    host: str = ""
    scheduler: str = ""
    runtime: str = ""
    findings: tuple[Finding, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}

    @property
    def gpu_runner(self) -> str:
        """Version and commit of gpu-runner."""
        return f"{self.runner} {self.source.commit[:12] if self.source else ''}".strip()


class NodeShare(msgspec.Struct, frozen=True):
    """A node that ranks of a run began on.

    Attributes:
        ranks: those on it. gpus: numbers of the node's GPUs that they had; empty where nothing said.
    """

    name: str
    ranks: tuple[int, ...]
    gpus: tuple[int, ...] = ()
