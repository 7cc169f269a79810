"""What a run has left, read out of its directory, and which node each of its ranks ran on."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest

import msgspec

from runner.core import files
from runner.diagnosis import logs
from runner.diagnosis.logs import ContainerFault, NcclLog
from runner.jobs.directory import NODES, PLAN, RESULT, VERSIONS, Run, decoded
from runner.model.backends import SCHEDULERS, run_runtime
from runner.model.job import Cancelled, ExitMarker, JobState
from runner.model.plan import Plan
from runner.model.records import ExitRecord, MeterRecord, NodeRecord, Report, Result, StartRecord


def nodes_of(starts: Mapping[int, StartRecord], tasks_per_node: tuple[int, ...]) -> dict[int, str]:
    """The node of each rank that has started, by a name that is its own.

    Host names don't tell: nodes may share one, and a container may give each rank a name of its own. So the scheduler's
    name of the node counts, then the kernel's boot id, then the host name; what is an identity of nodes only where
    every rank has it, and first what fits the planned ``tasks_per_node``: one kernel may carry several nodes
    (containers that are handed out as nodes). The name is the host's, where that tells the nodes apart.
    """

    def has_no_more_than_planned(nodes: Mapping[int, str]) -> bool:
        counts = sorted(Counter(nodes.values()).values(), reverse=True)
        return all(n <= room for n, room in zip_longest(counts, sorted(tasks_per_node, reverse=True), fillvalue=0))

    hosts = {rank: start.host for rank, start in starts.items()}
    each_by = [
        {rank: start.node_name for rank, start in starts.items() if start.node_name},
        {rank: start.boot_id for rank, start in starts.items() if start.boot_id},
        {rank: host for rank, host in hosts.items() if host},
    ]
    complete = [nodes for nodes in each_by if len(nodes) == len(starts)]
    chosen = next(filter(has_no_more_than_planned, complete), next(iter(complete), hosts))
    hosts_of: dict[str, set[str]] = {}
    identities_of: dict[str, set[str]] = {}
    for rank, identity in chosen.items():
        hosts_of.setdefault(identity, set()).add(hosts[rank])
        identities_of.setdefault(hosts[rank], set()).add(identity)
    names = {}
    for identity, named in hosts_of.items():
        (host, *others) = sorted(named)
        if identity in named:
            names[identity] = identity
        elif others:
            names[identity] = identity[:8]
        else:
            names[identity] = host if len(identities_of[host]) == 1 else f"{host} ({identity[:8]})"
    return {rank: names[identity] for rank, identity in chosen.items()}


_LOG_BYTES = 50_000  # of the end of a log
_LINE_LENGTH = 1000  # of a line of it: what is longer says no more, and costs patterns their square
_NCCL_BYTES = 1 << 19  # of each process: hundreds of connections
_VERSION = re.compile(r"\d+(\.\d+)+[-+~.\w]*")
_NODES_BYTES = 1 << 20  # a line for each
_FULL_BYTES = 1 << 16  # with less room than this no log or record can be written
_BATCH = "logs/batch.err"
_NODE_LOG = re.compile(r"node-.*\.log\Z", re.DOTALL)
_RANKS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")  # of srun: "3", "0-2"


@dataclass(frozen=True)
class Evidence:
    """All that is known of a run that has ended.

    Attributes:
        state: the scheduler's last state of the job.
        forced: codes of the checks that refused the plan and were overridden.
        marker: what the batch script left; None if it left nothing.
        starts, exits, reports: records by rank.
        damaged: files that are there but cannot be read as what they should be, each with the reason.
        batch_line: the last line of the batch script's log that reports an error, and no consequence of one where there
            is another; empty for none.
        rank_lines: of the logs of each rank that failed or left no exit record, the line that says most; the
            last one where that is their step's end or the loss of their image.
        rank_quotes: of these ranks what the verdict quotes: the log's name, and that line; or the telling one before
            such an end.
        node_lines: the last line of what was run once a node before the ranks, by node.
        task_ends: what srun reports of ranks that failed, in its order; task_nodes: the node of each, where it says so.
        hosts: the job's nodes in the order in which the ranks fill them; empty where the script left no list.
        versions: of the scheduler and of what ran the containers, by name and node; of the first node, which comes
            first, the name may be empty.
        failed_nodes: nodes that srun reports as failed.
        cancelled: who cancelled the job by ``cancel`` or Ctrl-C; None if it was not cancelled so.
        plan_sha256: of the plan.json in the run directory; empty where it cannot be read.
        disk_full: there is no room left for anything in the run directory.
        watched: what the nodes' watchers read, by node; those that are missing or cannot be read tell nothing.
        meters: what the meters of a user's program left, by rank; those that cannot be read tell nothing.
        nccl: what NCCL's logs say, of all ranks together.
        container_faults: why containers did not start, by the log of each rank that did not start, of each node where
            something was made ready before the ranks, and of the batch script.
    """

    plan: Plan
    state: JobState
    forced: tuple[str, ...] = ()
    marker: ExitMarker | None = None
    starts: dict[int, StartRecord] = field(default_factory=dict)
    exits: dict[int, ExitRecord] = field(default_factory=dict)
    reports: dict[int, Report] = field(default_factory=dict)
    result: Result | None = None
    damaged: tuple[str, ...] = ()
    batch_line: str = ""
    rank_lines: dict[int, str] = field(default_factory=dict)
    rank_quotes: dict[int, str] = field(default_factory=dict)
    node_lines: dict[str, str] = field(default_factory=dict)
    container_faults: tuple[ContainerFault, ...] = ()
    watched: dict[int, NodeRecord] = field(default_factory=dict)
    meters: dict[int, MeterRecord] = field(default_factory=dict)
    nccl: NcclLog = field(default_factory=NcclLog)
    task_ends: dict[int, str] = field(default_factory=dict)
    task_nodes: dict[int, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    failed_nodes: tuple[str, ...] = ()
    cancelled: Cancelled | None = None
    plan_sha256: str = ""
    disk_full: bool = False

    @cached_property
    def nodes(self) -> dict[int, str]:
        """The node of each rank that has started."""
        return nodes_of(self.starts, self.plan.tasks_per_node)

    @property
    def has_older_records(self) -> bool:
        """Records of the first version: they hold neither a figure nor clocks by today's rules."""
        schemas = {start.schema for start in self.starts.values()} | {ended.schema for ended in self.exits.values()}
        return "1" in schemas | {report.schema for report in self.reports.values()}


def collect(run: Run, state: JobState) -> Evidence:
    """The evidence in a run directory. Raises UsageError: the plan cannot be read, so there is nothing to hold the
    records against.
    """
    plan = run.needed_plan()
    damaged: list[str] = []
    records = run.records
    there = records.listing()
    starts = records.records("start", StartRecord, there.get("start", ()), damaged)
    exits = records.records("exit", ExitRecord, there.get("exit", ()), damaged)
    reports = records.records("report", Report, there.get("report", ()), damaged)
    damaged.sort()
    # Of these, one that is damaged is as good as none.
    watched = records.records("node", NodeRecord, there.get("node", ()))
    meters = records.records("meter", MeterRecord, there.get("meter", ()))
    ends = _task_ends(run)
    failed = (rank for rank in range(plan.tasks) if rank not in exits or exits[rank].status != 0)
    told = {rank: pair for rank in failed if (pair := _telling(run, rank, exits.get(rank)))[1]}
    batch, disk = _lines(run, _BATCH), os.statvfs(run.path)
    return Evidence(
        plan=plan,
        forced=plan.forced,
        state=state,
        marker=run.marker,
        starts=starts,
        exits=exits,
        reports=reports,
        result=_result(run, plan, damaged),
        damaged=tuple(damaged),
        batch_line=logs.script_line(batch),
        node_lines={_node_of(log): line for log in _node_logs(run) if (line := _last(_lines(run, log)))},
        rank_lines={rank: line for rank, (_quote, line) in told.items()},
        rank_quotes={rank: quote for rank, (quote, _line) in told.items()},
        # Of those only whose launcher says itself that it ran there.
        watched={record.node_rank: record for record in watched.values() if record.is_by(starts.get(record.rank))},
        meters=meters,
        # Connections stand at their start.
        nccl=logs.together(
            logs.parse("\n".join(_lines(run, f"nccl/{name}", from_start=_NCCL_BYTES)))
            for name in run.names_in("nccl")
            if name.endswith(".log")
        ),
        container_faults=tuple(container_faults(run, plan, {rank for ranks in there.values() for rank in ranks})),
        task_ends={rank: end for rank, (end, _node) in ends.items()},
        task_nodes={rank: node for rank, (_end, node) in ends.items() if node},
        versions=_versions(run, plan, starts),
        hosts=tuple(line.strip() for line in _lines(run, NODES, from_start=_NODES_BYTES) if line.strip()),
        failed_nodes=tuple(match[1] for line in batch if (match := logs.FAILED_NODE.match(line.strip()))),
        cancelled=run.cancelled,
        plan_sha256=files.sha256(run.content_of(PLAN)),
        disk_full=disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0),
    )


def _result(run: Run, plan: Plan, damaged: list[str]) -> Result | None:
    """The program's result; where none is promised, a user's own program may keep another file of that name."""
    content = b""
    try:
        content = run.content_of(RESULT)
        return decoded(content, Result)
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        problem = str(error)
    if plan.result == "throughput" or b'"schema"' in content:
        damaged.append(f"{RESULT}: {problem}")
    return None


def _task_ends(run: Run) -> dict[int, tuple[str, str]]:
    """What srun reports of each task that failed, and its node (empty for none), in srun's order; its first report of a
    task counts.
    """
    ends: dict[int, tuple[str, str]] = {}
    for line in _lines(run, _BATCH):
        match = logs.TASK_END.match(line.strip())
        for part in match[2].split(",") if match else ():
            ranks = _RANKS.fullmatch(part)
            if match and ranks:
                for rank in range(int(ranks[1]), int(ranks[2] or ranks[1]) + 1):
                    ends.setdefault(rank, (match[3].strip(), match[1] or ""))
    return ends


def container_faults(run: Run, plan: Plan, starts: Container[int]) -> Iterator[ContainerFault]:
    """What the logs say of containers that did not start: the batch script's only where no rank has.

    Args:
        starts: the ranks that have left a record: their launcher ran in the container.
    """
    if not run_runtime(plan.runtime).is_container:
        return
    some = any(rank in starts for rank in range(plan.tasks))
    was_there = plan.image.path.startswith("/") and "image-unusable" not in run.needed_plan().forced
    gone = was_there and not os.path.lexists(plan.image.path)
    for rank in range(plan.tasks):
        if rank not in starts:
            yield from _container_fault(run, f"logs/rank-{rank}.err", some, gone, rank=rank)
    if some:
        return
    for name in _node_logs(run):
        yield from _container_fault(run, name, False, gone, node=_node_of(name))
    yield from _container_fault(run, _BATCH, False, gone)


def _container_fault(
    run: Run, name: str, some_started: bool, image_gone: bool, *, rank: int | None = None, node: str = ""
) -> Iterator[ContainerFault]:
    lines = _lines(run, name, from_start=_LOG_BYTES)
    if sum(map(len, lines)) >= _LOG_BYTES // 2:  # the cause stands at the beginning, what followed may be long
        lines += _lines(run, name)
    fault = logs.container_fault(lines, some_started=some_started, image_gone=image_gone)
    if fault is not None:
        yield replace(fault, file=name.removeprefix("logs/"), rank=rank, node=node or fault.node)


def _versions(run: Run, plan: Plan, starts: Mapping[int, StartRecord]) -> dict[str, dict[str, str]]:
    """What the job recorded of what ran it, by name and node (the first has none): by its script, or by the runtime
    through the ranks' variables.
    """
    runtime = run_runtime(plan.runtime)
    names: list[str] = [plan.scheduler] if SCHEDULERS[plan.scheduler].version else []
    names += [plan.runtime] if runtime.version_variable else []
    versions: dict[str, dict[str, str]] = {name: {} for name in (*names, *runtime.versions)}
    for file in sorted(each for each in run.names_in("") if each == VERSIONS or each.startswith(f"{VERSIONS}-")):
        for name, line, *named in (line.split("\t", 2) for line in _lines(run, file) if "\t" in line):
            node = named[0] if named else file.removeprefix(VERSIONS).removeprefix("-")
            # The number in what a program says of itself: 22.05.8 of "slurm 22.05.8"; else the line.
            if name in versions and ((number := _VERSION.search(line)) or not node):
                versions[name][node] = number[0] if number else line.strip()[:100]
    for _rank, start in sorted(starts.items()):
        if runtime.version_variable and (version := start.environment.get(runtime.version_variable)):
            versions[plan.runtime][start.host] = version
    return versions


def _node_logs(run: Run) -> list[str]:
    return sorted(f"logs/{name}" for name in run.names_in("logs") if _NODE_LOG.match(name))


def _node_of(log: str) -> str:
    return log.removeprefix("logs/node-").removesuffix(".log")


def _telling(run: Run, rank: int, record: ExitRecord | None) -> tuple[str, str]:
    """Of a rank's logs what the verdict quotes, and the line by which it is judged: its step's end or the loss of its
    image where that is the last. Of the standard output, where the standard error gives no reason.
    """
    lines, name = _lines(run, f"logs/rank-{rank}.err"), f"logs/rank-{rank}.err: "
    if record is not None and record.exit_code is not None and not record.signals_forwarded:
        lines = logs.without_end(lines)  # its program had ended; Slurm tells rank 0 of the step's end all the same
    last = _last(lines)
    if logs.IMAGE_LOST.search(last) or logs.END.search(last):
        return name + (logs.before_end(lines) or last), last
    line = logs.reason(lines)
    if not line:
        output = _lines(run, f"logs/rank-{rank}.out")
        if line := logs.reason(output) if last else logs.telling(output):
            name = f"logs/rank-{rank}.out: "
    line = line or logs.telling(lines)
    return name + line, line


def _last(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _lines(run: Run, name: str, *, from_start: int = 0) -> list[str]:
    """The end of a log (or so many bytes from its start), by lines; none where it cannot be read."""

    def read() -> bytes:
        with run.open(name) as file:
            if not from_start:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read(from_start or _LOG_BYTES)

    try:
        lines = files.again_if_stale(read).decode("utf-8", "replace").splitlines()
        return [line[:_LINE_LENGTH] for line in lines]
    except OSError:
        return []
