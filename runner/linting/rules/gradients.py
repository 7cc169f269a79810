"""Steps 5 and 6: gradients are averaged, and all ranks begin with the parameters and state of rank 0."""

from __future__ import annotations

from collections.abc import Iterator

from runner.linting.names import LOCAL_RANK, NOTHING, RANK, WRAPPED_MODELS, names_in, union
from runner.linting.script import Event, Finding, Script, ok, rule, unclear, wrong

_WRAPPERS = ("hvd.DistributedOptimizer", "hvd.DistributedGradientTape", "hvd.DistributedAdasumOptimizer")
_MODELS = (*(f"*.{name}" for name in WRAPPED_MODELS), "*.fully_shard")
_ALONE = "every rank trains a model of its own"
_IN_PARTS = ("FullyShardedDataParallel", "fully_shard")
_PARAMETERS = names_in("parameters variables global_variables model_weights", "hvd.broadcast_")
_OBJECTS = names_in("broadcast_object broadcast_ broadcast", "hvd.")
_CALLBACKS = names_in("callbacks.BroadcastGlobalVariablesCallback BroadcastGlobalVariablesHook "
                   "callbacks.BroadcastGlobalVariablesCallbackImpl", "hvd.")  # fmt: skip
_ELASTIC = names_in("TorchState TensorFlowKerasState KerasState TensorFlowState run", "hvd.elastic.")
_WRAP_MODEL = "model = DistributedDataParallel(model, device_ids=[local_rank])"


@rule(5, "average gradients")
def gradients(script: Script) -> Iterator[Finding]:
    """Whether the gradients of all ranks come together."""
    fix = script.fix(
        _WRAP_MODEL, "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
        "optimizer = hvd.DistributedOptimizer(optimizer)  # with a tape: tape = hvd.DistributedGradientTape(tape)",
    )  # fmt: skip
    if script.way == "none":
        yield script.missing("nothing averages the gradients", fix)
    yield from _ddp(script, fix) if script.way == "ddp" else _horovod(script, fix)


def _horovod(script: Script, fix: str) -> Iterator[Finding]:
    wrapped = script.calls(*_WRAPPERS)
    if not wrapped:
        for event in script.events:
            if "allreduce" in event.name and event.loops and "grad" in event.text:
                yield ok("by allreduce of each gradient", event)
        for event in script.calls("hvd.load_model", "hvd.create_distributed_optimizer"):
            yield ok("by load_model", event)
        yield script.missing(f"nothing averages the gradients: {_ALONE}", fix)
    kept = [event for event in wrapped if not event.discarded]
    if not kept:
        yield wrong("the wrapped optimizer is not kept: what it returns must be used", wrapped[0], fix)
    if all("root" in event.guards for event in kept):
        yield wrong("only rank 0 wraps the optimizer: its allreduce waits for the others", kept[0], fix)
    for event in _used_unwrapped(script, kept):
        yield wrong("the optimizer that is used is not the wrapped one", event, fix)
    if _is_keras_3(script, kept):
        fix = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported; and tf.keras, not keras'
        reason = "Keras 3 trains without Horovod's DistributedOptimizer: gradients stay on each rank"
        yield wrong(reason, kept[0], fix)
    yield ok(kept[0].last, kept[0])


def _used_unwrapped(script: Script, wrapped: list[Event]) -> Iterator[Event]:
    """Steps of an optimizer or tape that was wrapped under another name."""
    inner = union(value for event in wrapped for value in event.values).things("optimizer", "tape")
    by_tape = any(event.name == "hvd.DistributedGradientTape" for event in wrapped)
    if by_tape and script.calls("hvd.DistributedOptimizer"):
        return
    wanted = (".gradient",) if by_tape else (".step", ".apply_gradients", ".minimize", ".gradient", ".compile")
    for event in script.calls(*wanted):
        optimizer = event.argument(0, "optimizer") if event.name in (".step", ".compile") else None
        users = [each for each in (event.receiver, optimizer) if each is not None]
        unwrapped = any(each.tags & inner and not each.has("wrapped") for each in users)
        if unwrapped and (event.order > wrapped[0].order or not event.certain):
            yield event


def _is_keras_3(script: Script, wrapped: list[Event]) -> bool:
    """Keras 3 does not call what Horovod's optimizer replaces: each rank trains alone, without a message."""
    legacy = "TF_USE_LEGACY_KERAS" in script.resolver.texts or script.imports(
        "tf_keras", "tensorflow.compat.v1", "tensorflow.python", "keras.backend"
    )
    sessions = script.calls("tensorflow.ConfigProto", "keras.backend.set_session")
    trains = script.calls(".fit", ".compile", ".fit_generator", ".apply_gradients")
    by_optimizer = script.is_tensorflow and any(event.name == "hvd.DistributedOptimizer" for event in wrapped)
    return by_optimizer and script.imports("keras") and bool(trains) and not legacy and not sessions


def _ddp(script: Script, fix: str) -> Iterator[Finding]:
    models = script.calls(*_MODELS)
    if not models:
        for event in script.calls("dist.all_reduce", "dist.all_gather"):
            if "grad" in event.text:
                yield ok("by all_reduce of each gradient", event)
        yield script.missing(f"the model is not wrapped: {_ALONE}", fix)
    kept = [event for event in models if not event.discarded or event.last == "fully_shard"]
    if not kept:
        yield wrong("the wrapped model is not kept: what DistributedDataParallel returns must be used", models[0], fix)
    if all("root" in event.guards for event in kept):
        yield wrong("only rank 0 wraps the model: it waits for the others", kept[0], fix)
    whole = [event.arguments[0] for event in kept if event.arguments and event.last != "fully_shard"]
    inner = union(whole).things("model")
    inner |= frozenset[str]().union(*(value.things("object") for value in whole))
    forward = [
        event for event in script.events if _is_forward(event) and event.loops and event.loops[-1] in script.batches
    ]
    in_step = union(event.receiver for event in forward if not _is_bare(event)).things("ddp")
    for event in forward:
        bare = _is_bare(event) and event.receiver.things("model", "object") & inner
        if bare and not in_step:
            yield wrong("the loop trains the model that is not wrapped", event, "output = ddp_model(input)")
    for event in _optimizers_before_parts(script, kept):
        reason = "the optimizer has the parameters that the model had before it was divided"
        yield wrong(reason, event, "optimizer = ...(model.parameters())  # after it was divided")
    for event in _optimizers_of_others(script, kept):
        yield wrong("the model of this optimizer is not wrapped: every rank trains its own", event, fix)
    yield ok(kept[0].last, kept[0])


def _is_forward(event: Event) -> bool:
    """A call of something that may be a model."""
    return event.name.startswith("?") or event.name in (".forward", ".module")


def _is_bare(event: Event) -> bool:
    """Whether the model that is called is not wrapped; ``ddp_model.module(x)`` calls what is inside."""
    return event.name == ".module" or not event.receiver.things("ddp")


def _models(optimizer: Event) -> frozenset[str]:
    return (optimizer.argument(0, "params") or NOTHING).things("model")


def _optimizers_before_parts(script: Script, wrapped: list[Event]) -> Iterator[Event]:
    """An optimizer of a model that FSDP divides later, where no other is made after it.

    With ``use_orig_params`` the parameters stay the same objects (https://docs.pytorch.org/docs/stable/fsdp.html).
    """
    for event in wrapped:
        known = event.last in _IN_PARTS and event.arguments and event.certain and not event.has_unknown_arguments
        if known and event.argument(None, "use_orig_params") is None:
            models = event.arguments[0].things("model")
            before = [each for each in script.optimizers if each.order < event.order and _models(each) & models]
            if len(before) == len(script.optimizers) and before and before[-1].certain:
                yield before[-1]


def _optimizers_of_others(script: Script, wrapped: list[Event]) -> Iterator[Event]:
    """An optimizer that takes steps on a model of which no part is wrapped, where it is known what is wrapped."""
    known = [event.arguments[0].things("model") if event.arguments else frozenset() for event in wrapped]
    by_hand = [event for event in script.events if event.name.startswith("dist.all_") and "grad" in event.text]
    if script.uncertain or not all(known) or by_hand or any(event.last == "fully_shard" for event in wrapped):
        return
    steps = [event for event in script.calls(".step") if event.certain and event.loops and not event.guards]
    for event in script.optimizers:
        models = _models(event)
        is_known = models and event.certain and not event.guards and not event.has_unknown_arguments
        stepped = any(f"optimizer:{event.number}" in each.receiver.tags for each in steps)
        if is_known and stepped and not models & frozenset[str]().union(*known):
            yield event


@rule(6, "broadcast")
def broadcast(script: Script) -> Iterator[Finding]:
    """Whether parameters and optimizer state are broadcast, when they are there."""
    fix = script.fix(
        f"{_WRAP_MODEL}  # does it", "hvd.broadcast_parameters(model.state_dict(), root_rank=0); "
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
        "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), ...]",
    )  # fmt: skip
    if script.way == "ddp":
        for event in script.calls(*_MODELS):
            yield ok(f"{event.last} does it", event)
        yield script.missing("nothing gives all ranks the same parameters", fix)
    callbacks, state = script.calls(*_CALLBACKS), script.calls("hvd.broadcast_optimizer_state")
    sent = [event for event in script.calls(*_PARAMETERS, *_OBJECTS) if _is_of_a_model(event)]
    every = [*sent, *state, *callbacks]
    if not every:
        for event in script.calls(*_ELASTIC):
            yield ok("by the elastic state", event)
        yield script.missing("every rank begins with its own parameters", fix)
    waiting = script.left_waiting(event for event in every if event.guards & {"root", "not_root"})
    if waiting:
        yield wrong("only some of the ranks come here, and wait for the others", waiting, fix)
    for event in every:
        root = event.argument(0 if event in callbacks else 1, "root_rank")
        if root is not None and root.has(RANK, LOCAL_RANK):
            yield wrong("every rank names itself as the root", event, fix)
    if script.is_tensorflow:
        yield from _tensorflow(script, sent, callbacks)
    else:
        yield from _torch(script, sent, state, fix)


def _is_of_a_model(event: Event) -> bool:
    """Whether this sends parameters, and not an epoch's number or another small thing."""
    by_value = union(event.values).things("model", "optimizer")
    by_text = any(part in event.text for part in ("state", "param", "model", "weight"))
    return event.name not in _OBJECTS or bool(by_value) or by_text


def _torch(script: Script, sent: list[Event], state: list[Event], fix: str) -> Iterator[Finding]:
    if not sent:
        fix = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
        yield script.missing("the parameters are not broadcast", fix)
    last = max(event.order for event in (*sent, *state))
    loads = script.calls(".load_state_dict", ".load_weights")
    for event in loads:
        if event.certain and "root" in event.guards and event.order > last and all(each.certain for each in sent):
            reason = "rank 0 loads a checkpoint after the broadcast: the others do not get it"
            yield wrong(reason, event, f"{fix}  # after it was loaded")
    if state or any(union(event.values).things("optimizer") for event in sent):
        yield ok("parameters and optimizer state", sent[0])
    plain = [event.name == "torch.optim.SGD" and event.argument(2, "momentum") is None
             and not event.has_unknown_arguments for event in script.optimizers]  # fmt: skip
    if plain and all(plain) and not any(event.receiver.things("optimizer") for event in loads):
        yield ok("the parameters; plain SGD has no state", sent[0])
    fix = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
    if "hvd.broadcast_optimizer_state" in script.names:
        yield unclear("nothing is seen to call what broadcasts the optimizer's state", sent[0], fix)
    yield script.missing("the optimizer's state is not broadcast", fix, sent[0])


def _tensorflow(script: Script, sent: list[Event], callbacks: list[Event]) -> Iterator[Finding]:
    if callbacks:
        unused = [event for event in callbacks if event.discarded]
        given = any(event.argument(None, "callbacks") or event.has_unknown_arguments for event in script.fits)
        if unused or (script.fits and not given):
            fix = "model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), ...])"
            yield wrong("the callback is not given to fit", (unused or script.fits)[0], fix)
        yield ok(callbacks[0].last, callbacks[0])
    steps = [event for event in script.calls(".apply_gradients", ".minimize") if event.certain]
    state = [event for event in sent if union(event.values).things("optimizer")]
    restores = script.calls(".build", ".restore", ".load_weights", ".set_weights")
    fix = (
        "if step == 0: hvd.broadcast_variables(model.variables, root_rank=0); "
        "hvd.broadcast_variables(optimizer.variables(), root_rank=0)  # after apply_gradients"
    )
    for event in state:
        restored = any(each.order < event.order for each in restores)
        if event.certain and steps and event.order < steps[0].order and not restored:
            yield wrong("the optimizer has no state before its first step", event, fix)
    plain = [event.last == "SGD" and event.argument(1, "momentum") is None for event in script.optimizers]
    if script.calls(".apply_gradients") and not state and plain and not all(plain) and not script.uncertain:
        yield script.missing("the optimizer's state is not broadcast", fix, sent[0])
    yield ok("variables", sent[0])
