"""The rules of the eight steps: each says what it finds, the most certain first."""

from __future__ import annotations

import re
from collections.abc import Iterator

from astroid import nodes

from runner.linting.frameworks import meaning
from runner.linting.script import Finding, Script, ok, one, rule, sharding, unclear, wrong
from runner.linting.values import NOTHING, Call, Value, rate_of, tagged, union

_ANY_GPU = tagged("any GPU")
_WHOLE = "every rank trains on the whole data set"
_METRIC = re.compile(
    r"loss|acc(?![a-z]*el)|metric|correct|error_rate|score|auc|perplex|\bppl|bleu|\bmae\b|rmse|\bmse\b|\biou\b|\bf1\b",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"\b(test|val|valid|validation|eval|evaluation)\b", re.IGNORECASE)


@rule(1)
def initialise(script: Script) -> Iterator[Finding]:
    """Whether it initialises Horovod or torch.distributed, before it uses it."""
    if script.way == "none":
        yield script.missing("it uses neither Horovod nor torch.distributed: every process would train alone")
    name = "hvd.init" if script.way == "horovod" else "init_process_group"
    first = script.calls(f"init {script.way}")
    if not first:
        yield script.missing(f"{name} is never called")
    if all(call.guards & {"root", "local_root"} for call in first):
        yield from wrong(f"{name} is called on rank 0 only: the other ranks never join", first)
    needs = (call for call in script.calls(f"needs {script.way}") if call.certain and first[0].certain)
    early = (call for call in needs if call.order < first[0].order and not call.node.frame().name.startswith("is_"))
    yield from wrong(f"{{}} is called before {name}", early)
    yield from ok("{}", first)


@rule(2)
def gpu(script: Script) -> Iterator[Finding]:
    """Which GPU a rank takes."""
    pins = {call: value for call in script.every if (value := _pin(call)) is not None}
    good = [call for call, value in pins.items() if value.has("local_rank")]
    others = {call: value for call, value in pins.items() if call not in good}
    by_rank = "the GPU is chosen by the rank of the whole job: a second node has no GPU of that number"
    yield from wrong(by_rank, (call for call, value in others.items() if value.has("rank")))
    if not any(call.means("visible", "set.*") for call in good):
        fixed = (call for call, value in others.items() if value.has("fixed"))
        yield from wrong("every rank of a node takes the same GPU", fixed)
    fix = 'local_rank = int(os.environ["LOCAL_RANK"])' if script.way == "ddp" else "local_rank = hvd.local_rank()"
    yield from wrong("the local rank is a name that nothing sets", filter(_is_of_no_name, good), fix)
    yield from ok("by the local rank", good)
    if any(value.constant in ("", "-1", ()) for value in pins.values()):
        yield one("ok", "it hides the GPUs")
    known = (call for call, value in pins.items() if value is not _ANY_GPU)
    yield from unclear("the number of the GPU could not be followed", known)
    if script.is_tensorflow:
        yield script.missing("TensorFlow takes every GPU of the node on each rank")
    if pins:
        yield script.missing("no GPU is chosen, so every rank of a node takes GPU 0")
    yield one("cannot tell", "it uses no GPU that can be seen")


def _is_of_no_name(call: Call) -> bool:
    """Whether a name among its arguments stands for the local rank, and is set nowhere that can be seen."""
    arguments = (*call.node.args, *call.node.keywords) if isinstance(call.node, nodes.Call) else ()
    names = [name for each in arguments for name in each.nodes_of_class(nodes.Name)]
    unset = [each for each in names if "local_rank" in meaning(each.name) and not each.lookup(each.name)[1]]
    stars = (each for each in call.node.root().nodes_of_class(nodes.ImportFrom) if each.names[0][0] == "*")
    return bool(unset) and not any(stars)


def _pin(call: Call) -> Value | None:
    """The GPU that a call takes; None where it takes none."""
    value: Value | None = call.argument(0, "device")
    first = call.argument(0, "device")
    is_named = first.has("fixed", "rank", "local_rank")
    by_environment = call.name == "set.env" and first.constant == "CUDA_VISIBLE_DEVICES"
    if call.name in ("set.visible_device_list", ".cuda") or by_environment:
        value = call.arguments[-1] if call.arguments else _ANY_GPU
    elif call.means("visible"):
        value = first.items[0] if len(first.items) == 1 else first
    elif call.name == "torch.device" and (first.constant is ... or str(first.constant).startswith("cuda")):
        value = call.given(1, "index") or (first if is_named else _ANY_GPU)
    elif call.name == ".to" and not (is_named or type(first.constant) is int):
        value = _ANY_GPU if "cuda" in first.constants else None
    elif call.last == "DistributedDataParallel":
        value = next(iter(call.argument(1, "device_ids").items), None)
    elif not call.means("set device", ".to"):
        return None
    number = value.constant if value is not None else None
    return tagged("fixed") if type(number) is int or (isinstance(number, str) and number.isdigit()) else value


@rule(3)
def wrong_parts(script: Script) -> Iterator[Finding]:
    """Parts of the data that are not those of the ranks of the whole job."""
    for call in (*script.samplers, *script.calls(".shard")):
        place = 0 if call.name == ".shard" else 1
        number, rank = call.argument(place, "num_replicas", "num_shards"), call.argument(place + 1, "rank", "index")
        if rank.has("local_rank") and not rank.has("rank"):
            yield one("wrong", "the part is chosen by the local rank: every node trains on the same parts", [call])
        if number.has("local_size") and not number.has("size"):
            yield one("wrong", "the data are divided by the ranks of one node only", [call])
        if rank.constant == 0:
            yield one("wrong", "every rank takes part 0 of the data", [call])
        if number.has("rank") and rank.has("size") and not number.has("size"):
            yield one("wrong", "shard takes the number of parts first, then the part", [call])
    if script.way == "horovod" and not script.calls("dist.init_process_group"):
        named = [call for call in script.samplers if "Distributed" in call.last and not call.has_unknown_arguments]
        bare = (call for call in named if call.given(1, "num_replicas") is call.given(2, "rank") is None)
        yield from wrong("without num_replicas and rank it asks torch.distributed, which Horovod does not start", bare)


@rule(3)
def loaders(script: Script) -> Iterator[Finding]:
    """Whether the loader that it trains on has a part for each rank."""
    given = [value for call in script.fits for value in call.values]
    used = union((*script.trained_on, *given)).things("loader")
    evaluated = script.evaluated if script.trained_on or given else frozenset()
    chosen = [call for call in script.loaders if f"loader:{call.number}" in used]
    chosen = chosen or [call for call in script.loaders if f"loader:{call.number}" not in evaluated]
    first = chosen[:1]
    if not any(map(sharding, chosen)):
        yield from unclear("the loader's arguments could not be followed", _with_unknown(first))
        own = (call for call in first if union(call.values).things("plainsampler"))
        yield from unclear("a sampler of its own, that is not seen to ask for the rank", own)
        lost = "the sampler is not given to the loader that is trained on"
        yield from wrong(lost if script.samplers else _WHOLE, first)
    shuffled = (call for call in chosen if sharding(call) == "sampler" and call.argument(2, "shuffle").constant is True)
    fix = "leave shuffle out: the sampler shuffles"
    yield from wrong("shuffle=True and a sampler exclude each other", shuffled, fix)
    again = any(len(call.loops) >= 2 and script.over(call.loops[-1]).things("loader") for call in script.backward)
    for call in (call for call in chosen if sharding(call) in ("sampler", "rank")):
        if again and not script.uncertain:
            fix = "sampler.set_epoch(epoch)  # first in each epoch"
            yield from wrong("set_epoch is not called: every epoch has the same order", _same_order(script, call), fix)
        yield one("ok", "by a sampler" if sharding(call) == "sampler" else "by the rank", [call])
    yield from unclear("the data depend on the number of ranks, and not on the rank", first)


def _with_unknown(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.has_unknown_arguments]


def _same_order(script: Script, loader: Call) -> list[Call]:
    """The sampler of a loader, if it shuffles and nothing tells it the epoch."""
    tags = union(loader.values).things("sampler")
    sampler = [call for call in script.samplers if f"sampler:{call.number}" in tags][:1]
    in_order = any("Elastic" in call.last or call.argument(3, "shuffle").constant is False for call in sampler)
    for call in script.calls(".set_epoch"):
        owners = call.receiver.things("sampler", "loader")
        given = [value for each in script.loaders if f"loader:{each.number}" in owners for value in each.values]
        in_order = in_order or not owners or bool((owners | union(given).tags) & tags)
    return [] if in_order else sampler


@rule(3)
def other_data(script: Script) -> Iterator[Finding]:
    """Data without a DataLoader: tf.data, arrays, generators."""
    given = [(call, value) for call in script.fits if (value := call.given(0, "x")) is not None]
    data = [*given, *((Call("for", None), over) for over in script.trained_on)]
    yield from ok("by the rank", (call for call, value in data if value.has("rank") or value.things("sampler")))
    yield from ok("by the rank", (call for call in script.calls(".shard") if union(call.values).has("rank")))
    if "webdataset.split_by_node" in script.names:
        yield one("ok", "by webdataset's split_by_node")
    steps = [(call, call.argument(None, name)) for call in script.fits for name in ("steps_per_epoch", "epochs")]
    reason = "each rank takes a part of the steps, and shuffles all data with its own seed"
    yield from unclear(reason, (call for call, value in (*data, *steps) if value.has("size")))
    if script.uncertain:
        yield one("cannot tell", script.uncertain)
    if data:
        yield from wrong(_WHOLE, script.calls("made data") or (script.calls("fit data") if given else []))
    if script.way == "none" and data:
        yield script.missing("the data are not divided among the ranks")
    yield one("cannot tell", "no data set that can be seen")


@rule(4)
def rate(script: Script) -> Iterator[Finding]:
    """Whether a rate depends on the number of ranks."""
    rates = [(call, call.argument(int(not call.means("keras.* tensorflow.*")), "lr", "learning_rate"))
             for call in script.optimizers]  # fmt: skip
    first = script.optimizers[:1]
    known = " ".join((*script.texts, *(call.name for call in script.every))).lower()
    warm = any(word in known for word in ("warmup", "warm_up", "warm-up"))
    divided = (call for call, value in rates if value.has("over_size"))
    yield from wrong("the rate is divided by the number of ranks", divided)
    schedules = [(call, _schedule(call)) for call in script.every]
    by_size = (call for call, value in (*rates, *schedules) if value.has("size"))
    yield from ok("by the number of ranks" + ("" if warm else "; no warm-up that can be seen"), by_size)
    if script.names & {"hvd.Adasum", "hvd.DistributedAdasumOptimizer"}:
        yield one("ok", "Adasum needs no scaling", first)
    batches = [*((call, call.argument(1, "batch_size")) for call in script.loaders),
               *((call, call.argument(0)) for call in script.calls(".batch"))]  # fmt: skip
    yield from ok("the batch is divided instead", (call for call, size in batches if size.has("over_size")))
    reason = "the rate does not depend on the number of ranks"
    if script.way == "ddp":
        yield one("cannot tell", f"{reason}; with DDP many leave it to the user", first)
    local = (call for call, value in rates if value.has("local_size"))
    yield from wrong("the rate is scaled by the ranks of one node only", local)
    if script.way == "none":
        yield script.missing(reason, first)
    yield from unclear("the optimizer's arguments could not be followed", _with_unknown(first))
    if script.uncertain:
        yield from unclear(script.uncertain, first)
    if not script.reads_data:
        yield from unclear("no data set that can be seen: a benchmark needs no scaled rate", first)
    yield from wrong(reason, first)
    yield one("cannot tell", "no optimizer whose rate can be seen", script.calls("hvd.DistributedOptimizer"))


def _schedule(call: Call) -> Value:
    """What a schedule is made with; what a class of the script asks for elsewhere is not for its method."""
    name = call.name.lower()
    if name in ("set.lr", "set.learning_rate"):
        return call.arguments[0]
    if not (any(part in name for part in ("schedule", "warmup", "decay")) or name.endswith("lr")):
        return NOTHING
    return Value(rate_of(call) | (frozenset() if name.startswith("local ") else call.receiver.tags))


@rule(5)
def wrapped(script: Script) -> Iterator[Finding]:
    """Whether the gradients of all ranks come together: what is wrapped is the model (DDP) or the optimizer."""
    is_ddp = script.way == "ddp"
    wraps = script.calls(f"wraps {script.way}")
    kept = _kept(wraps)
    if not wraps:
        by_hand = (call for call in script.calls("gradients") if "grad" in call.text and (call.loops or is_ddp))
        yield from ok("by {} of each gradient", by_hand)
        lacks = "the model is not wrapped" if is_ddp else "nothing averages the gradients"
        yield script.missing(f"{lacks}: every rank trains a model of its own")
    what, wrapper = ("model", "DistributedDataParallel") if is_ddp else ("optimizer", "it")
    if not kept:
        yield from wrong(f"the wrapped {what} is not kept: what {wrapper} returns must be used", wraps)
    if all("root" in call.guards for call in kept):
        waits = "it" if is_ddp else "its allreduce"
        yield from wrong(f"only rank 0 wraps the {what}: {waits} waits for the others", kept)


def _kept(wraps: list[Call]) -> list[Call]:
    """The wrappers whose result is used."""
    return [call for call in wraps if not call.discarded or call.last == "fully_shard"]


@rule(5)
def horovod_gradients(script: Script) -> Iterator[Finding]:
    """Steps of an optimizer or tape that was wrapped under another name, and Keras 3.

    Keras 3 does not call what Horovod's optimizer replaces: each rank trains alone, without a message.
    """
    wraps = _kept(script.calls("wraps horovod"))
    inner = union(value for call in wraps for value in call.values).things("optimizer", "tape")
    names = {call.name for call in wraps}
    steps = script.calls(".step", ".apply_gradients", ".minimize", ".compile")
    if "hvd.DistributedGradientTape" in names:
        steps = [] if "hvd.DistributedOptimizer" in names else script.calls(".gradient")
    for call in steps:
        optimizer = call.argument(0, "optimizer") if call.name in (".step", ".compile") else NOTHING
        unwrapped = any(each.tags & inner and not each.has("wrapped") for each in (call.receiver, optimizer))
        if unwrapped and (call.order > wraps[0].order or not call.certain):
            yield one("wrong", "the optimizer that is used is not the wrapped one", [call])
    old = ("tf_keras", "tensorflow.compat.v1", "tensorflow.python", "keras.backend")
    is_old = script.imports(*old) or script.calls("tensorflow.ConfigProto", "keras.backend.set_session")
    is_new = script.imports("keras") and not is_old and "TF_USE_LEGACY_KERAS" not in script.texts
    trains = script.calls("fit", ".compile", ".apply_gradients")
    if script.is_tensorflow and "hvd.DistributedOptimizer" in names and is_new and trains:
        fix = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported; and tf.keras, not keras'
        reason = "Keras 3 trains without Horovod's DistributedOptimizer: gradients stay on each rank"
        yield from wrong(reason, wraps, fix)


@rule(5)
def ddp_gradients(script: Script) -> Iterator[Finding]:
    """A loop that trains the model inside, and an optimizer of a model that is not wrapped."""
    wraps = _kept(script.calls(f"wraps {script.way}"))
    if script.way != "ddp":
        yield from ok("{}", wraps)
    whole = [call.arguments[0] for call in wraps if call.arguments and call.last != "fully_shard"]
    inner = union(whole).tags | frozenset[str]().union(*(value.things("object") for value in whole))
    in_batch = (call for call in script.every if call.loops and call.loops[-1] in script.batches)
    forward = [call for call in in_batch if call.name.startswith("?") or call.means(".forward", ".module")]
    bare = [call for call in forward if call.name == ".module" or not call.receiver.things("ddp")]
    if len(bare) == len(forward):
        used = (call for call in bare if call.receiver.things("model", "object") & inner)
        yield from wrong("the loop trains the model that is not wrapped", used, "output = ddp_model(input)")
    optimizers = [(call, call.argument(0, "params").things("model")) for call in script.optimizers]
    divides = [call for call in wraps if call.last != "DistributedDataParallel" and call.arguments and call.certain]
    for call in divides:  # FSDP replaces the parameters, but with `use_orig_params`
        divided = call.arguments[0].things("model")
        before = [each for each, models in optimizers if each.order < call.order and models & divided]
        keeps = call.has_unknown_arguments or call.given(None, "use_orig_params") is not None
        if not keeps and before and len(before) == len(optimizers) and before[-1].certain:
            reason = "the optimizer has the parameters that the model had before it was divided"
            yield from wrong(reason, before[-1:], "optimizer = ...(model.parameters())  # after it was divided")
    by_hand = any(call.name.startswith("dist.all_") and "grad" in call.text for call in script.every)
    known = len(whole) == len(wraps) and all(value.things("model") for value in whole)
    steps = (call for call in script.calls(".step") if call.certain and call.loops and not call.guards)
    stepped = union(call.receiver for call in steps).tags if known and not by_hand and not script.uncertain else ()
    for call, models in optimizers:
        is_known = call.certain and not call.guards and f"optimizer:{call.number}" in stepped
        if is_known and models and not models & inner:
            yield from wrong("the model of this optimizer is not wrapped: every rank trains its own", [call])
    yield from ok("{}", wraps)


@rule(6)
def broadcast(script: Script) -> Iterator[Finding]:
    """Whether parameters and optimizer state are broadcast, by all ranks from one."""
    if script.way == "ddp":
        yield from ok("{} does it", script.calls("wraps ddp"))
        yield script.missing("nothing gives all ranks the same parameters")
    callbacks = script.calls("callbacks")
    every = [*_sent(script), *script.calls("hvd.broadcast_optimizer_state"), *callbacks]
    if not every:
        yield from ok("by the elastic state", script.calls("elastic"))
        yield script.missing("every rank begins with its own parameters")
    waiting = (call for call in every if call.guards & {"root", "not_root"} and script.left_waiting(call))
    yield from wrong("only some of the ranks come here, and wait for the others", waiting)
    roots = ((call, call.argument(0 if call in callbacks else 1, "root_rank")) for call in every)
    named = (call for call, root in roots if root.has("rank", "local_rank"))
    yield from wrong("every rank names itself as the root", named)


def _sent(script: Script) -> list[Call]:
    """What sends parameters, and not an epoch's number or another small thing."""
    return [call for call in script.calls("parameters", "objects")
            if call.means("parameters") or union(call.values).things("model", "optimizer")
            or any(part in call.text for part in ("state", "param", "model", "weight"))]  # fmt: skip


@rule(6)
def torch_state(script: Script) -> Iterator[Finding]:
    """PyTorch: the optimizer's state, and parameters that rank 0 loads."""
    if script.is_tensorflow:
        return
    sent, state = _sent(script), script.calls("hvd.broadcast_optimizer_state")
    if not sent:
        fix = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
        yield script.missing("the parameters are not broadcast", fix=fix)
    last = max(call.order for call in (*sent, *state))
    loads = script.calls(".load_state_dict", ".load_weights")
    late = [call for call in loads if call.certain and "root" in call.guards and call.order > last]
    if all(call.certain for call in sent):
        reason = "rank 0 loads a checkpoint after the broadcast: the others do not get it"
        yield from wrong(reason, late, f"{script.fix(6)}  # after it was loaded")
    if state or any(union(call.values).things("optimizer") for call in sent):
        yield from ok("parameters and optimizer state", sent)
    plain = all(call.last == "SGD" and call.given(2, "momentum") is None for call in script.optimizers)
    loaded = any(call.receiver.things("optimizer") for call in loads)
    if script.optimizers and plain and not _with_unknown(script.optimizers) and not loaded:
        yield from ok("the parameters; plain SGD has no state", sent)
    if "hvd.broadcast_optimizer_state" in script.names:
        yield from unclear("nothing is seen to call what broadcasts the optimizer's state", sent)
    fix = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
    yield script.missing("the optimizer's state is not broadcast", sent, fix)


@rule(6)
def tensorflow_state(script: Script) -> Iterator[Finding]:
    """TensorFlow: the callback that ``fit`` gets, and the optimizer's state, which its first step makes."""
    callbacks, sent = script.calls("callbacks"), _sent(script)
    given = any(call.given(None, "callbacks") or call.has_unknown_arguments for call in script.fits)
    unused = [call for call in callbacks if call.discarded]
    if callbacks and (unused or not given):
        fix = "model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), ...])"
        yield from wrong("the callback is not given to fit", unused or script.fits, fix)
    yield from ok("{}", callbacks)
    fix = (
        "if step == 0: hvd.broadcast_variables(model.variables, root_rank=0); "
        "hvd.broadcast_variables(optimizer.variables(), root_rank=0)  # after apply_gradients"
    )
    state = [call for call in sent if union(call.values).things("optimizer")]
    step = next((call for call in script.calls(".apply_gradients", ".minimize") if call.certain), None)
    restores = script.calls(".build", ".restore", ".load_weights", ".set_weights")
    early = [call for call in state if step and call.certain and call.order < step.order
             and not any(each.order < call.order for each in restores)]  # fmt: skip
    yield from wrong("the optimizer has no state before its first step", early, fix)
    has_state = any(call.last != "SGD" or call.given(1, "momentum") is not None for call in script.optimizers)
    if script.calls(".apply_gradients") and not state and has_state and not script.uncertain:
        yield script.missing("the optimizer's state is not broadcast", sent, fix)
    yield from ok("variables", sent)


@rule(7)
def waiting(script: Script) -> Iterator[Finding]:
    """What rank 0 alone comes to where it writes, and all ranks must: a barrier, a checkpoint of parts."""
    divided = script.calls("*.FullyShardedDataParallel", "*.fully_shard")
    local = any(name.endswith(".LOCAL_STATE_DICT") for name in script.names)
    models = {f"ddp:{call.number}" for call in divided if not local}
    states = [call for call in script.calls(".state_dict") if call.receiver.tags & models]
    states += script.calls("states") if divided else []
    for call in () if script.uncertain else (*script.calls("barrier", "parts"), *states):
        is_by_root = call.certain and "root" in call.guards and script.left_waiting(call)
        if is_by_root and call.given(None, "no_dist") is None:
            barrier = "only rank 0 comes to this barrier, and waits for the others"
            part = "each rank has a part of the checkpoint: rank 0 alone waits for the others"
            fix = f"{_written(call)}  # on every rank, before the condition"
            yield one("wrong", barrier if call.means("barrier") else part, [call], fix)


@rule(7)
def writes(script: Script) -> Iterator[Finding]:
    """Whether several ranks write one file."""
    logs = script.calls("log")
    files = [call for call in (*script.calls("checkpoint"), *logs) if not _is_no_file_of_training(call)]
    good: list[Call] = []
    doubtful: list[Finding] = []
    for call in files:
        what = "writes the log" if call in logs else "writes the checkpoint"
        by_root = any(value.has("root_only", "root") for value in (*call.values, call.receiver))
        if "root" in call.guards or by_root or _path(call).has("by_rank_in_text", "rank", "local_rank"):
            good.append(call)
        elif "local_root" in call.guards:
            doubtful += unclear(f"one rank of every node {what}: wrong on a file system that nodes share", [call])
        elif call in logs and script.imports("ray", "horovod.ray"):
            doubtful += unclear("a rank or Ray's driver writes the log", [call])
        elif not call.certain and (":" in call.place or call in logs):
            doubtful += unclear(f"nothing is seen to call what {what}", [call])
        else:
            reason = f"every rank{' but rank 0' if 'not_root' in call.guards else ''} {what}"
            yield one("missing" if script.way == "none" else "wrong", reason, [call], script.fix(7, _written(call)))
    yield from doubtful
    yield from ok("rank 0 writes", good)
    yield one("ok", "it writes no checkpoint that can be seen")


def _is_no_file_of_training(call: Call) -> bool:
    """What all ranks write together, a buffer in memory, a picture or a plot."""
    path = _path(call)
    is_picture = isinstance(path.constant, str) and path.constant.endswith((".png", ".jpg", ".pdf"))
    by_format = call.name == ".save" and (is_picture or call.given(None, "format") is not None)
    return call.means("together") or path.has("in_memory") or by_format


def _path(call: Call) -> Value:
    place = int(call.means("second is a path"))
    return call.argument(place, "f", "path", "filepath", "file", "filename", "log_dir")


def _written(call: Call) -> str:
    return f"{'model' if call.name.startswith('.') else ''}{call.name}(...)"


@rule(8)
def averages(script: Script) -> Iterator[Finding]:
    """Whether metrics are averaged over the ranks, by all of them, and the average is used."""
    every = [call for call in script.calls("in place", "returned") if "grad" not in call.text]
    shared = [call for call in every if not _is_literal(script, call)]
    old = (call for call in shared if call.name.startswith("hvd.allreduce")
           and (call.given(None, "average") or isinstance(call.argument(1).constant, bool)))  # fmt: skip
    reason = "allreduce(average=...) was replaced by op="  # of Horovod before 0.20
    yield from wrong(reason, old, "hvd.allreduce(value, op=hvd.Average)")
    waiting = filter(script.left_waiting, shared)
    yield from wrong("only some of the ranks come here, and wait for the others", waiting)
    unused = (call for call in shared if call.discarded and call.means("returned") and not call.name.endswith("_"))
    yield from wrong("the average is not used: allreduce returns it", unused)
    trains = any(call.certain for call in script.backward)
    if trains and not any(call.certain for call in shared):
        yield from unclear("nothing is seen to call what averages", shared)
    yield from ok("by {}", shared)
    if script.imports("torchmetrics", "torcheval"):
        yield one("ok", "the metrics' package synchronises")
    if script.fits and script.is_tensorflow:
        yield script.missing("the metrics of fit are those of each rank", script.fits)


def _is_literal(script: Script, call: Call) -> bool:
    """Whether nothing but literals and what is imported is given, as ``torch.zeros(1)``: it makes a barrier."""
    given = call.node.args[:1] if isinstance(call.node, nodes.Call) else ()
    names = [name for each in given for name in each.nodes_of_class(nodes.Name)]
    return bool(given) and all(script.resolver.value(name).path for name in names)


@rule(8)
def reports(script: Script) -> Iterator[Finding]:
    """Whether what is reported is a metric of one rank."""
    every = [call for call in script.calls("report") if _is_metric(call)]
    if not every:
        yield one("ok", "it reports no metric that can be seen")
    if script.way == "none":
        yield script.missing("nothing averages what the ranks measure")
    whole = {f"loader:{call.number}" for call in script.loaders if not sharding(call)}
    after_steps = [call for call in every if not script.batches.intersection(call.loops)]
    if script.evaluated and script.evaluated <= whole:
        yield from ok("every rank evaluates the whole set", after_steps)
    if script.uncertain:
        yield from unclear(script.uncertain, after_steps)
    if script.evaluated or script.way == "horovod":
        yield from wrong("the metrics are those of one rank", after_steps)
    yield from unclear("it reports the training loss of one rank", every)


def _is_metric(call: Call) -> bool:
    by_word = _EVALUATION.search(call.text) and any(not value.constants for value in call.values)
    return bool(_METRIC.search(call.text) or by_word)
