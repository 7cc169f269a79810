"""The rules of the eight steps: each says what it finds, the most certain first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from astroid import nodes

from runner.linting.script import Claim, Rule, Script
from runner.linting.values import NOTHING, Call, Value, rate_of, tagged, union

_ANY_GPU = tagged("any GPU")
_WHOLE = "every rank trains on the whole data set"
_WAITING = "only some of the ranks come here, and wait for the others"
_METRIC = re.compile(
    r"loss|acc(?![a-z]*el)|metric|correct|error_rate|score|auc|perplex|\bppl|bleu|\bmae\b|rmse|\bmse\b|\biou\b|\bf1\b",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"\b(test|val|valid|validation|eval|evaluation)\b", re.IGNORECASE)


def _having(pairs: Iterable[tuple[Call, Value]], *tags: str) -> list[Call]:
    """The calls whose value has any of these tags."""
    return [call for call, value in pairs if value.has(*tags)]


def initialise(script: Script) -> Iterator[Claim]:
    """Whether it initialises Horovod or torch.distributed, before it uses it."""
    name = "hvd.init" if script.way == "horovod" else "init_process_group"
    first = script.calls(f"init {script.way}") if script.way != "none" else []
    alone = "it uses neither Horovod nor torch.distributed: every process would train alone"
    yield "missing", script.way == "none", alone
    yield "missing", not first, f"{name} is never called"
    by_root = all(call.guards & {"root", "local_root"} for call in first)
    yield "wrong", first if by_root else [], f"{name} is called on rank 0 only: the other ranks never join"
    early = (call for call in script.calls(f"needs {script.way}") if call.certain and first[0].certain
             and call.order < first[0].order and not call.node.frame().name.startswith("is_"))  # fmt: skip
    yield "wrong", early, f"{{}} is called before {name}"
    yield "ok", first, "{}"


def gpu(script: Script) -> Iterator[Claim]:
    """Which GPU a rank takes."""
    pins = {call: value for call in script.every if (value := _pin(call)) is not None}
    good = _having(pins.items(), "local_rank")
    others = [(call, value) for call, value in pins.items() if call not in good]
    by_rank = "the GPU is chosen by the rank of the whole job: a second node has no GPU of that number"
    yield "wrong", _having(others, "rank"), by_rank
    hides = any(call.means("visible", "set.*") for call in good)
    yield "wrong", [] if hides else _having(others, "fixed"), "every rank of a node takes the same GPU"
    yield "ok", good, "by the local rank"
    yield "ok", any(value.constant in ("", "-1", ()) for value in pins.values()), "it hides the GPUs"
    known = (call for call, value in pins.items() if value is not _ANY_GPU)
    yield "cannot tell", known, "the number of the GPU could not be followed"
    yield "missing", script.is_tensorflow, "TensorFlow takes every GPU of the node on each rank"
    yield "missing", bool(pins), "no GPU is chosen, so every rank of a node takes GPU 0"
    yield "cannot tell", True, "it uses no GPU that can be seen"


def _pin(call: Call) -> Value | None:
    """The GPU that a call takes; None where it takes none."""
    by_variable = call.name == "set.env" and call.argument(0).constant == "CUDA_VISIBLE_DEVICES"
    value: Value | None = call.argument(int(by_variable), "device")
    if call.means("*.DistributedDataParallel"):
        value = next(iter(call.argument(1, "device_ids").items), None)
    elif call.name == "torch.device" and call.given(1, "index") is not None:
        value = call.argument(1, "index")
    if value is None or not (by_variable or call.means("takes a gpu")):
        return None
    value = value.items[0] if len(value.items) == 1 else value
    named = any(re.fullmatch(r"(cuda|/?(device:)?gpu):\d+", str(each).lower()) for each in value.constants)
    if value.has("fixed") or named or re.fullmatch(r"\d+", str(value.constant)):
        return tagged("fixed")
    is_named = call.means("set device", "visible", "set.*") or value.has("rank", "local_rank")
    if is_named or (value and call.name == ".cuda"):
        return value
    any_gpu = call.name == ".cuda" or "cuda" in value.constants or (call.name == "torch.device" and not value.constants)
    return _ANY_GPU if any_gpu else value if call.last == "DistributedDataParallel" else None


def shards(script: Script) -> Iterator[Claim]:
    """Parts of the data that are not those of the ranks of the whole job."""
    by_horovod = script.way == "horovod" and not script.calls("dist.init_process_group")
    for call in (*script.samplers, *script.calls(".shard")):
        place = int(call.name != ".shard")
        number, rank = call.argument(place, "num_replicas", "num_shards"), call.argument(place + 1, "rank", "index")
        by_node = rank.has("local_rank") and not rank.has("rank")
        of_node = number.has("local_size") and not number.has("size")
        swapped = number.has("rank") and rank.has("size") and not number.has("size")
        bare = "" not in call.keywords and call.given(1, "num_replicas") is call.given(2, "rank") is None
        for is_so, reason in (
            (by_node, "the part is chosen by the local rank: every node trains on the same parts"),
            (of_node, "the data are divided by the ranks of one node only"),
            (rank.constant == 0, "every rank takes part 0 of the data"),
            (swapped, "shard takes the number of parts first, then the part"),
            (bare and by_horovod and "Distributed" in call.last,
             "without num_replicas and rank it asks torch.distributed, which Horovod does not start"),
        ):  # fmt: skip
            yield "wrong", [call] if is_so else [], reason


def loaders(script: Script) -> Iterator[Claim]:
    """Whether the loader that it trains on has a part for each rank."""
    given = [value for call in script.fits for value in call.values]
    used = union((*script.trained_on, *given)).things("loader")
    evaluated = script.evaluated if script.trained_on or given else frozenset()
    chosen = [call for call in script.loaders if call.thing("loader") in used]
    chosen = chosen or [call for call in script.loaders if call.thing("loader") not in evaluated]
    first, by = chosen[:1], {call: script.sharding(call) for call in chosen}
    if not any(by.values()):
        yield "cannot tell", _with_unknown(first), "the loader's arguments could not be followed"
        own = (call for call in first if union(call.values).things("plainsampler"))
        yield "cannot tell", own, "a sampler of its own, that is not seen to ask for the rank"
        yield "wrong", first, "the sampler is not given to the loader that is trained on" if script.samplers else _WHOLE
    sampled = [call for call in chosen if by[call] == "sampler"]
    shuffled = (call for call in sampled if call.argument(2, "shuffle").constant is True)
    yield "wrong", shuffled, "shuffle=True and a sampler exclude each other", "leave shuffle out: the sampler shuffles"
    again = any(len(call.loops) >= 2 and script.over(call.loops[-1]).things("loader") for call in script.backward)
    same = _same_order(script, sampled[:1]) if again and not script.uncertain else []
    fix = "sampler.set_epoch(epoch)  # first in each epoch"
    yield "wrong", same, "set_epoch is not called: every epoch has the same order", fix
    yield "ok", sampled, "by a sampler"
    yield "ok", (call for call in chosen if by[call] == "rank"), "by the rank"
    yield "cannot tell", first, "the data depend on the number of ranks, and not on the rank"


def _with_unknown(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if "" in call.keywords]


def _same_order(script: Script, loaders: list[Call]) -> list[Call]:
    """The sampler of a loader, if it shuffles and nothing tells it the epoch."""
    tags = union(value for each in loaders for value in each.values).things("sampler")
    told = [call.receiver.things("sampler", "loader") for call in script.calls(".set_epoch")]
    is_told = any(not owners or owners & tags for owners in told)
    return [call for call in script.samplers if call.thing("sampler") in tags and "Elastic" not in call.last
            and call.argument(3, "shuffle").constant is not False and not is_told]  # fmt: skip


def other_data(script: Script) -> Iterator[Claim]:
    """Data without a DataLoader: tf.data, arrays, generators."""
    given = [(call, value) for call in script.fits if (value := call.given(0, "x")) is not None]
    data = [*given, *((Call("for", None), over) for over in script.trained_on)]
    yield "ok", (call for call, value in data if value.has("rank") or value.things("sampler")), "by the rank"
    yield "ok", _having(((call, union(call.values)) for call in script.calls(".shard")), "rank"), "by the rank"
    yield "ok", "webdataset.split_by_node" in script.names, "by webdataset's split_by_node"
    steps = [(call, call.argument(None, name)) for call in script.fits for name in ("steps_per_epoch", "epochs")]
    by_size = "each rank takes a part of the steps, and shuffles all data with its own seed"
    yield "cannot tell", _having((*data, *steps), "size"), by_size
    yield "cannot tell", bool(script.uncertain), script.uncertain
    made = script.calls("made data") or (script.calls("fit data") if given else [])
    yield "wrong", made if data else [], _WHOLE
    yield "missing", script.way == "none" and bool(data), "the data are not divided among the ranks"
    yield "cannot tell", True, "no data set that can be seen"


def rate(script: Script) -> Iterator[Claim]:
    """Whether a rate depends on the number of ranks."""
    rates = [(call, call.argument(int(not call.means("keras.* tensorflow.*")), "lr", "learning_rate"))
             for call in script.optimizers]  # fmt: skip
    first = script.optimizers[:1]
    yield "wrong", _having(rates, "over_size"), "the rate is divided by the number of ranks"
    known = " ".join((*script.texts, *(call.name for call in script.every))).lower()
    warm = "" if re.search(r"warm[-_]?up", known) else "; no warm-up that can be seen"
    schedules = [(call, _schedule(call)) for call in script.every]
    yield "ok", _having((*rates, *schedules), "size"), f"by the number of ranks{warm}"
    adasum = script.names & {"hvd.Adasum", "hvd.DistributedAdasumOptimizer"}
    yield "ok", first or True if adasum else [], "Adasum needs no scaling"
    batches = [*((call, call.argument(1, "batch_size")) for call in script.loaders),
               *((call, call.argument(0)) for call in script.calls(".batch"))]  # fmt: skip
    yield "ok", _having(batches, "over_size"), "the batch is divided instead"
    reason = "the rate does not depend on the number of ranks"
    if script.way == "ddp":
        yield "cannot tell", first or True, f"{reason}; with DDP many leave it to the user"
    yield "wrong", _having(rates, "local_size"), "the rate is scaled by the ranks of one node only"
    if script.way == "none":
        yield "missing", first or True, reason
    yield "cannot tell", _with_unknown(first), "the optimizer's arguments could not be followed"
    yield "cannot tell", first if script.uncertain else [], script.uncertain
    by_loop = any(over and not over.has("count") for over in map(script.over, script.batches))
    has_data = script.loaders or script.fits or script.calls("reads") or by_loop
    yield "cannot tell", [] if has_data else first, "no data set that can be seen: a benchmark needs no scaled rate"
    yield "wrong", first, reason
    yield "cannot tell", script.calls("hvd.DistributedOptimizer") or True, "no optimizer whose rate can be seen"


def _schedule(call: Call) -> Value:
    """What a schedule is made with; what a class of the script asks for elsewhere is not for its method."""
    name = call.name.lower()
    if name in ("set.lr", "set.learning_rate"):
        return call.arguments[0]
    if not re.search(r"schedule|warmup|decay|lr\Z", name):
        return NOTHING
    return Value(rate_of(call) | (frozenset() if name.startswith("local ") else call.receiver.tags))


def wrapped(script: Script) -> Iterator[Claim]:
    """Whether the gradients of all ranks come together: what is wrapped is the model (DDP) or the optimizer."""
    is_ddp = script.way == "ddp"
    wraps = script.calls(f"wraps {script.way}") if script.way != "none" else []
    what, waits = ("model", "it waits") if is_ddp else ("optimizer", "its allreduce waits")
    if not wraps:
        by_hand = (call for call in script.calls("gradients") if "grad" in call.text and (call.loops or is_ddp))
        yield "ok", by_hand, "by {} of each gradient"
        lacks = "the model is not wrapped" if is_ddp else "nothing averages the gradients"
        yield "missing", True, f"{lacks}: every rank trains a model of its own"
    kept = _kept(wraps)
    yield "wrong", [] if kept else wraps, f"the wrapped {what} is not kept: what {{}} returns must be used"
    by_root = all("root" in call.guards for call in kept)
    yield "wrong", kept if by_root else [], f"only rank 0 wraps the {what}: {waits} for the others"


def _kept(wraps: list[Call]) -> list[Call]:
    """The wrappers whose result is used."""
    return [call for call in wraps if not call.discarded or call.last == "fully_shard"]


def horovod_gradients(script: Script) -> Iterator[Claim]:
    """Steps of an optimizer or tape that was wrapped under another name, and Keras 3.

    Keras 3 does not call what Horovod's optimizer replaces: each rank trains alone, without a message.
    """
    if script.way == "ddp":
        return
    wraps = _kept(script.calls("wraps horovod"))
    inner = union(value for call in wraps for value in call.values).things("optimizer", "tape")
    names = {call.name for call in wraps}
    steps = script.calls(".step", ".apply_gradients", ".minimize", ".compile")
    if "hvd.DistributedGradientTape" in names:
        steps = [] if "hvd.DistributedOptimizer" in names else script.calls(".gradient")
    after = [call for call in steps if call.order > wraps[0].order or not call.certain]
    used = [(call, call.receiver) for call in after]
    used += [(call, call.argument(0, "optimizer")) for call in after if call.means(".step", ".compile")]
    unwrapped = [call for call, each in used if each.tags & inner and not each.has("wrapped")]
    yield "wrong", sorted(unwrapped, key=lambda call: call.order), "the optimizer that is used is not the wrapped one"
    old = ("tf_keras", "tensorflow.compat.v1", "tensorflow.python", "keras.backend")
    is_old = script.imports(*old) or script.calls("tensorflow.ConfigProto", "keras.backend.set_session")
    is_new = script.imports("keras") and not is_old and "TF_USE_LEGACY_KERAS" not in script.texts
    trains = script.is_tensorflow and is_new and script.calls("fit", ".compile", ".apply_gradients")
    fix = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported; and tf.keras, not keras'
    reason = "Keras 3 trains without Horovod's DistributedOptimizer: gradients stay on each rank"
    yield "wrong", wraps if trains and "hvd.DistributedOptimizer" in names else [], reason, fix
    yield "ok", wraps, "{}"


def ddp_gradients(script: Script) -> Iterator[Claim]:
    """A loop that trains the model inside, and an optimizer of a model that is not wrapped."""
    wraps = _kept(script.calls("wraps ddp"))
    whole = [call.arguments[0] for call in wraps if call.arguments and call.last != "fully_shard"]
    inner = union(whole).tags | frozenset[str]().union(*(value.things("object") for value in whole))
    in_batch = (call for call in script.every if call.loops and call.loops[-1] in script.batches)
    forward = [call for call in in_batch if call.name.startswith("?") or call.means(".forward", ".module")]
    bare = [call for call in forward if call.name == ".module" or not call.receiver.things("ddp")]
    used = [call for call in bare if call.receiver.things("model", "object") & inner]
    reason = "the loop trains the model that is not wrapped"
    yield "wrong", used if len(bare) == len(forward) else [], reason, "output = ddp_model(input)"
    optimizers = [(call, call.argument(0, "params").things("model")) for call in script.optimizers]
    for call in (call for call in wraps if call.last != "DistributedDataParallel" and call.arguments and call.certain):
        divided = call.arguments[0].things("model")  # FSDP replaces the parameters, but with `use_orig_params`
        before = [each for each, models in optimizers if each.order < call.order and models & divided]
        keeps = "" in call.keywords or call.given(None, "use_orig_params") is not None
        late = not keeps and before and len(before) == len(optimizers) and before[-1].certain
        reason = "the optimizer has the parameters that the model had before it was divided"
        fix = "optimizer = ...(model.parameters())  # after it was divided"
        yield "wrong", before[-1:] if late else [], reason, fix
    by_hand = any(call.name.startswith("dist.all_") and "grad" in call.text for call in script.every)
    known = len(whole) == len(wraps) and all(value.things("model") for value in whole)
    steps = (call for call in script.calls(".step") if call.certain and call.loops and not call.guards)
    stepped = union(call.receiver for call in steps).tags if known and not by_hand and not script.uncertain else ()
    alone = (call for call, models in optimizers if call.certain and not call.guards
             and call.thing("optimizer") in stepped and models and not models & inner)  # fmt: skip
    yield "wrong", alone, "the model of this optimizer is not wrapped: every rank trains its own"
    yield "ok", wraps, "{}"


def broadcast(script: Script) -> Iterator[Claim]:
    """Whether parameters and optimizer state are broadcast, by all ranks from one."""
    if script.way == "ddp":
        yield "ok", script.calls("wraps ddp"), "{} does it"
        yield "missing", True, "nothing gives all ranks the same parameters"
    callbacks = script.calls("callbacks")
    every = [*script.sent, *script.calls("hvd.broadcast_optimizer_state"), *callbacks]
    yield "ok", [] if every else script.calls("elastic"), "by the elastic state"
    yield "missing", not every, "every rank begins with its own parameters"
    yield "wrong", (call for call in every if call.guards - {"local_root"} and script.left_waiting(call)), _WAITING
    roots = ((call, call.argument(0 if call in callbacks else 1, "root_rank")) for call in every)
    yield "wrong", _having(roots, "rank", "local_rank"), "every rank names itself as the root"


def torch_state(script: Script) -> Iterator[Claim]:
    """PyTorch: the optimizer's state, and parameters that rank 0 loads."""
    if script.is_tensorflow:
        return
    sent, state = script.sent, script.calls("hvd.broadcast_optimizer_state")
    yield "missing", not sent, "the parameters are not broadcast"
    last = max(call.order for call in (*sent, *state))
    loads = script.calls(".load_state_dict", ".load_weights")
    late = [call for call in loads if call.certain and "root" in call.guards and call.order > last]
    reason = "rank 0 loads a checkpoint after the broadcast: the others do not get it"
    known = all(call.certain for call in sent)
    yield "wrong", late if known else [], reason, f"{script.fix(6)}  # after it was loaded"
    is_sent = state or any(union(call.values).things("optimizer") for call in sent)
    yield "ok", sent if is_sent else [], "parameters and optimizer state"
    plain = all(call.last == "SGD" and call.given(2, "momentum") is None for call in script.optimizers)
    stateful = not plain or _with_unknown(script.optimizers) or any(call.receiver.things("optimizer") for call in loads)
    yield "ok", [] if stateful or not script.optimizers else sent, "the parameters; plain SGD has no state"
    unseen = sent if "hvd.broadcast_optimizer_state" in script.names else []
    yield "cannot tell", unseen, "nothing is seen to call what broadcasts the optimizer's state"
    yield "missing", sent, "the optimizer's state is not broadcast"


def tensorflow_state(script: Script) -> Iterator[Claim]:
    """TensorFlow: the callback that ``fit`` gets, and the optimizer's state, which its first step makes."""
    callbacks = script.calls("callbacks")
    given = any(call.given(None, "callbacks") or "" in call.keywords for call in script.fits)
    unused = [call for call in callbacks if call.discarded]
    lost = unused or script.fits if callbacks and (unused or not given) else []
    fix = "model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), ...])"
    yield "wrong", lost, "the callback is not given to fit", fix
    yield "ok", callbacks, "{}"
    fix = (
        "if step == 0: hvd.broadcast_variables(model.variables, root_rank=0); "
        "hvd.broadcast_variables(optimizer.variables(), root_rank=0)  # after apply_gradients"
    )
    state = [call for call in script.sent if union(call.values).things("optimizer")]
    step = next((call for call in script.calls(".apply_gradients", ".minimize") if call.certain), None)
    restores = script.calls(".build", ".restore", ".load_weights", ".set_weights")
    early = (call for call in state if step and call.certain and call.order < step.order
             and not any(each.order < call.order for each in restores))  # fmt: skip
    yield "wrong", early, "the optimizer has no state before its first step", fix
    has_state = any(call.last != "SGD" or call.given(1, "momentum") is not None for call in script.optimizers)
    lacks = script.calls(".apply_gradients") and not state and has_state and not script.uncertain
    yield "missing", script.sent if lacks else [], "the optimizer's state is not broadcast", fix
    yield "ok", script.sent, "variables"


def waiting(script: Script) -> Iterator[Claim]:
    """What rank 0 alone comes to where it writes, and all ranks must: a barrier, a checkpoint of parts."""
    divided = script.calls("*.FullyShardedDataParallel", "*.fully_shard")
    local = any(name.endswith(".LOCAL_STATE_DICT") for name in script.names)
    models = {call.thing("ddp") for call in divided if not local}
    states = [call for call in script.calls(".state_dict") if call.receiver.tags & models]
    states += script.calls("states") if divided else []
    every = () if script.uncertain else (*script.calls("barrier", "parts"), *states)
    for call in (call for call in every if call.certain and "root" in call.guards
                 and call.given(None, "no_dist") is None and script.left_waiting(call)):  # fmt: skip
        barrier = "only rank 0 comes to this barrier, and waits for the others"
        part = "each rank has a part of the checkpoint: rank 0 alone waits for the others"
        fix = f"{_written(call)}  # on every rank, before the condition"
        yield "wrong", [call], barrier if call.means("barrier") else part, fix


def writes(script: Script) -> Iterator[Claim]:
    """Whether several ranks write one file."""
    good: list[Call] = []
    doubtful: list[Claim] = []
    for call in filter(_is_of_training, [*script.calls("checkpoint"), *script.calls("log")]):
        is_log = call.means("log")
        what = "writes the log" if is_log else "writes the checkpoint"
        by_root = any(value.has("root_only", "root") for value in (*call.values, call.receiver))
        if "root" in call.guards or by_root or _path(call).has("by_rank_in_text", "rank", "local_rank"):
            good.append(call)
        elif "local_root" in call.guards:
            reason = f"one rank of every node {what}: wrong on a file system that nodes share"
            doubtful.append(("cannot tell", [call], reason))
        elif is_log and script.imports("ray", "horovod.ray"):
            doubtful.append(("cannot tell", [call], "a rank or Ray's driver writes the log"))
        elif not call.certain and (":" in call.place or is_log):
            doubtful.append(("cannot tell", [call], f"nothing is seen to call what {what}"))
        else:
            reason = f"every rank{' but rank 0' if 'not_root' in call.guards else ''} {what}"
            yield "missing" if script.way == "none" else "wrong", [call], reason, script.fix(7, _written(call))
    yield from doubtful
    yield "ok", good, "rank 0 writes"
    yield "ok", True, "it writes no checkpoint that can be seen"


def _is_of_training(call: Call) -> bool:
    """Not what all ranks write together, a buffer in memory, a picture or a plot."""
    path = _path(call)
    is_picture = isinstance(path.constant, str) and path.constant.endswith((".png", ".jpg", ".pdf"))
    by_format = call.name == ".save" and (is_picture or call.given(None, "format") is not None)
    return not (call.means("together") or path.has("in_memory") or by_format)


def _path(call: Call) -> Value:
    place = int(call.means("second is a path"))
    return call.argument(place, "f", "path", "filepath", "file", "filename", "log_dir")


def _written(call: Call) -> str:
    return f"{'model' if call.name.startswith('.') else ''}{call.name}(...)"


def averages(script: Script) -> Iterator[Claim]:
    """Whether metrics are averaged over the ranks, by all of them, and the average is used."""
    every = [call for call in script.calls("in place", "returned") if "grad" not in call.text]
    shared = [call for call in every if not _is_literal(script, call)]
    old = (call for call in shared if call.name.startswith("hvd.allreduce")
           and (call.given(None, "average") or isinstance(call.argument(1).constant, bool)))  # fmt: skip
    reason = "allreduce(average=...) was replaced by op="  # of Horovod before 0.20
    yield "wrong", old, reason, "hvd.allreduce(value, op=hvd.Average)"
    yield "wrong", filter(script.left_waiting, shared), _WAITING
    unused = (call for call in shared if call.discarded and call.means("returned") and not call.name.endswith("_"))
    yield "wrong", unused, "the average is not used: allreduce returns it"
    unseen = any(call.certain for call in script.backward) and not any(call.certain for call in shared)
    yield "cannot tell", shared if unseen else [], "nothing is seen to call what averages"
    yield "ok", shared, "by {}"
    yield "ok", script.imports("torchmetrics", "torcheval"), "the metrics' package synchronises"
    fits = script.fits if script.is_tensorflow else []
    yield "missing", fits, "the metrics of fit are those of each rank"


def _is_literal(script: Script, call: Call) -> bool:
    """Whether nothing but literals and what is imported is given, as ``torch.zeros(1)``: it makes a barrier."""
    given = call.node.args[:1] if isinstance(call.node, nodes.Call) else ()
    names = [name for each in given for name in each.nodes_of_class(nodes.Name)]
    return bool(given) and all(script.resolver.value(name).path for name in names)


def reports(script: Script) -> Iterator[Claim]:
    """Whether what is reported is a metric of one rank."""
    every = [call for call in script.calls("report") if _METRIC.search(call.text)
             or (_EVALUATION.search(call.text) and any(not value.constants for value in call.values))]  # fmt: skip
    yield "ok", not every, "it reports no metric that can be seen"
    yield "missing", script.way == "none", "nothing averages what the ranks measure"
    whole = {call.thing("loader") for call in script.loaders if not script.sharding(call)}
    after_steps = [call for call in every if not script.batches.intersection(call.loops)]
    by_all = after_steps if script.evaluated and script.evaluated <= whole else []
    yield "ok", by_all, "every rank evaluates the whole set"
    yield "cannot tell", after_steps if script.uncertain else [], script.uncertain
    by_one = after_steps if script.evaluated or script.way == "horovod" else []
    yield "wrong", by_one, "the metrics are those of one rank"
    yield "cannot tell", every, "it reports the training loss of one rank"


# The rules of each step, in the order in which they are asked: the first claim that is so is the answer.
STEPS: dict[str, tuple[Rule, ...]] = {
    "initialise": (initialise,),
    "GPU of the local rank": (gpu,),
    "shard the data": (shards, loaders, other_data),
    "scale the rate": (rate,),
    "average gradients": (wrapped, horovod_gradients, ddp_gradients),
    "broadcast": (broadcast, torch_state, tensorflow_state),
    "rank 0 writes": (waiting, writes),
    "average metrics": (averages, reports),
}
