"""Steps 1 to 4: a world, a GPU for each rank, its own part of the data, and a rate for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from runner.linting.names import (
    LOCAL_RANK,
    LOCAL_SIZE,
    NOTHING,
    RANK,
    SIZE,
    WRAPPED_MODELS,
    Value,
    names_in,
    rate_of,
    tagged,
    union,
)
from runner.linting.script import Event, Finding, Script, ok, rule, sharding, unclear, wrong

_NEEDS_INIT = names_in("rank size local_rank local_size DistributedOptimizer broadcast_parameters allreduce "
                    "broadcast_optimizer_state broadcast_variables broadcast_object", "hvd.")  # fmt: skip
_NEEDS_GROUP = names_in("get_rank get_world_size all_reduce barrier broadcast reduce", "dist.")
_INIT = ("hvd.init", "hvd.elastic.run", "horovod.run", "horovod.spark.run")
_GROUP = ("dist.init_process_group", "torch.distributed.device_mesh.init_device_mesh", "dist.init_device_mesh")
_SET = names_in("cuda.set_device accelerator.set_device_index accelerator.set_device accelerator.device_index "
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
    if early and not early[0].node.frame().name.startswith("is_"):
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


_SOURCES = names_in("from_tensor_slices load_data from_generator load_dataset load image_dataset_from_directory "
                 "TFRecordDataset", "*.")  # fmt: skip
_MADE = ("tensorflow.data.Dataset.from_tensor_slices", "tensorflow.data.TFRecordDataset")
_BY_NODE = "the part is chosen by the local rank: every node trains on the same parts"
_PART_0 = "every rank takes part 0 of the data"
_WHOLE = "every rank trains on the whole data set"


@rule(3, "shard the data")
def shard(script: Script) -> Iterator[Finding]:
    """Whether the data that it trains on are divided among the ranks."""
    fix = script.fix(
        "DataLoader(dataset, sampler=DistributedSampler(dataset))",
        "sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank()); "
        "DataLoader(dataset, sampler=sampler)",
        "dataset = dataset.shard(hvd.size(), hvd.rank())  # before shuffle and batch",
    )
    yield from _wrong_parts(script, fix)
    given = [value for event in script.fits for value in event.values]
    used = union((*script.trained_on, *given)).things("loader")
    chosen = [event for event in script.loaders if f"loader:{event.number}" in used]
    if not chosen and len(script.loaders) == 1 and script.backward and not script.uncertain:
        chosen = script.loaders
    if chosen:
        yield from _judge_loaders(script, chosen, fix)
    if script.loaders:
        if {sharding(event) for event in script.loaders} & {"sampler", "rank"}:
            yield ok("by the sampler or the rank", script.loaders[0])
        reason = "no loader has a part of the data by the rank: every rank trains on all of them"
        yield wrong(reason, script.loaders[0], fix)
    yield from _judge_other_data(script, fix)


def _wrong_parts(script: Script, fix: str) -> Iterator[Finding]:
    """Parts that are not those of the ranks of the whole job."""
    for event in script.samplers:
        replicas, rank = event.argument(1, "num_replicas"), event.argument(2, "rank")
        if rank is not None and rank.has(LOCAL_RANK) and not rank.has(RANK):
            yield wrong(_BY_NODE, event, fix)
        if replicas is not None and replicas.has(LOCAL_SIZE) and not replicas.has(SIZE):
            yield wrong("the data are divided by the ranks of one node only", event, fix)
        if rank is not None and rank.constant == 0:
            yield wrong(_PART_0, event, fix)
        bare = "Distributed" in event.last and rank is None and replicas is None and not event.has_unknown_arguments
        if script.way == "horovod" and bare and not script.calls("dist.init_process_group"):
            reason = "without num_replicas and rank it asks torch.distributed, which Horovod does not start"
            yield wrong(reason, event, fix)
    for event in script.calls(".shard"):
        number, index = event.argument(0, "num_shards") or NOTHING, event.argument(1, "index") or NOTHING
        if number.has(RANK) and index.has(SIZE) and not number.has(SIZE):
            yield wrong("shard takes the number of parts first, then the part", event, fix)
        if index.has(LOCAL_RANK) and not index.has(RANK):
            yield wrong(_BY_NODE, event, fix)
        if index.constant == 0:
            yield wrong(_PART_0, event, fix)


def _judge_loaders(script: Script, chosen: list[Event], fix: str) -> Iterator[Finding]:
    kinds = [sharding(event) for event in chosen]
    first = chosen[0]
    if not any(kinds):
        if first.has_unknown_arguments:
            yield unclear("the loader's arguments could not be followed", first, fix)
        if union(first.values).things("plainsampler"):
            yield unclear("a sampler of its own, that is not seen to ask for the rank", first, fix)
        yield wrong("the sampler is not given to the loader that is trained on" if script.samplers else _WHOLE,
                    first, fix)  # fmt: skip
    for event, kind in zip(chosen, kinds, strict=True):
        shuffle = event.argument(2, "shuffle")
        if kind == "sampler" and shuffle is not None and shuffle.constant is True:
            yield wrong(
                "shuffle=True and a sampler exclude each other", event, "leave shuffle out: the sampler shuffles"
            )
    divided = [event for event, kind in zip(chosen, kinds, strict=True) if kind in ("sampler", "rank")]
    if not divided:
        yield unclear("the data depend on the number of ranks, and not on the rank", first, fix)
    event = divided[0]
    sampler = _without_epoch(script, event)
    if sampler is not None:
        reason = "set_epoch is not called: every epoch has the same order"
        yield wrong(reason, sampler, "sampler.set_epoch(epoch)  # first in each epoch")
    yield ok("by a sampler" if sharding(event) == "sampler" else "by the rank", event)


def _without_epoch(script: Script, loader: Event) -> Event | None:
    """The sampler of a loader that is gone through in several epochs, if nothing tells it the epoch."""
    tags = union(loader.values).things("sampler")
    sampler = next((event for event in script.samplers if f"sampler:{event.number}" in tags), None)
    if sampler is None or (sampler.argument(3, "shuffle") or NOTHING).constant is False or "Elastic" in sampler.last:
        return None
    if not any(len(event.loops) >= 2 and script.over(event.loops[-1]).things("loader") for event in script.backward):
        return None
    for event in script.calls(".set_epoch"):
        owners = event.receiver.things("sampler", "loader")
        of_loaders = [each.values for each in script.loaders if f"loader:{each.number}" in owners]
        owned = owners | union(value for values in of_loaders for value in values).tags
        if not owners or owned & tags:
            return None
    return None if script.uncertain else sampler


def _judge_other_data(script: Script, fix: str) -> Iterator[Finding]:
    """Data without a DataLoader: tf.data, arrays, generators."""
    given = [(event, value) for event in script.fits if (value := event.argument(0, "x")) is not None]
    data: list[tuple[Event | None, Value]] = [*given, *((None, over) for over in script.trained_on)]
    for event, value in data:
        if value.has(RANK) or value.things("sampler"):
            yield ok("by the rank", event)
    for event in script.calls(".shard"):
        if RANK in event.tags:
            yield ok("by shard", event)
    if "webdataset.split_by_node" in script.names:
        yield ok("by webdataset's split_by_node")
    parts = [event for event, value in data if value.has(SIZE)]
    parts += [event for event in script.fits for name in ("steps_per_epoch", "epochs")
              if (event.argument(None, name) or NOTHING).has(SIZE)]  # fmt: skip
    if parts:
        yield unclear("each rank takes a part of the steps, and shuffles all data with its own seed", parts[0], fix)
    if script.uncertain:
        yield unclear(script.uncertain, fix=fix)
    made = script.calls(*_MADE) or (script.calls(*_SOURCES) if given else [])
    if data and made:
        yield wrong(_WHOLE, made[0], fix)
    if script.way == "none" and data:
        yield script.missing("the data are not divided among the ranks", fix)
    yield unclear("no data set that can be seen", fix=fix)


@rule(4, "scale the rate")
def rate(script: Script) -> Iterator[Finding]:
    """Whether a rate depends on the number of ranks."""
    fix = script.fix("lr = base_lr * dist.get_world_size()", "lr = base_lr * hvd.size(), with a warm-up of some epochs")
    rates = [(event, _rate(event)) for event in script.optimizers]
    known = " ".join((*script.resolver.texts, *(event.name for event in script.events))).lower()
    warm = any(word in known for word in ("warmup", "warm_up", "warm-up"))
    by_size = "by the number of ranks" + ("" if warm else "; no warm-up that can be seen")
    for event, value in rates:
        if value is not None and value.has("over_size"):
            yield wrong("the rate is divided by the number of ranks", event, fix)
    for event, value in rates:
        if value is not None and value.has(SIZE):
            yield ok(by_size, event)
    for event in script.events:
        if (event.name in ("set lr", "set learning_rate") and SIZE in event.tags) or SIZE in _schedule(event):
            yield ok(by_size, event)
    first, value = rates[0] if rates else (None, None)
    if script.names & {"hvd.Adasum", "hvd.DistributedAdasumOptimizer"}:
        yield ok("Adasum needs no scaling", first)
    sizes = [(event, event.argument(1, "batch_size")) for event in script.loaders]
    for event, size in (*sizes, *((event, event.argument(0)) for event in script.calls(".batch"))):
        if size is not None and size.has("over_size"):
            yield ok("the batch is divided instead", event)
    if script.way == "ddp":
        reason = "the rate does not depend on the number of ranks; with DDP many leave it to the user"
        yield unclear(reason, first, fix)
    for event, size in rates:
        if size is not None and size.has(LOCAL_SIZE):
            yield wrong("the rate is scaled by the ranks of one node only", event, fix)
    reason = "the rate does not depend on the number of ranks"
    if script.way == "none":
        yield script.missing(reason, fix, first)
    if first is None:
        wrapped = script.calls("hvd.DistributedOptimizer")
        yield unclear("no optimizer whose rate can be seen", wrapped[0] if wrapped else None, fix)
        return
    if value is None and first.has_unknown_arguments:
        yield unclear("the optimizer's arguments could not be followed", first, fix)
    if script.uncertain:
        yield unclear(script.uncertain, first, fix)
    if not script.reads_data:
        yield unclear("no data set that can be seen: a benchmark needs no scaled rate", first, fix)
    yield wrong(reason, first, fix)


def _rate(optimizer: Event) -> Value | None:
    place = 0 if optimizer.name.startswith(("keras.", "tensorflow.")) else 1
    return optimizer.argument(place, "lr", "learning_rate")


def _schedule(event: Event) -> frozenset[str]:
    """What a schedule is made with; what a class of the script asks for elsewhere is not for its method."""
    name = event.name.lower()
    if not (any(part in name for part in ("schedule", "warmup", "decay")) or name.endswith("lr")):
        return frozenset()
    return rate_of(event) | (frozenset() if name.startswith("local ") else event.receiver.tags)
