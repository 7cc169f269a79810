"""How busy the GPU of each rank is while the job runs, as the nodes' watchers last wrote it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from runner.jobs.directory import Run
from runner.model.output import RankGpu
from runner.model.plan import Plan
from runner.model.records import NodeRecord


def rank_gpus(run: Run, plan: Plan) -> tuple[RankGpu, ...]:
    """By rank; by node and number of the GPU where no start record says whose it is. Empty where nothing was read."""
    records = [record for record in run.records.records("node", NodeRecord).values() if record.load]
    return tuple(
        sorted(_joined(run, plan, records), key=lambda each: (each.rank is None, each.rank or 0, each.node, each.gpu))
    )


def _joined(run: Run, plan: Plan, records: list[NodeRecord]) -> Iterator[RankGpu]:
    starts = run.records.starts if records else {}
    for record in records:
        own = starts.get(record.rank)
        if own is None or not record.is_by(own):
            continue
        of_uuid = {start.device_uuid: start.rank for start in starts.values() if start.node_rank == own.node_rank}
        # One start of a node may use several GPUs, and parts of GPUs have other UUIDs: then each GPU is shown.
        seen = {load.uuid for load in record.load}
        named = plan.wireup != "own" and own.local_size == len(of_uuid) and seen.issuperset(of_uuid)
        node, age_s = own.node_name or own.host, max(0.0, time.time() - record.time_s)
        for gpu, load in enumerate(record.load):
            if not named or load.uuid in of_uuid:
                rank = of_uuid[load.uuid] if named else None
                yield RankGpu(**msgspec.structs.asdict(load), rank=rank, node=node, gpu=gpu, age_s=age_s)
