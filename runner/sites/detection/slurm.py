"""A Slurm cluster out of its clients' answers (forms of 22.05 to 26.05). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from runner.model.backends import RUNTIMES
from runner.model.site import DEMONSTRATION, FAKE_GPUS
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

_NODE_FORMAT = "%N|%R|%T|%c|%X|%Y|%Z|%m|%G|%f"  # sinfo(1): a line for each node in each partition
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("sinfo", "--noheader", "--all", "--Node", f"--format={_NODE_FORMAT}"),
    "partitions": ("scontrol", "--oneliner", "show", "partition"),
    "config": ("scontrol", "show", "config"),
    "srun": ("srun", "--help"),
    "mpi": ("srun", "--mpi=list"),
}
_ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "show", "user", "withassoc")
_OF_ACCOUNTS = "format=Cluster,DefaultAccount,Account"
_UNUSABLE = re.compile(r"down|drain|fail|maint|unknown|power_down|planned_down", re.IGNORECASE)
# A partition for everybody has these values, or no such key (slurm.conf(5), 22.05 to 26.05).
_FOR_ALL = dict.fromkeys(("AllowAccounts", "AllowGroups", "AllowQos", "AllocNodes"), "ALL") | {"RootOnly": "NO"}
# Of slurm_errno.c: what says that a partition is not for this user. Any other refusal says nothing about it.
_NOT_FOR_USER = re.compile(
    r"(Invalid account or account/partition|User's group not permitted|Invalid qos|Job's QOS not permitted|"
    r"Access/permission denied).*"
)
_SETTING = re.compile(r"^([A-Za-z][A-Za-z0-9_]*)\s*=[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Slurm(Cluster):
    """A cluster of Slurm.

    Attributes:
        config: ``scontrol show config``, key -> value.
        accounts: of this user, if known. account: of these the default, which jobs need not name; empty for none.
    """

    config: Mapping[str, str]
    accounts: tuple[str, ...]
    account: str = ""

    def entries(self, partition: str | None, day: str) -> Iterator[Entry]:
        """See ``Cluster``."""
        group = self.gpu_nodes((partition,) if partition else ())
        source = f"sinfo --Node, {day}"
        unknown = "sinfo shows no GPU node: `scontrol show node NAME` of one, or ask the site"
        yield from node_entries(group, source, unknown)
        if group:
            yield from _further_entries(self, group, source)
        yield from _queue_entries(self, partition, day)
        yield from _slurm_entries(self, day)


def commands(user: str) -> dict[str, tuple[str, ...]]:
    """Name -> argument list of all that is asked; accounts are the user's."""
    return {**COMMANDS, "accounts": (*_ACCOUNTS, f"user={user}", _OF_ACCOUNTS)}


def answered(answers: Mapping[str, Answer]) -> bool:
    """Whether these are answers of a cluster."""
    return not (answers["nodes"].problem and answers["partitions"].problem)


def on_node(partition: str | None, options: tuple[str, ...]) -> tuple[str, ...]:
    """What starts a task of two minutes at most on one GPU node; its command comes after it."""
    named = (f"--partition={partition}",) if partition else ()
    return ("srun", "--quiet", "--nodes=1", "--ntasks=1", "--time=2", "--gres=gpu:1", "--mpi=none", *named, *options)


def trials(cluster: Slurm, ask: Callable[[Mapping[str, tuple[str, ...]]], Mapping[str, Answer]]) -> Slurm:
    """The cluster without the partitions that take no job of this user's: Slurm itself is asked, and nothing submitted,
    of those that have GPUs and are not for everybody. Where each job must name an account, nothing is asked.
    """
    if cluster.accounts and not cluster.account:
        return cluster
    holding = frozenset[str]().union(*(node.queues for node in cluster.nodes if node.gpus))
    tried = [each.name for each in cluster.queues if each.open and each.limited and each.name in holding]
    shape = ("--nodes=1", "--ntasks=1", "--gres=gpu:1", "--time=1", "--wrap=true")
    answers = ask({name: ("sbatch", "--test-only", f"--partition={name}", *shape) for name in tried})
    whys = {name: _NOT_FOR_USER.search(answer.problem) for name, answer in answers.items()}
    queues = (
        replace(each, open=False, refusal=why[0].strip()) if (why := whys.get(each.name)) else each
        for each in cluster.queues
    )
    return replace(cluster, queues=tuple(queues))


def read(answers: Mapping[str, Answer]) -> Slurm:
    """The cluster that gave these answers."""
    good = {name: answers[name] if not answers[name].problem else Answer("") for name in answers}
    options = frozenset(re.findall(r"^\s+--([\w-]+)", good["srun"].both_streams, re.MULTILINE))
    config = {key: value.strip() for key, value in _SETTING.findall(good["config"].out)}
    partitions = tuple(_partitions(good["partitions"].out))
    rows = [line.strip().split("|") for line in good["accounts"].out.splitlines()]
    name = config.get("ClusterName", "").lower()  # as the database writes it
    mine = [row for row in rows if len(row) == 3 and row[0].lower() in ("", name)]
    return Slurm(
        name=config.get("ClusterName", ""),
        version=config.get("SLURM_VERSION", ""),
        config=config,
        queues=partitions,
        partitions_known=tuple(each.name for each in partitions),
        nodes=_nodes(good["nodes"].out),
        mpi=_mpi(good["mpi"].both_streams),
        options=options & {RUNTIMES[name].srun_option for name in RUNTIMES.every()},
        accounts=tuple(dict.fromkeys(row[2] for row in mine if row[2])),
        account=next((row[1] for row in mine if row[1]), ""),
        silent={answer.command: answer.problem for answer in answers.values() if answer.problem},
        lacking=tuple(answers[name].command for name in ("nodes", "partitions") if answers[name].problem),
    )


def _partitions(text: str) -> Iterator[Queue]:
    for line in text.splitlines():
        fields = dict(reversed(re.findall(r"(?:^|(?<=\s))([A-Za-z]+)=(\S*)", line)))  # the first of a name counts
        name = fields.get("PartitionName")
        if name:
            limits = limits_of(*(fields.get(key, "") for key in ("MinNodes", "MaxNodes", "MaxTime")))
            limited = any(fields.get(key, value) != value for key, value in _FOR_ALL.items())
            limited = limited or "DenyAccounts" in fields or "DenyQos" in fields
            yield Queue(name, fields.get("State") == "UP", fields.get("Default") == "YES", limits, limited)


def _nodes(text: str) -> tuple[Node, ...]:
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        fields = line.strip().split("|", 9)
        if len(fields) != 10 or not all(part.isdigit() for part in fields[3:7]):
            continue
        name, partition, state, cpus, sockets, cores, threads, memory, gres, features = fields
        per_core = int(threads) if int(cpus) == int(sockets) * int(cores) * int(threads) else 1
        nodes[name] = Node(
            name=name,
            gpus=_gpus(gres),
            cores=int(cpus) // per_core,
            threads_per_core=per_core,
            memory_mb=natural(memory.rstrip("+")) or 1,
            usable=not _UNUSABLE.search(state),
            queues=(nodes[name].queues if name in nodes else frozenset()) | {partition},
            traits=frozenset(features.split(",")) - {"(null)"},
        )
    return tuple(nodes.values())


def _gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """``gpu:a100:8(S:0-1)``, ``gpu:4``, ``gpu:a100:6,gpu:a100_1g.5gb:7,shard:8``."""
    counts: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu(?::([^:,()]+))??(?::(\d+))?(?:\([^)]*\))?(?=,|$)", gres):
        counts[kind] = counts.get(kind, 0) + int(count or 1)
    return tuple(sorted(counts.items()))


def _mpi(text: str) -> tuple[str, ...]:
    """Plugins: a line each, behind ``srun:`` in older versions."""
    plugins: dict[str, None] = {}
    for line in text.splitlines():
        listed = line.removeprefix("srun:").strip()
        words = listed.rpartition(":")[2].split(",") if "available" in listed else [listed]
        plugins |= dict.fromkeys(word.strip() for word in words if re.fullmatch(r"[a-z][a-z0-9_]*", word.strip()))
    return tuple(plugins)


def _further_entries(cluster: Slurm, group: tuple[Node, ...], source: str) -> Iterator[Entry]:
    """What else there is to say of the nodes that are planned for, and of those that differ."""
    yield Unknown(
        "node.cpus_per_gpu", "the most CPUs that a job may have for each GPU: the site's guide; null for no such rule"
    )
    features = frozenset.intersection(*(node.traits for node in group))
    if FAKE_GPUS in features:
        yield Fact("device", "cpu", f"{source}: these nodes have the feature {FAKE_GPUS}")
        yield Fact("demonstration", DEMONSTRATION, f"{source}: these nodes have the feature {FAKE_GPUS}")
        features -= {FAKE_GPUS}
    if features:
        yield Note("slurm", f"slurm.directives.constraint can ask for {', '.join(sorted(features))}: all have it")
    others: dict[tuple[str, ...], list[Node]] = {}
    described = {node.name for node in group}
    closed = {queue.name for queue in cluster.queues if queue.refusal}
    for node in cluster.nodes:
        if node.gpus and node.name not in described and not (node.queues and node.queues <= closed):
            kinds = tuple(f"{count} x {kind or 'GPU'}" for kind, count in node.gpus)
            others.setdefault(kinds, []).append(node)
    for kinds, alike in others.items():
        where = ", ".join(sorted(frozenset().union(*(node.queues for node in alike)) - closed))
        text = f"{len(alike)} with {' and '.join(kinds)} (`site detect --partition`: {where})"
        yield Note("node", f"not described here, as these nodes differ: {text}")


def _queue_entries(cluster: Slurm, wanted: str | None, day: str) -> Iterator[Entry]:
    ordered = cluster.gpu_queues((wanted,) if wanted else (), wanted)
    for each in cluster.queues:
        if each.refusal:
            yield Note(
                "queues", f"{each.name} takes no job of yours as it is: {each.refusal} (sbatch --test-only, {day})"
            )
    if ordered:
        source = f"scontrol show partition, {day}"
        yield Fact("slurm.queue_option", "partition", source)
        yield Fact("queues", {each.name: dict(each.limits) for each in ordered}, source)
    else:
        yield Unknown("queues", "the partitions of the GPU nodes: `scontrol show partition`, or ask the site")


def _slurm_entries(cluster: Slurm, day: str) -> Iterator[Entry]:
    source = f"scontrol show config, {day}"
    enforced = cluster.config.get("AccountingStorageEnforce", "")
    rule = f"scontrol show config: AccountingStorageEnforce={enforced}, {day}"
    yours = f"sacctmgr shows yours: {', '.join(cluster.accounts)}"
    if "associations" in enforced and not cluster.account:
        yield Fact("needs", ["account"], f"{rule}; {yours}" if cluster.accounts else rule)
        if cluster.accounts:
            yield Fact("hints", {"account": yours}, rule)
    elif enforced:
        default = f"; jobs that name no account are charged to your default, {cluster.account}; {yours}"
        yield Fact("needs", [], rule + (default if cluster.account else ""))
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
