"""Steps 5 and 6: gradients are averaged, and all ranks begin with the parameters and state of rank 0."""

from __future__ import annotations

from collections.abc import Iterator

from runner.linting.names import NOTHING, names_in, union
from runner.linting.script import Event, Finding, Script, ok, rule, unclear, wrong

_WRAPPERS = names_in("DistributedOptimizer DistributedGradientTape DistributedAdasumOptimizer load_model "
                  "create_distributed_optimizer", "hvd.")  # fmt: skip
_MODELS = names_in("DistributedDataParallel FullyShardedDataParallel fully_shard", "*.")
_AVERAGES = ("allreduce", "all_reduce", "all_gather")
_PARAMETERS = names_in("parameters variables global_variables model_weights", "hvd.broadcast_")
_OBJECTS = names_in("broadcast_object broadcast_ broadcast", "hvd.")
_CALLBACKS = names_in("callbacks.BroadcastGlobalVariablesCallback BroadcastGlobalVariablesHook "
                   "callbacks.BroadcastGlobalVariablesCallbackImpl", "hvd.")  # fmt: skip
_ELASTIC = names_in("TorchState TensorFlowKerasState KerasState TensorFlowState run", "hvd.elastic.")
_WRAP_MODEL = "model = DistributedDataParallel(model, device_ids=[local_rank])"


@rule(5, "average gradients")
def gradients(script: Script) -> Iterator[Finding]:
    """Whether the gradients of all ranks come together: what is wrapped is the model (DDP) or the optimizer."""
    fix = script.fix(
        _WRAP_MODEL, "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
        "optimizer = hvd.DistributedOptimizer(optimizer)  # with a tape: tape = hvd.DistributedGradientTape(tape)",
    )  # fmt: skip
    if script.way == "none":
        yield script.missing("nothing averages the gradients", fix)
    is_ddp = script.way == "ddp"
    what, lacks = ("model", "the model is not wrapped") if is_ddp else ("optimizer", "nothing averages the gradients")
    wrapper, waiting = ("DistributedDataParallel", "it") if is_ddp else ("it", "its allreduce")
    wrapped = script.calls(*(_MODELS if is_ddp else _WRAPPERS))
    if not wrapped:
        for event in script.events:
            by_name = any(part in event.name for part in _AVERAGES) and "grad" in event.text
            if by_name and (event.loops or is_ddp):
                yield ok(f"by {event.last} of each gradient", event)
        yield script.missing(f"{lacks}: every rank trains a model of its own", fix)
    kept = [event for event in wrapped if not event.discarded or event.last == "fully_shard"]
    if not kept:
        yield wrong(f"the wrapped {what} is not kept: what {wrapper} returns must be used", wrapped[0], fix)
    if all("root" in event.guards for event in kept):
        yield wrong(f"only rank 0 wraps the {what}: {waiting} waits for the others", kept[0], fix)
    yield from _ddp(script, kept, fix) if is_ddp else _horovod(script, kept, fix)
    yield ok(kept[0].last, kept[0])


def _horovod(script: Script, wrapped: list[Event], fix: str) -> Iterator[Finding]:
    """Steps of an optimizer or tape that was wrapped under another name, and Keras 3.

    Keras 3 does not call what Horovod's optimizer replaces: each rank trains alone, without a message.
    """
    inner = union(value for event in wrapped for value in event.values).things("optimizer", "tape")
    names = {event.name for event in wrapped}
    by_tape = (".gradient",) if "hvd.DistributedOptimizer" not in names else ()
    by_step = (".step", ".apply_gradients", ".minimize", ".compile")
    for event in script.calls(*(by_tape if "hvd.DistributedGradientTape" in names else by_step)):
        optimizer = event.argument(0, "optimizer") if event.name in (".step", ".compile") else None
        users = [event.receiver, optimizer or NOTHING]
        unwrapped = any(each.tags & inner and not each.has("wrapped") for each in users)
        if unwrapped and (event.order > wrapped[0].order or not event.certain):
            yield wrong("the optimizer that is used is not the wrapped one", event, fix)
    legacy = "TF_USE_LEGACY_KERAS" in script.resolver.texts or script.imports(
        "tf_keras", "tensorflow.compat.v1", "tensorflow.python", "keras.backend"
    )
    legacy = legacy or bool(script.calls("tensorflow.ConfigProto", "keras.backend.set_session"))
    trains = script.calls(".fit", ".compile", ".fit_generator", ".apply_gradients")
    by_optimizer = script.is_tensorflow and "hvd.DistributedOptimizer" in names
    if by_optimizer and script.imports("keras") and trains and not legacy:
        fix = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported; and tf.keras, not keras'
        reason = "Keras 3 trains without Horovod's DistributedOptimizer: gradients stay on each rank"
        yield wrong(reason, wrapped[0], fix)


def _ddp(script: Script, wrapped: list[Event], fix: str) -> Iterator[Finding]:
    """A loop that trains the model inside, and an optimizer of a model that is not wrapped."""
    whole = [event.arguments[0] for event in wrapped if event.arguments and event.last != "fully_shard"]
    inner = frozenset[str]().union(*(value.things("model", "object") for value in whole))
    forward = [event for event in script.events if event.name.startswith("?") or event.name in (".forward", ".module")]
    forward = [event for event in forward if event.loops and event.loops[-1] in script.batches]
    bare = [event for event in forward if event.name == ".module" or not event.receiver.things("ddp")]
    if not any(event.receiver.things("ddp") for event in forward if event not in bare):
        for event in bare:
            if event.receiver.tags & inner:
                yield wrong("the loop trains the model that is not wrapped", event, "output = ddp_model(input)")
    optimizers = [(event, (event.argument(0, "params") or NOTHING).things("model")) for event in script.optimizers]
    for event in wrapped:  # FSDP replaces the parameters, but with `use_orig_params`
        known = event.last != "DistributedDataParallel" and event.arguments and event.certain
        if known and not event.has_unknown_arguments and event.argument(None, "use_orig_params") is None:
            divided = event.arguments[0].things("model")
            before = [each for each, models in optimizers if each.order < event.order and models & divided]
            if before and len(before) == len(optimizers) and before[-1].certain:
                reason = "the optimizer has the parameters that the model had before it was divided"
                yield wrong(reason, before[-1], "optimizer = ...(model.parameters())  # after it was divided")
    by_hand = [event for event in script.events if event.name.startswith("dist.all_") and "grad" in event.text]
    if script.uncertain or by_hand or len(whole) < len(wrapped) or not all(value.things("model") for value in whole):
        return
    stepped = union(
        event.receiver for event in script.calls(".step") if event.certain and event.loops and not event.guards
    ).tags
    for event, models in optimizers:
        is_known = models and event.certain and not event.guards and f"optimizer:{event.number}" in stepped
        if is_known and not models & inner:
            yield wrong("the model of this optimizer is not wrapped: every rank trains its own", event, fix)


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
        if root is not None and root.has("rank", "local_rank"):
            yield wrong("every rank names itself as the root", event, fix)
    yield from _tensorflow(script, sent, callbacks) if script.is_tensorflow else _torch(script, sent, state, fix)


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
    known = not any(event.has_unknown_arguments for event in script.optimizers)
    plain = [event.last == "SGD" and event.argument(2, "momentum") is None for event in script.optimizers]
    if known and plain and all(plain) and not any(event.receiver.things("optimizer") for event in loads):
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
