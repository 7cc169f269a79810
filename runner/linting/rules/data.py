"""Step 3: each rank trains on its own part of the data."""

from __future__ import annotations

from runner.linting.findings import Finding, Script, ok, unclear, wrong
from runner.linting.loading import FITS, is_backward, loaders, samplers, sharding, trained_on
from runner.linting.names import LOCAL_RANK, LOCAL_SIZE, RANK, SIZE
from runner.linting.trace import Event, Trace, Value

_SHARDS = (".shard",)
_SOURCES = frozenset(
    ("from_tensor_slices", "load_data", "from_generator", "load_dataset", "image_dataset_from_directory",
     "TFRecordDataset", "load")
)  # fmt: skip


def judge(script: Script) -> list[Finding]:
    """Whether the data that it trains on are divided among the ranks."""
    trace, horovod = script.trace, script.way != "ddp"
    fix = (
        "sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank()); "
        "DataLoader(dataset, sampler=sampler)"
        if horovod else "DataLoader(dataset, sampler=DistributedSampler(dataset))"
    )  # fmt: skip
    if script.framework == "tensorflow":
        fix = "dataset = dataset.shard(hvd.size(), hvd.rank())  # before shuffle and batch"
    mistakes = _wrong_parts(script, fix)
    if mistakes:
        return mistakes
    found = loaders(trace)
    train = {tag for over in trained_on(trace) for tag in over.numbered("loader")}
    for event in trace.events:
        if event.name in FITS:
            train |= {tag for value in event.values for tag in value.numbered("loader")}
    chosen = [found[tag] for tag in sorted(train & set(found), key=lambda tag: found[tag].number)]
    if not chosen and found and not script.trace.uncertain and any(is_backward(event) for event in trace.events):
        chosen = [] if len(found) > 1 else list(found.values())
    if chosen:
        return _of_loaders(script, chosen, fix)
    if found:
        kinds = {sharding(event) for event in found.values()}
        first = next(iter(found.values()))
        if kinds & {"sampler", "rank"}:
            return [ok("by the sampler or the rank", first)]
        return [wrong("no loader has a part of the data by the rank: every rank trains on all of them", first, fix)]
    return [_of_anything(script, fix)]


def _wrong_parts(script: Script, fix: str) -> list[Finding]:
    """Parts that are not those of the ranks of the whole job."""
    for event in samplers(script.trace).values():
        replicas, rank = event.argument(1, "num_replicas"), event.argument(2, "rank")
        if rank is not None and rank.has(LOCAL_RANK) and not rank.has(RANK):
            return [wrong("the part is chosen by the local rank: every node trains on the same parts", event, fix)]
        if replicas is not None and replicas.has(LOCAL_SIZE) and not replicas.has(SIZE):
            return [wrong("the data are divided by the ranks of one node only", event, fix)]
        if rank is not None and rank.constant == 0:
            return [wrong("every rank takes part 0 of the data", event, fix)]
        bare = "Distributed" in event.last and rank is None and replicas is None and not event.has_unknown_arguments
        if script.way == "horovod" and bare and not script.trace.by_name("dist.init_process_group"):
            reason = "without num_replicas and rank it asks torch.distributed, which Horovod does not start"
            return [wrong(reason, event, fix)]
    for event in script.trace.by_name(*_SHARDS):
        number, index = event.argument(0, "num_shards"), event.argument(1, "index")
        if number is None or index is None:
            continue
        if number.has(RANK) and index.has(SIZE) and not number.has(SIZE):
            return [wrong("shard takes the number of parts first, then the part", event, fix)]
        if index.has(LOCAL_RANK) and not index.has(RANK):
            return [wrong("the part is chosen by the local rank: every node trains on the same parts", event, fix)]
        if index.constant == 0:
            return [wrong("every rank takes part 0 of the data", event, fix)]
    return []


def _of_loaders(script: Script, chosen: list[Event], fix: str) -> list[Finding]:
    whole = [event for event in chosen if sharding(event) == ""]
    unclear_ones = [event for event in chosen if sharding(event) == "size"]
    if whole and len(whole) == len(chosen):
        event = whole[0]
        if event.has_unknown_arguments:
            return [unclear("the loader's arguments could not be followed", event, fix)]
        if any(value.numbered("plainsampler") for value in event.values):
            return [unclear("a sampler of its own, that is not seen to ask for the rank", event, fix)]
        unused = samplers(script.trace)
        reason = (
            "the sampler is not given to the loader that is trained on"
            if unused else "every rank trains on the whole data set"
        )  # fmt: skip
        return [wrong(reason, event, fix)]
    if unclear_ones and len(unclear_ones) == len(chosen):
        return [unclear("the data depend on the number of ranks, and not on the rank", unclear_ones[0], fix)]
    event = next(event for event in chosen if sharding(event) in ("sampler", "rank"))
    both = [each for each in chosen if sharding(each) == "sampler" and _is_true(each.argument(2, "shuffle"))]
    if both:
        return [
            wrong("shuffle=True and a sampler exclude each other", both[0], "leave shuffle out: the sampler shuffles")
        ]
    epochs = _without_epoch(script.trace, event)
    if epochs is not None:
        reason = "set_epoch is not called: every epoch has the same order"
        return [wrong(reason, epochs, "sampler.set_epoch(epoch)  # first in each epoch")]
    return [ok("by a sampler" if sharding(event) == "sampler" else "by the rank", event)]


def _without_epoch(trace: Trace, loader: Event) -> Event | None:
    """The sampler of a loader that is gone through in several epochs, if nothing tells it the epoch."""
    known = samplers(trace)
    tags = {tag for value in loader.values for tag in value.numbered("sampler")} & set(known)
    if not tags:
        return None
    sampler = known[min(tags)]
    if _is_false(sampler.argument(3, "shuffle")) or "Elastic" in sampler.last:
        return None
    if not any(
        len(event.loops) >= 2 and trace.loops[event.loops[-1]].over.numbered("loader")
        for event in trace.events
        if is_backward(event)
    ):
        return None
    for event in trace.by_name(".set_epoch"):
        owned = event.receiver.numbered("sampler") | {
            tag
            for each in event.receiver.numbered("loader")
            if each in loaders(trace)
            for value in loaders(trace)[each].values
            for tag in value.numbered("sampler")
        }
        if not owned or owned & tags:
            return None
    if trace.uncertain:
        return None
    return sampler


def _of_anything(script: Script, fix: str) -> Finding:
    """Data without a DataLoader: tf.data, arrays, generators."""
    trace = script.trace
    fits = [event for event in trace.events if event.name in FITS]
    given: list[tuple[Event | None, Value]] = []
    for event in fits:
        data = event.argument(0, "x")
        if data is not None:
            given.append((event, data))
    loops = [(None, over) for over in trained_on(trace)]
    sizes = [
        event
        for event in fits
        if any(name in ("steps_per_epoch", "epochs") and value.has(SIZE) for name, value in event.keywords)
    ]
    shards = [event for event in trace.by_name(*_SHARDS) if event.tags & {RANK}]
    for place, value in (*given, *loops):
        if value.has(RANK) or value.numbered("sampler"):
            return ok("by the rank", place)
    if shards:
        return ok("by shard", shards[0])
    half = next((place for place, value in (*given, *loops) if value.has(SIZE)), None)
    if "webdataset.split_by_node" in trace.names:
        return ok("by webdataset's split_by_node")
    if sizes or half or any(value.has(SIZE) for _, value in (*given, *loops)):
        reason = "each rank takes a part of the steps, and shuffles all data with its own seed"
        return unclear(reason, sizes[0] if sizes else half, fix)
    sources = trace.calls(lambda event: event.last in _SOURCES)
    if trace.uncertain:
        return unclear(trace.uncertain, fix=fix)
    made = trace.by_name("tensorflow.data.Dataset.from_tensor_slices", "tensorflow.data.TFRecordDataset")
    if (given or loops) and (made or (given and sources)):
        return wrong("every rank trains on the whole data set", (made or sources)[0], fix)
    if script.way == "none" and (given or loops):
        return script.missing("the data are not divided among the ranks", fix)
    return unclear("no data set that can be seen", fix=fix)


def _is_true(value: Value | None) -> bool:
    return value is not None and value.constant is True


def _is_false(value: Value | None) -> bool:
    return value is not None and value.constant is False
