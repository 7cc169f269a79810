"""Steps 1 and 2: the ranks form a world, and each has the GPU of its local rank."""

from __future__ import annotations

from collections.abc import Iterator

from runner.linting.findings import Finding, ok, rule, unclear, wrong
from runner.linting.names import LOCAL_RANK, RANK, WRAPPED_MODELS, words
from runner.linting.script import Script
from runner.linting.trace import Event
from runner.linting.values import NOTHING, Value, tagged

_NEEDS_INIT = words("rank size local_rank local_size DistributedOptimizer broadcast_parameters allreduce "
                    "broadcast_optimizer_state broadcast_variables broadcast_object", "hvd.")  # fmt: skip
_NEEDS_GROUP = words("get_rank get_world_size all_reduce barrier broadcast reduce", "dist.")
_INIT = ("hvd.init", "hvd.elastic.run", "horovod.run", "horovod.spark.run")
_GROUP = ("dist.init_process_group", "torch.distributed.device_mesh.init_device_mesh", "dist.init_device_mesh")
_SET = words("cuda.set_device accelerator.set_device_index accelerator.set_device accelerator.device_index "
             "xpu.set_device", "torch.")  # fmt: skip
_VISIBLE = ("tensorflow.config.set_visible_devices", "tensorflow.config.experimental.set_visible_devices")
_DEVICES = "CUDA_VISIBLE_DEVICES"
_ANY, _NONE = tagged("any GPU"), tagged("no GPU")


@rule(1, "initialise")
def initialise(script: Script) -> Iterator[Finding]:
    """Whether it initialises Horovod or torch.distributed, before it uses it."""
    if script.way == "none":
        tensorflow = "import horovod.tensorflow.keras as hvd; hvd.init()"
        torch = 'import torch.distributed as dist; dist.init_process_group("nccl")'
        fix = script.fix(torch, "import horovod.torch as hvd; hvd.init()", tensorflow)
        yield script.missing("it uses neither Horovod nor torch.distributed: every process would train alone", fix)
    fix = script.fix('dist.init_process_group("nccl")  # before DistributedDataParallel',
                     "hvd.init()  # before any other call of Horovod")  # fmt: skip
    if script.way == "horovod":
        name, first, needs = "hvd.init", script.calls(*_INIT), script.calls(*_NEEDS_INIT)
    else:
        name, first = "init_process_group", script.calls(*_GROUP)
        needs = script.calls(*_NEEDS_GROUP, *(f"*.{each}" for each in WRAPPED_MODELS))
    if not first:
        yield script.missing(f"{name} is never called", fix)
    if all(event.guards & {"root", "local_root"} for event in first):
        yield wrong(f"{name} is called on rank 0 only: the other ranks never join", first[0], fix)
    early = [event for event in needs if event.certain and first[0].certain and event.order < first[0].order]
    if early and not early[0].function.startswith("is_"):
        yield wrong(f"{early[0].last} is called before {name}", early[0], fix)
    yield ok(first[0].last, first[0])


@rule(2, "GPU of the local rank")
def gpu(script: Script) -> Iterator[Finding]:
    """Which GPU a rank takes."""
    pins = [(event, value) for event in script.events if (value := _pin(event)) is not None]
    fix = script.fix(
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', "torch.cuda.set_device(hvd.local_rank())",
        'gpus = tf.config.list_physical_devices("GPU"); tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")',
    )  # fmt: skip
    good = [event for event, value in pins if value.has(LOCAL_RANK)]
    other = [(event, value) for event, value in pins if not value.has(LOCAL_RANK)]
    for event, value in other:
        if value.has(RANK):
            reason = "the GPU is chosen by the rank of the whole job: a second node has no GPU of that number"
            yield wrong(reason, event, fix)
    hides = [event for event in good if event.name in (*_VISIBLE, "set env", "set visible_device_list")]
    for event, value in other:
        if not hides and (value.has("fixed") or _is_number(value)):
            yield wrong("every rank of a node takes the same GPU", event, fix)
    if good:
        yield ok("by the local rank", good[0])
    if any(value is _NONE for _, value in pins):
        yield ok("it hides the GPUs")
    for event, value in pins:
        if value is not _ANY:
            yield unclear("the number of the GPU could not be followed", event, fix)
    if script.is_tensorflow:
        yield script.missing("TensorFlow takes every GPU of the node on each rank", fix)
    if pins:
        yield script.missing("no GPU is chosen, so every rank of a node takes GPU 0", fix)
    yield unclear("it uses no GPU that can be seen")


def _is_number(value: Value) -> bool:
    return type(value.constant) is int


def _pin(event: Event) -> Value | None:
    """The GPU that a call takes; None where it takes none."""
    first = event.argument(0, "device") or NOTHING
    if event.name in _SET:
        return first
    if event.name in _VISIBLE:
        return _NONE if first.constant == () else first.items[0] if len(first.items) == 1 else first
    if event.name == "set visible_device_list" or (event.name == "set env" and first.constant == _DEVICES):
        value = event.arguments[-1]
        text = value.constant if isinstance(value.constant, str) else None
        return _NONE if text in ("", "-1") else tagged("fixed") if text and text.isdigit() else value
    chosen = first.has("fixed", RANK, LOCAL_RANK)
    if event.name == "torch.device":
        index = event.argument(1, "index")
        kind = first.constant if isinstance(first.constant, str) else "cuda"
        return index or (None if not kind.startswith("cuda") else first if chosen else _ANY)
    if event.name == ".cuda":
        return event.argument(0, "device") or _ANY
    if event.name == ".to":
        return first if chosen or _is_number(first) else _ANY if first.constant == "cuda" else None
    if event.last == "DistributedDataParallel":
        return next(iter((event.argument(1, "device_ids") or NOTHING).items), None)
    return first if event.name == "tensorflow.device" and first.has("fixed") else None
