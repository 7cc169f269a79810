"""Step 1: the ranks form a world."""

from __future__ import annotations

from runner.linting.findings import Finding, Script, ok, wrong
from runner.linting.trace import Event

_NEEDS_INIT = frozenset(
    ("hvd.rank", "hvd.size", "hvd.local_rank", "hvd.local_size", "hvd.DistributedOptimizer", "hvd.broadcast_parameters",
     "hvd.broadcast_optimizer_state", "hvd.allreduce", "hvd.broadcast_variables", "hvd.broadcast_object")
)  # fmt: skip
_GROUP = ("dist.init_process_group", "torch.distributed.device_mesh.init_device_mesh", "dist.init_device_mesh")
_NEEDS_GROUP = frozenset(
    ("dist.get_rank", "dist.get_world_size", "dist.all_reduce", "dist.barrier", "dist.broadcast", "dist.reduce")
)


def judge(script: Script) -> list[Finding]:
    """Whether it initialises Horovod or torch.distributed, before it uses it."""
    trace = script.trace
    if script.way == "none":
        return [
            script.missing(
                "it uses neither Horovod nor torch.distributed: every process would train alone",
                "import horovod.torch as hvd; hvd.init()" if script.framework == "torch"
                else "import horovod.tensorflow.keras as hvd; hvd.init()",
            )
        ]  # fmt: skip
    if script.way == "horovod":
        name, fix, first = "hvd.init", "hvd.init()  # before any other call of Horovod", trace.by_name("hvd.init")
        needs = [event for event in trace.events if event.name in _NEEDS_INIT]
        first += trace.by_name("hvd.elastic.run", "horovod.run", "horovod.spark.run")
    else:
        name, fix = "init_process_group", 'dist.init_process_group("nccl")  # before DistributedDataParallel'
        first = trace.by_name(*_GROUP)
        needs = [event for event in trace.events if event.name in _NEEDS_GROUP or _is_ddp(event)]
    if not first:
        return [script.missing(f"{name} is never called", fix)]
    if all("root" in event.guards or "local_root" in event.guards for event in first):
        return [wrong(f"{name} is called on rank 0 only: the other ranks never join", first[0], fix)]
    early = [event for event in needs if event.certain and first[0].certain and event.number < first[0].number]
    if early and not early[0].function.startswith("is_"):
        return [wrong(f"{early[0].last} is called before {name}", early[0], fix)]
    return [ok(f"{first[0].last}", first[0])]


def _is_ddp(event: Event) -> bool:
    return event.last in ("DistributedDataParallel", "FullyShardedDataParallel") and "class " not in event.name
