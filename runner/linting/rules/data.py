"""Steps 3 and 4: each rank trains on its own part of the data, at a rate for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from runner.linting.findings import Finding, ok, rule, unclear, wrong
from runner.linting.names import LOCAL_RANK, LOCAL_SIZE, RANK, SIZE, words
from runner.linting.script import Script, sharding
from runner.linting.trace import Event
from runner.linting.values import NOTHING, Value, rate_of, union

_SOURCES = words("from_tensor_slices load_data from_generator load_dataset load image_dataset_from_directory "
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
        yield from _of_loaders(script, chosen, fix)
    if script.loaders:
        if {sharding(event) for event in script.loaders} & {"sampler", "rank"}:
            yield ok("by the sampler or the rank", script.loaders[0])
        reason = "no loader has a part of the data by the rank: every rank trains on all of them"
        yield wrong(reason, script.loaders[0], fix)
    yield from _of_anything(script, fix)


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


def _of_loaders(script: Script, chosen: list[Event], fix: str) -> Iterator[Finding]:
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
    if not any(len(event.loops) >= 2 and event.loops[-1].over.things("loader") for event in script.backward):
        return None
    for event in script.calls(".set_epoch"):
        owners = event.receiver.things("sampler", "loader")
        of_loaders = [each.values for each in script.loaders if f"loader:{each.number}" in owners]
        owned = owners | union(value for values in of_loaders for value in values).tags
        if not owners or owned & tags:
            return None
    return None if script.uncertain else sampler


def _of_anything(script: Script, fix: str) -> Iterator[Finding]:
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
