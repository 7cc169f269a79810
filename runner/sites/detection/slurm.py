"""A Slurm cluster out of its clients' answers (forms of 22.05 to 26.05). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.model.backends import RUNTIMES
from runner.model.site import DEMONSTRATION, FAKE_GPUS
from runner.sites.detection.facts import Answer, Entry, Fact, GpuNodes, Note, Unknown, natural, seconds

_NODE_FORMAT = "%N|%R|%T|%c|%X|%Y|%Z|%m|%G|%f"  # sinfo(1): a line for each node in each partition
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("sinfo", "--noheader", "--all", "--Node", f"--format={_NODE_FORMAT}"),
    "partitions": ("scontrol", "--oneliner", "show", "partition"),
    "config": ("scontrol", "show", "config"),
    "srun": ("srun", "--help"),
    "mpi": ("srun", "--mpi=list"),
}
_ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "format=Account")
_UNUSABLE = re.compile(r"down|drain|fail|maint|unknown|power_down|planned_down", re.IGNORECASE)
_SETTING = re.compile(r"^([A-Za-z][A-Za-z0-9_]*)\s*=[ \t]*(.*)$", re.MULTILINE)
_MIG = re.compile(r"\dg\.\d+gb", re.IGNORECASE)


@dataclass(frozen=True)
class Shape:
    """What a node has, as Slurm gives it out.

    Attributes:
        gpus: GRES type -> GPUs of it; the type is empty where GPUs have none.
    """

    gpus: tuple[tuple[str, int], ...]
    cores: int
    threads_per_core: int
    memory_mb: int

    @property
    def whole_gpus(self) -> tuple[tuple[str, int], ...]:
        """Those that are no slices."""
        return tuple(entry for entry in self.gpus if not _MIG.search(entry[0]))


@dataclass(frozen=True)
class Node:
    """One node, with the partitions that it is in, and the features by which ``--constraint`` names it."""

    name: str
    shape: Shape
    partitions: frozenset[str]
    features: frozenset[str]
    usable: bool


@dataclass(frozen=True)
class Partition:
    """One partition; None where it has no limit."""

    name: str
    default: bool
    up: bool
    min_nodes: int
    max_nodes: int | None
    max_walltime_s: int | None

    @property
    def limits(self) -> dict[str, int]:
        """As a site file's ``queues`` has them."""
        known = {"min_nodes": self.min_nodes if self.min_nodes > 1 else None, "max_nodes": self.max_nodes}
        return {key: value for key, value in (known | {"max_walltime_s": self.max_walltime_s}).items() if value}


@dataclass(frozen=True)
class Slurm:
    """A cluster.

    Attributes:
        config: ``scontrol show config``, key -> value.
        mpi: plugins of ``srun --mpi``.
        options: long options of srun that a plugin adds (Pyxis, Shifter), without dashes.
        accounts: of this user, where accounting tells.
        silent: commands that did not answer, with the reason; lacking: of them those for nodes and partitions.
    """

    config: Mapping[str, str]
    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]
    mpi: tuple[str, ...]
    options: frozenset[str]
    accounts: tuple[str, ...]
    silent: Mapping[str, str]
    lacking: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.config.get("ClusterName", "")

    @property
    def version(self) -> str:
        return self.config.get("SLURM_VERSION", "")

    @property
    def partitions_known(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.partitions)

    def queue_limits(self) -> dict[str, dict[str, int]]:
        return {each.name: each.limits for each in self.partitions if each.up}

    def gpu_nodes(self, queues: Iterable[str]) -> GpuNodes | None:
        """See ``chosen``."""
        alike = chosen(self.nodes, queues)
        if not alike:
            return None
        shape = alike[0].shape
        return GpuNodes(
            kinds=dict(shape.gpus),
            gpus=count_of(shape.whole_gpus or shape.gpus),
            cpus=shape.cores * shape.threads_per_core,
            memory_mb=min(each.shape.memory_mb for each in alike),
            count=len(alike),
            up=sum(each.usable for each in alike),
        )

    def entries(self, partition: str | None, day: str) -> Iterator[Entry]:
        """See ``Cluster``."""
        group = chosen(self.nodes, (partition,) if partition else ())
        yield from _node_entries(self, group, day)
        yield from _queue_entries(self, group, partition, day)
        yield from _slurm_entries(self, day)


def commands(user: str) -> dict[str, tuple[str, ...]]:
    """Name -> argument list of all that is asked; accounts are the user's."""
    return {**COMMANDS, "accounts": (*_ACCOUNTS, f"user={user}")}


def answered(answers: Mapping[str, Answer]) -> bool:
    """Whether these are answers of a cluster."""
    return not (answers["nodes"].problem and answers["partitions"].problem)


def on_node(partition: str | None, options: tuple[str, ...]) -> tuple[str, ...]:
    """What starts a task of two minutes at most on one GPU node; its command comes after it."""
    named = (f"--partition={partition}",) if partition else ()
    return ("srun", "--quiet", "--nodes=1", "--ntasks=1", "--time=2", "--gres=gpu:1", "--mpi=none", *named, *options)


def read(answers: Mapping[str, Answer]) -> Slurm:
    """The cluster that gave these answers."""
    good = {name: answers[name] if not answers[name].problem else Answer("") for name in answers}
    options = frozenset(re.findall(r"^\s+--([\w-]+)", good["srun"].both_streams, re.MULTILINE))
    return Slurm(
        config={key: value.strip() for key, value in _SETTING.findall(good["config"].out)},
        partitions=tuple(_partitions(good["partitions"].out)),
        nodes=_nodes(good["nodes"].out),
        mpi=_mpi(good["mpi"].both_streams),
        options=options & {RUNTIMES[name].srun_option for name in RUNTIMES.every()},
        accounts=tuple(dict.fromkeys(filter(None, map(str.strip, good["accounts"].out.splitlines())))),
        silent={answer.command: answer.problem for answer in answers.values() if answer.problem},
        lacking=tuple(answers[name].command for name in ("nodes", "partitions") if answers[name].problem),
    )


def chosen(nodes: Iterable[Node], partitions: Iterable[str] = ()) -> tuple[Node, ...]:
    """The nodes to plan for: of the shape that has the most GPUs in all, of the partitions if any are named.

    Of shapes that differ in memory alone the smallest memory counts, so they are one.
    """
    wanted = frozenset(partitions)
    among = [node for node in nodes if node.shape.gpus and (not wanted or node.partitions & wanted)]
    groups: dict[object, list[Node]] = {}
    for node in among:
        shape = node.shape
        groups.setdefault((shape.gpus, shape.cores, shape.threads_per_core), []).append(node)
    return tuple(max(groups.values(), key=_gpus_of, default=[]))


def _gpus_of(nodes: Iterable[Node]) -> tuple[int, int]:
    """Whole GPUs count first, slices only among those that have none."""
    shapes = [node.shape for node in nodes]
    return sum(count_of(shape.whole_gpus) for shape in shapes), sum(count_of(shape.gpus) for shape in shapes)


def count_of(gpus: Iterable[tuple[str, int]]) -> int:
    """GPUs, and slices of GPUs, whatever their type."""
    return sum(count for _, count in gpus)


def _partitions(text: str) -> Iterator[Partition]:
    for line in text.splitlines():
        fields = dict(reversed(re.findall(r"(?:^|(?<=\s))([A-Za-z]+)=(\S*)", line)))  # the first of a name counts
        if fields.get("PartitionName"):
            yield Partition(
                fields["PartitionName"],
                default=fields.get("Default") == "YES",
                up=fields.get("State") == "UP",
                min_nodes=natural(fields.get("MinNodes", "")) or 1,
                max_nodes=natural(fields.get("MaxNodes", "")),
                max_walltime_s=seconds(fields.get("MaxTime", "")),
            )


def _nodes(text: str) -> tuple[Node, ...]:
    found: dict[str, Node] = {}
    for line in text.splitlines():
        fields = line.strip().split("|", 9)
        if len(fields) != 10 or not all(part.isdigit() for part in fields[3:7]):
            continue
        name, partition, state, cpus, sockets, cores, threads, memory, gres, features = fields
        physical = int(sockets) * int(cores)
        per_core = int(threads) if int(cpus) == physical * int(threads) else 1
        shape = Shape(_gpus(gres), int(cpus) // per_core, per_core, natural(memory.rstrip("+")) or 1)
        seen = found[name].partitions if name in found else frozenset()
        named = frozenset(features.split(",")) - {"(null)"}
        found[name] = Node(name, shape, seen | {partition}, named, not _UNUSABLE.search(state))
    return tuple(found.values())


def _gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """``gpu:a100:8(S:0-1)``, ``gpu:4``, ``gpu:a100:6,gpu:a100_1g.5gb:7,shard:8``."""
    counts: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu(?::([^:,()]+))??(?::(\d+))?(?:\([^)]*\))?(?=,|$)", gres):
        counts[kind] = counts.get(kind, 0) + int(count or 1)
    return tuple(sorted(counts.items()))


def _mpi(text: str) -> tuple[str, ...]:
    """Plugins: a line each, behind ``srun:`` in older versions."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        listed = line.removeprefix("srun:").strip()
        words = listed.rpartition(":")[2].split(",") if "available" in listed else [listed]
        found |= dict.fromkeys(word.strip() for word in words if re.fullmatch(r"[a-z][a-z0-9_]*", word.strip()))
    return tuple(found)


def _node_entries(cluster: Slurm, group: tuple[Node, ...], day: str) -> Iterator[Entry]:
    source = f"sinfo --Node, {day}"
    if not group:
        how = "sinfo shows no GPU node: `scontrol show node NAME` of one, or ask the site"
        yield from (Unknown(f"node.{key}", how, needed=True) for key in ("gpus", "cores", "memory_mb"))
        return
    shape = group[0].shape
    whole = shape.whole_gpus or shape.gpus
    kind, gpus = max(whole, key=lambda entry: entry[1])
    yield Fact("node.gpus", gpus, source)
    if kind:
        yield Fact("node.gpu_type", kind, source)
    if len(shape.gpus) > 1:
        further = ", ".join(f"{count} x {name or 'untyped'}" for name, count in shape.gpus if name != kind)
        yield Note("node.gpu_type", f"each node also has {further}: --gpu-type asks for them")
    yield Fact("node.cores", shape.cores, source)
    yield Fact("node.threads_per_core", shape.threads_per_core, source)
    yield Fact("node.memory_mb", min(node.shape.memory_mb for node in group), source)
    yield Fact("node.count", len(group), f"{source}; {sum(node.usable for node in group)} of them up")
    yield Unknown(
        "node.cpus_per_gpu", "the most CPUs that a job may have for each GPU: the site's guide; null for no such rule"
    )
    features = frozenset.intersection(*(node.features for node in group))
    if FAKE_GPUS in features:
        yield Fact("device", "cpu", f"{source}: these nodes have the feature {FAKE_GPUS}")
        yield Fact("demonstration", DEMONSTRATION, f"{source}: these nodes have the feature {FAKE_GPUS}")
        features -= {FAKE_GPUS}
    if features:
        yield Note("slurm", f"slurm.directives.constraint can ask for {', '.join(sorted(features))}: all have it")
    others: dict[tuple[str, ...], list[Node]] = {}
    described = {node.name for node in group}
    for node in cluster.nodes:
        if node.shape.gpus and node.name not in described:
            kinds = tuple(f"{count} x {kind or 'GPU'}" for kind, count in node.shape.gpus)
            others.setdefault(kinds, []).append(node)
    for kinds, alike in others.items():
        where = ", ".join(sorted(frozenset().union(*(node.partitions for node in alike))))
        text = f"{len(alike)} with {' and '.join(kinds)} (`site detect --partition`: {where})"
        yield Note("node", f"not described here, as these nodes differ: {text}")


def _queue_entries(cluster: Slurm, group: tuple[Node, ...], wanted: str | None, day: str) -> Iterator[Entry]:
    holding = frozenset().union(*(node.partitions for node in group)) if group else frozenset()
    usable = [each for each in cluster.partitions if each.up and each.name in holding]
    ordered = sorted(usable, key=lambda each: (each.name != wanted, not each.default))
    if ordered:
        source = f"scontrol show partition, {day}"
        yield Fact("slurm.queue_option", "partition", source)
        yield Fact("queues", {each.name: each.limits for each in ordered}, source)
    else:
        yield Unknown("queues", "the partitions of the GPU nodes: `scontrol show partition`, or ask the site")


def _slurm_entries(cluster: Slurm, day: str) -> Iterator[Entry]:
    source = f"scontrol show config, {day}"
    enforced = cluster.config.get("AccountingStorageEnforce", "")
    known = f"; sacctmgr shows yours: {', '.join(cluster.accounts)}" if cluster.accounts else ""
    if "associations" in enforced:
        yield Fact("needs", ["account"], f"scontrol show config: AccountingStorageEnforce={enforced}, {day}{known}")
    elif enforced:
        yield Fact("needs", [], f"scontrol show config: AccountingStorageEnforce={enforced}, {day}")
    else:
        yield Unknown("needs", "[account] where jobs are charged to one, else []: the site's guide")
    select, parameters = cluster.config.get("SelectType", ""), cluster.config.get("SelectTypeParameters", "")
    if select:
        yield Fact("slurm.gpus", "per-node" if "cons_tres" in select else "gres", f"{source}: SelectType={select}")
        counted = "MEMORY" in parameters.upper()
        memory = "per-node" if counted else "none"
        yield Fact("slurm.memory", memory, f"{source}: SelectTypeParameters={parameters}")
    if cluster.mpi:
        pmi = [kind for kind in ("pmix", "pmi2") if any(name.startswith(kind) for name in cluster.mpi)]
        yield Fact("mpi.pmi", pmi, f"srun --mpi=list, {day}: {', '.join(cluster.mpi)}")
        cray = cluster.config.get("MpiDefault", "").startswith("cray")  # the plugin alone is in every Debian, too
        yield Fact(
            "slurm.mpi",
            None if cray else "none",
            "Cray's own start-up is left as it is" if cray else "ranks meet by the launcher's rendezvous",
        )
    else:
        yield Unknown("mpi.pmi", "`srun --mpi=list`: which of pmix and pmi2; [] for neither")
    local = cluster.config.get("TmpFS", "")
    if local.startswith("/"):
        yield Fact("local_scratch", local, f"{source}: TmpFS")
