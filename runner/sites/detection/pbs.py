"""A PBS complex out of ``qstat`` and ``pbsnodes`` (PBS Pro 2022, OpenPBS 23). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.sites.detection.facts import Answer, Entry, Fact, GpuNodes, Note, Unknown, natural, seconds

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("pbsnodes", "-a", "-v"),
    "server": ("qstat", "-B", "-f"),
    "queues": ("qstat", "-Q", "-f"),
}
_UNITS_KB = {"b": 1 / 1024, "kb": 1, "mb": 1024, "gb": 1024**2, "tb": 1024**3}
_UNUSABLE = ("down", "offline", "stale", "unknown")
_NEVER_TOLD = {
    "needs": "[account] where jobs are charged to a project (qsub -A), else []: the site's guide",
    "pbs.resources": "what every job must ask for (filesystems: home:eagle), else {}: the site's guide",
    "mpi.abi": "the MPI whose mpiexec starts the tasks: mpich or openmpi (`mpiexec --version` on a node)",
    "local_scratch": "a directory of each node's own with room for an image: the site's guide",
}
# Resources that every node has of its own, or that are asked for by number (pbs_resources(7B)).
_USUAL = frozenset(("arch", "host", "vnode", "mem", "vmem", "hbmem", "ncpus", "ngpus", "mpiprocs"))


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        cpus: that jobs are given: hardware threads where the site counts so.
        resources: custom ones, name -> value (``system: polaris``).
    """

    name: str
    cpus: int
    gpus: int
    memory_mb: int
    usable: bool
    resources: Mapping[str, str]


@dataclass(frozen=True)
class Queue:
    """One queue; ``limits`` as a site file's ``queues`` has them. No job is submitted to a queue that only routes."""

    name: str
    open: bool
    limits: Mapping[str, int]


@dataclass(frozen=True)
class Pbs:
    """A complex; ``silent``: commands that did not answer, with the reason; ``lacking``: the one for queues of them."""

    version: str
    default_queue: str
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    silent: Mapping[str, str]
    lacking: tuple[str, ...] = ()
    name: str = ""
    partitions_known: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    mpi: tuple[str, ...] = ()

    def queue_limits(self) -> dict[str, dict[str, int]]:
        return {queue.name: dict(queue.limits) for queue in self.queues if queue.open}

    def gpu_nodes(self, _queues: Iterable[str]) -> GpuNodes | None:
        """See ``chosen``: queues do not say which nodes they have."""
        group = chosen(self.nodes)
        if not group:
            return None
        gpus, cpus = group[0].gpus, group[0].cpus
        memory_mb = min(each.memory_mb for each in group)
        return GpuNodes({"": gpus}, gpus, cpus, memory_mb, len(group), sum(each.usable for each in group))

    def entries(self, _partition: str | None, day: str) -> Iterator[Entry]:
        """See ``Cluster``."""
        group = chosen(self.nodes)
        source = f"pbsnodes -a -v, {day}"
        if group:
            yield Fact("node.gpus", group[0].gpus, source)
            yield Fact("node.cores", group[0].cpus, f"{source}: ncpus, which may be hardware threads")
            yield Fact("node.memory_mb", min(node.memory_mb for node in group), source)
            yield Fact("node.count", len(group), f"{source}; {sum(node.usable for node in group)} of them up")
            yield from _chunk(group, source)
        else:
            how = "pbsnodes shows no GPU node: `pbsnodes NAME` of one, or ask the site"
            yield from (Unknown(f"node.{key}", how, needed=True) for key in ("gpus", "cores", "memory_mb"))
        yield Unknown("node.cpus_per_gpu", "the most CPUs for each GPU: the site's guide; null for no such rule")
        open_queues = sorted((q for q in self.queues if q.open), key=lambda q: q.name != self.default_queue)
        if open_queues:
            yield Fact("queues", {queue.name: dict(queue.limits) for queue in open_queues}, f"qstat -Q -f, {day}")
        else:
            yield Unknown("queues", "`qstat -Q -f`: the queues that take GPU jobs, with their limits")
        yield from (Unknown(key, how) for key, how in _NEVER_TOLD.items())


def commands(_user: str) -> dict[str, tuple[str, ...]]:
    """Name -> argument list of all that is asked."""
    return dict(COMMANDS)


def answered(answers: Mapping[str, Answer]) -> bool:
    """Whether these are answers of a complex."""
    return not answers["nodes"].problem


def read(answers: Mapping[str, Answer]) -> Pbs:
    """The complex that gave these answers."""
    server = next(iter(_records(answers["server"].out).values()), {})
    return Pbs(
        version=server.get("pbs_version", ""),
        default_queue=server.get("default_queue", ""),
        nodes=tuple(_node(name, fields) for name, fields in _records(answers["nodes"].out).items()),
        queues=tuple(_queue(name, fields) for name, fields in _records(answers["queues"].out).items()),
        silent={answer.command: answer.problem for answer in answers.values() if answer.problem},
        lacking=(answers["queues"].command,) if answers["queues"].problem else (),
    )


def chosen(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes to plan for: those of the shape that has the most GPUs in all."""
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        if node.gpus:
            groups.setdefault((node.gpus, node.cpus), []).append(node)
    return tuple(max(groups.values(), key=lambda group: sum(node.gpus for node in group), default=[]))


def _chunk(group: tuple[Node, ...], source: str) -> Iterator[Entry]:
    """A custom resource that is alike on all GPU nodes may be how jobs ask for them."""
    first = group[0].resources
    alike = {name: value for name, value in first.items() if all(node.resources.get(name) == value for node in group)}
    if "system" in alike:
        yield Fact("pbs.chunk", {"system": alike["system"]}, f"{source}: all GPU nodes have it")
    elif alike:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(alike.items())[:10])
        yield Note("pbs", f"all GPU nodes have {shown}: pbs.chunk asks for one of these where the site wants it")


def _records(text: str) -> dict[str, dict[str, str]]:
    """``NAME`` or ``Queue: NAME``, then indented ``key = value`` lines; a line that begins with a tab goes on."""
    found: dict[str, dict[str, str]] = {}
    here: dict[str, str] = {}
    for line in re.sub(r"\n\t", "", text).splitlines():
        if line and not line[0].isspace():
            here = found.setdefault(line.partition(": ")[2].strip() or line.strip(), {})
        else:
            key, equals, value = line.strip().partition(" = ")
            if equals:
                here[key] = value.strip()
    return found


def _node(name: str, fields: Mapping[str, str]) -> Node:
    has = {key.removeprefix("resources_available."): value for key, value in fields.items() if "available." in key}
    return Node(
        name=name,
        cpus=natural(has.get("ncpus", "")) or natural(fields.get("pcpus", "")) or 1,
        gpus=natural(has.get("ngpus", "")) or 0,
        memory_mb=_megabytes(has.get("mem", "")),
        usable=not any(word in fields.get("state", "unknown").lower() for word in _UNUSABLE),
        resources={key: value for key, value in has.items() if key not in _USUAL},
    )


def _queue(name: str, fields: Mapping[str, str]) -> Queue:
    known = {
        "min_nodes": natural(fields.get("resources_min.nodect", "")),
        "max_nodes": natural(fields.get("resources_max.nodect", "")),
        "max_walltime_s": seconds(fields.get("resources_max.walltime", "")),
    }
    limits = {key: value for key, value in known.items() if value and (key, value) != ("min_nodes", 1)}
    running = fields.get("enabled") == "True" and fields.get("started") == "True"
    return Queue(name, running and fields.get("from_route_only") != "True", limits)


def _megabytes(size: str) -> int:
    found = re.fullmatch(r"(\d+)([a-z]*)", size.lower())
    return int(int(found[1]) * _UNITS_KB.get(found[2] or "b", 1) / 1024) if found else 1
