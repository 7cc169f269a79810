"""A PBS complex out of ``qstat`` and ``pbsnodes`` (PBS Pro 2022, OpenPBS 23). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from runner.sites.detection.facts import (
    Answer,
    Cluster,
    Entry,
    Fact,
    Node,
    Note,
    Queue,
    Unknown,
    limits_of,
    natural,
    node_entries,
)

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


class Pbs(Cluster):
    """A complex of PBS; its queues do not say which nodes they have."""

    def entries(self, _partition: str | None, day: str) -> Iterator[Entry]:
        """See ``Cluster``."""
        group = self.gpu_nodes()
        source = f"pbsnodes -a -v, {day}"
        unknown = "pbsnodes shows no GPU node: `pbsnodes NAME` of one, or ask the site"
        yield from node_entries(group, source, unknown, cores=": ncpus, which may be hardware threads")
        yield from _chunk(group, source)
        yield Unknown("node.cpus_per_gpu", "the most CPUs for each GPU: the site's guide; null for no such rule")
        ordered = sorted((queue for queue in self.queues if queue.open), key=lambda queue: not queue.is_default)
        if ordered:
            yield Fact("queues", {queue.name: dict(queue.limits) for queue in ordered}, f"qstat -Q -f, {day}")
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
    default = server.get("default_queue", "")
    return Pbs(
        version=server.get("pbs_version", ""),
        nodes=tuple(_node(name, fields) for name, fields in _records(answers["nodes"].out).items()),
        queues=tuple(_queue(name, fields, default) for name, fields in _records(answers["queues"].out).items()),
        silent={answer.command: answer.problem for answer in answers.values() if answer.problem},
        lacking=(answers["queues"].command,) if answers["queues"].problem else (),
    )


def _chunk(group: tuple[Node, ...], source: str) -> Iterator[Entry]:
    """A custom resource that is alike on all GPU nodes may be how jobs ask for them."""
    common = frozenset.intersection(*(node.traits for node in group)) if group else frozenset()
    alike = sorted(common, key=lambda trait: trait.partition("="))
    system = next((each.partition("=")[2] for each in alike if each.startswith("system=")), None)
    if system is not None:
        yield Fact("pbs.chunk", {"system": system}, f"{source}: all GPU nodes have it")
    elif alike:
        shown = ", ".join(alike[:10])
        yield Note("pbs", f"all GPU nodes have {shown}: pbs.chunk asks for one of these where the site wants it")


def _records(text: str) -> dict[str, dict[str, str]]:
    """``NAME`` or ``Queue: NAME``, then indented ``key = value`` lines; a line that begins with a tab goes on."""
    records: dict[str, dict[str, str]] = {}
    here: dict[str, str] = {}
    for line in re.sub(r"\n\t", "", text).splitlines():
        if line and not line[0].isspace():
            here = records.setdefault(line.partition(": ")[2].strip() or line.strip(), {})
        else:
            key, equals, value = line.strip().partition(" = ")
            if equals:
                here[key] = value.strip()
    return records


def _node(name: str, fields: Mapping[str, str]) -> Node:
    has = {key.removeprefix("resources_available."): value for key, value in fields.items() if "available." in key}
    gpus = natural(has.get("ngpus", ""))
    return Node(
        name=name,
        gpus=(("", gpus),) if gpus else (),
        cores=natural(has.get("ncpus", "")) or natural(fields.get("pcpus", "")) or 1,
        memory_mb=_megabytes(has.get("mem", "")),
        usable=not any(word in fields.get("state", "unknown").lower() for word in _UNUSABLE),
        traits=frozenset(f"{key}={value}" for key, value in has.items() if key not in _USUAL),
    )


def _queue(name: str, fields: Mapping[str, str], default: str) -> Queue:
    """No job is submitted to a queue that only routes."""
    is_open = fields.get("enabled") == "True" == fields.get("started") and fields.get("from_route_only") != "True"
    keys = ("resources_min.nodect", "resources_max.nodect", "resources_max.walltime")
    return Queue(name, is_open, name == default, limits_of(*(fields.get(key, "") for key in keys)))


def _megabytes(size: str) -> int:
    parts = re.fullmatch(r"(\d+)([a-z]*)", size.lower())
    return int(int(parts[1]) * _UNITS_KB.get(parts[2] or "b", 1) / 1024) if parts else 1
