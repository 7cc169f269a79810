"""Steps 1 to 4: a world, a GPU for each rank, its own part of the data, and a rate for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from runner.linting.names import NOTHING, WRAPPED_MODELS, Value, names_in, rate_of, tagged, union
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
_ANY = tagged("any GPU")


@rule(1, "initialise")
def initialise(script: Script) -> Iterator[Finding]:
    """Whether it initialises Horovod or torch.distributed, before it uses it."""
    fix = script.fix('dist.init_process_group("nccl")  # before DistributedDataParallel',
                     "hvd.init()  # before any other call of Horovod")  # fmt: skip
    if script.way == "none":
        fix = script.fix('import torch.distributed as dist; dist.init_process_group("nccl")',
                         "import horovod.torch as hvd; hvd.init()",
                         "import horovod.tensorflow.keras as hvd; hvd.init()")  # fmt: skip
        yield script.missing("it uses neither Horovod nor torch.distributed: every process would train alone", fix)
    elif script.way == "horovod":
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
    good = [event for event, value in pins if value.has("local_rank")]
    hides = [event for event in good if event.name in (*_VISIBLE, "set env", "set visible_device_list")]
    for event, value in pins:
        if value.has("rank") and event not in good:
            reason = "the GPU is chosen by the rank of the whole job: a second node has no GPU of that number"
            yield wrong(reason, event, fix)
        if value.has("fixed") and event not in good and not hides:
            yield wrong("every rank of a node takes the same GPU", event, fix)
    if good:
        yield ok("by the local rank", good[0])
    if any(value.constant in ("", "-1", ()) for _, value in pins):
        yield ok("it hides the GPUs")
    for event, value in pins:
        if value is not _ANY:
            yield unclear("the number of the GPU could not be followed", event, fix)
    if script.is_tensorflow:
        yield script.missing("TensorFlow takes every GPU of the node on each rank", fix)
    if pins:
        yield script.missing("no GPU is chosen, so every rank of a node takes GPU 0", fix)
    yield unclear("it uses no GPU that can be seen")


def _pin(event: Event) -> Value | None:
    """The GPU that a call takes; None where it takes none."""
    first = event.argument(0, "device") or NOTHING
    by_env = event.name == "set env" and first.constant == _DEVICES
    value: Value | None = first
    if event.name == "set visible_device_list" or by_env or event.name == ".cuda":
        value = event.arguments[-1] if event.arguments else _ANY
    elif event.name in _VISIBLE:
        value = first.items[0] if len(first.items) == 1 else first
    elif event.name == "torch.device" and (first.constant is ... or str(first.constant).startswith("cuda")):
        value = event.argument(1, "index") or (first if first.has("fixed", "rank", "local_rank") else _ANY)
    elif event.name == ".to" and not (first.has("fixed", "rank", "local_rank") or type(first.constant) is int):
        value = _ANY if first.constant == "cuda" else None
    elif event.last == "DistributedDataParallel":
        value = next(iter((event.argument(1, "device_ids") or NOTHING).items), None)
    elif event.name not in _SET and event.name != ".to":
        return None
    number = value.constant if value is not None else None
    return tagged("fixed") if type(number) is int or (isinstance(number, str) and number.isdigit()) else value


_SOURCES = names_in("from_tensor_slices load_data from_generator load_dataset load image_dataset_from_directory "
                 "TFRecordDataset", "*.")  # fmt: skip
_MADE = ("tensorflow.data.Dataset.from_tensor_slices", "tensorflow.data.TFRecordDataset")
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
    evaluated = script.evaluated if script.trained_on or given else frozenset()
    chosen = [event for event in script.loaders if f"loader:{event.number}" in used]
    chosen = chosen or [event for event in script.loaders if f"loader:{event.number}" not in evaluated]
    yield from _judge_loaders(script, chosen, fix) if chosen else _judge_other_data(script, fix)


def _wrong_parts(script: Script, fix: str) -> Iterator[Finding]:
    """Parts that are not those of the ranks of the whole job."""
    for event in (*script.samplers, *script.calls(".shard")):
        place = int(event in script.samplers)
        number = event.argument(place, "num_replicas", "num_shards") or NOTHING
        rank = event.argument(place + 1, "rank", "index") or NOTHING
        if rank.has("local_rank") and not rank.has("rank"):
            yield wrong("the part is chosen by the local rank: every node trains on the same parts", event, fix)
        if number.has("local_size") and not number.has("size"):
            yield wrong("the data are divided by the ranks of one node only", event, fix)
        if rank.constant == 0:
            yield wrong("every rank takes part 0 of the data", event, fix)
        if number.has("rank") and rank.has("size") and not number.has("size"):
            yield wrong("shard takes the number of parts first, then the part", event, fix)
        is_bare = event.argument(1, "num_replicas") is event.argument(2, "rank") is None
        bare = "Distributed" in event.last and is_bare and not event.has_unknown_arguments
        if script.way == "horovod" and bare and not script.calls("dist.init_process_group"):
            reason = "without num_replicas and rank it asks torch.distributed, which Horovod does not start"
            yield wrong(reason, event, fix)


def _judge_loaders(script: Script, chosen: list[Event], fix: str) -> Iterator[Finding]:
    kinds = [sharding(event) for event in chosen]
    first = chosen[0]
    if not any(kinds):
        if first.has_unknown_arguments:
            yield unclear("the loader's arguments could not be followed", first, fix)
        if union(first.values).things("plainsampler"):
            yield unclear("a sampler of its own, that is not seen to ask for the rank", first, fix)
        reason = "the sampler is not given to the loader that is trained on" if script.samplers else _WHOLE
        yield wrong(reason, first, fix)
    for event, kind in zip(chosen, kinds, strict=True):
        if kind == "sampler" and (event.argument(2, "shuffle") or NOTHING).constant is True:
            leave_out = "leave shuffle out: the sampler shuffles"
            yield wrong("shuffle=True and a sampler exclude each other", event, leave_out)
    for event, kind in zip(chosen, kinds, strict=True):
        if kind in ("sampler", "rank"):
            sampler = _without_epoch(script, event)
            if sampler is not None:
                reason = "set_epoch is not called: every epoch has the same order"
                yield wrong(reason, sampler, "sampler.set_epoch(epoch)  # first in each epoch")
            yield ok("by a sampler" if kind == "sampler" else "by the rank", event)
    yield unclear("the data depend on the number of ranks, and not on the rank", first, fix)


def _without_epoch(script: Script, loader: Event) -> Event | None:
    """The sampler of a loader that is gone through in several epochs, if nothing tells it the epoch."""
    tags = union(loader.values).things("sampler")
    sampler = next((event for event in script.samplers if f"sampler:{event.number}" in tags), None)
    again = any(len(event.loops) >= 2 and script.over(event.loops[-1]).things("loader") for event in script.backward)
    if sampler is None or "Elastic" in sampler.last or script.uncertain or not again:
        return None
    if (sampler.argument(3, "shuffle") or NOTHING).constant is False:
        return None
    for event in script.calls(".set_epoch"):
        owners = event.receiver.things("sampler", "loader")
        given = [each.values for each in script.loaders if f"loader:{each.number}" in owners]
        if not owners or (owners | union(value for values in given for value in values).tags) & tags:
            return None
    return sampler


def _judge_other_data(script: Script, fix: str) -> Iterator[Finding]:
    """Data without a DataLoader: tf.data, arrays, generators."""
    given = [(event, value) for event in script.fits if (value := event.argument(0, "x")) is not None]
    data: list[tuple[Event | None, Value]] = [*given, *((None, over) for over in script.trained_on)]
    by_rank = [event for event, value in data if value.has("rank") or value.things("sampler")]
    by_rank += [event for event in script.calls(".shard") if "rank" in event.tags]
    if by_rank:
        yield ok("by the rank", by_rank[0])
    if "webdataset.split_by_node" in script.names:
        yield ok("by webdataset's split_by_node")
    parts = [event for event, value in data if value.has("size")]
    parts += [event for event in script.fits for name in ("steps_per_epoch", "epochs")
              if (event.argument(None, name) or NOTHING).has("size")]  # fmt: skip
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
        if value.has("over_size"):
            yield wrong("the rate is divided by the number of ranks", event, fix)
    schedules = [(event, _schedule(event)) for event in script.events]
    for event, value in (*rates, *schedules):
        if value.has("size"):
            yield ok(by_size, event)
    first = rates[0][0] if rates else None
    if script.names & {"hvd.Adasum", "hvd.DistributedAdasumOptimizer"}:
        yield ok("Adasum needs no scaling", first)
    sizes = [(event, event.argument(1, "batch_size")) for event in script.loaders]
    for event, size in (*sizes, *((event, event.argument(0)) for event in script.calls(".batch"))):
        if size is not None and size.has("over_size"):
            yield ok("the batch is divided instead", event)
    if script.way == "ddp":
        reason = "the rate does not depend on the number of ranks; with DDP many leave it to the user"
        yield unclear(reason, first, fix)
    for event, value in rates:
        if value.has("local_size"):
            yield wrong("the rate is scaled by the ranks of one node only", event, fix)
    reason = "the rate does not depend on the number of ranks"
    if script.way == "none":
        yield script.missing(reason, fix, first)
    if first is None:
        wrapped = script.calls("hvd.DistributedOptimizer")
        yield unclear("no optimizer whose rate can be seen", wrapped[0] if wrapped else None, fix)
        return
    if first.has_unknown_arguments:
        yield unclear("the optimizer's arguments could not be followed", first, fix)
    if script.uncertain:
        yield unclear(script.uncertain, first, fix)
    if not script.reads_data:
        yield unclear("no data set that can be seen: a benchmark needs no scaled rate", first, fix)
    yield wrong(reason, first, fix)


def _rate(optimizer: Event) -> Value:
    place = 0 if optimizer.name.startswith(("keras.", "tensorflow.")) else 1
    return optimizer.argument(place, "lr", "learning_rate") or NOTHING


def _schedule(event: Event) -> Value:
    """What a schedule is made with; what a class of the script asks for elsewhere is not for its method."""
    name = event.name.lower()
    if name in ("set lr", "set learning_rate"):
        return event.arguments[0]
    if not (any(part in name for part in ("schedule", "warmup", "decay")) or name.endswith("lr")):
        return NOTHING
    return Value(rate_of(event) | (frozenset() if name.startswith("local ") else event.receiver.tags))
