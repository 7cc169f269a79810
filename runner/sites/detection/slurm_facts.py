"""What a Slurm cluster tells for a site file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.model.hardware import DEMONSTRATION, FAKE_GPUS
from runner.sites.detection.facts import Entry, Fact, Note, Unknown
from runner.sites.detection.slurm import Node, Slurm, chosen


def entries(cluster: Slurm, partition: str | None, day: str) -> Iterator[Entry]:
    """Facts, unknowns and remarks for a site file.

    Args:
        partition: whose nodes to take; None for those with the most GPUs.
        day: when the cluster was asked.
    """
    group = chosen(cluster.nodes, (partition,) if partition else ())
    yield from _node_entries(cluster, group, day)
    yield from _queue_entries(cluster, group, partition, day)
    yield from _account_entries(cluster, day)
    yield from _slurm_entries(cluster, day)


def _node_entries(cluster: Slurm, group: tuple[Node, ...], day: str) -> Iterator[Entry]:
    source = f"sinfo --Node, {day}"
    if not group:
        for key in ("gpus", "cores", "memory_mb"):
            yield Unknown(
                f"node.{key}", "sinfo shows no GPU node: `scontrol show node NAME` of one, or ask the site", needed=True
            )
        return
    shape = group[0].shape
    whole = shape.whole_gpus or shape.gpus
    kind, gpus = max(whole, key=lambda entry: entry[1])
    yield Fact("node.gpus", gpus, source)
    if kind:
        yield Fact("node.gpu_type", kind, source)
    if len(shape.gpus) > 1:
        others = ", ".join(f"{count} x {name or 'untyped'}" for name, count in shape.gpus if name != kind)
        yield Note("node.gpu_type", f"each node also has {others}: --gpu-type asks for them")
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
    for other in _other_shapes(cluster.nodes, group):
        yield Note("node", f"not described here, as these nodes differ: {other}")


def _other_shapes(nodes: Iterable[Node], group: tuple[Node, ...]) -> Iterator[str]:
    names = {node.name for node in group}
    others: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        if node.shape.gpus and node.name not in names:
            kinds = tuple(f"{count} x {kind or 'GPU'}" for kind, count in node.shape.gpus)
            others.setdefault(kinds, []).append(node)
    for kinds, alike in others.items():
        where = ", ".join(sorted(frozenset().union(*(node.partitions for node in alike))))
        yield f"{len(alike)} with {' and '.join(kinds)} (`site detect --partition`: {where})"


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


def _account_entries(cluster: Slurm, day: str) -> Iterator[Entry]:
    enforced = cluster.config.get("AccountingStorageEnforce", "")
    known = f"; sacctmgr shows yours: {', '.join(cluster.accounts)}" if cluster.accounts else ""
    if "associations" in enforced:
        yield Fact("needs", ["account"], f"scontrol show config: AccountingStorageEnforce={enforced}, {day}{known}")
    elif enforced:
        yield Fact("needs", [], f"scontrol show config: AccountingStorageEnforce={enforced}, {day}")
    else:
        yield Unknown("needs", "[account] where jobs are charged to one, else []: the site's guide")


def _slurm_entries(cluster: Slurm, day: str) -> Iterator[Entry]:
    source = f"scontrol show config, {day}"
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
