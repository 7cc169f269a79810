"""Step 5: gradients are averaged: Horovod's optimizer or tape, or DistributedDataParallel."""

from __future__ import annotations

import ast

from runner.linting.findings import Finding, Script, ok, wrong
from runner.linting.loading import is_backward
from runner.linting.names import is_optimizer
from runner.linting.trace import Event, Trace, Value

_WRAPPERS = ("hvd.DistributedOptimizer", "hvd.DistributedGradientTape", "hvd.DistributedAdasumOptimizer")
_MODELS = ("*.DistributedDataParallel", "*.FullyShardedDataParallel", "*.fully_shard")
_IN_PARTS = ("FullyShardedDataParallel", "fully_shard")
_LEGACY = ("TF_USE_LEGACY_KERAS",)


def judge(script: Script) -> list[Finding]:
    """Whether the gradients of all ranks come together."""
    if script.way == "ddp":
        return _ddp(script)
    trace = script.trace
    fix = (
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"
        if script.framework == "torch"
        else "optimizer = hvd.DistributedOptimizer(optimizer)  # with a tape: tape = hvd.DistributedGradientTape(tape)"
    )
    if script.way == "none":
        return [script.missing("nothing averages the gradients", fix)]
    wrapped = trace.by_name(*_WRAPPERS)
    if not wrapped:
        manual = [event for event in trace.events if "allreduce" in event.name and event.loops]
        near = [event for event in manual if "grad" in _text(event)]
        if near:
            return [ok("by allreduce of each gradient", near[0])]
        if trace.by_name("hvd.load_model", "hvd.create_distributed_optimizer"):
            return [ok("by load_model", trace.by_name("hvd.load_model")[0])]
        return [script.missing("nothing averages the gradients: every rank trains a model of its own", fix)]
    kept = [event for event in wrapped if not event.discarded]
    if not kept:
        return [wrong("the wrapped optimizer is not kept: what it returns must be used", wrapped[0], fix)]
    if all("root" in event.guards for event in kept):
        return [wrong("only rank 0 wraps the optimizer: its allreduce waits for the others", kept[0], fix)]
    raw = _used_unwrapped(trace, kept)
    if raw:
        return [wrong("the optimizer that is used is not the wrapped one", raw[0], fix)]
    keras = _keras_3(script, kept)
    return keras or [ok(kept[0].last, kept[0])]


def _used_unwrapped(trace: Trace, wrapped: list[Event]) -> list[Event]:
    """Steps of an optimizer or tape that was wrapped under another name."""
    inner = {
        tag
        for event in wrapped
        for value in event.values
        for tag in value.numbered("optimizer") | value.numbered("tape")
    }  # fmt: skip
    found = []
    for event in trace.events:
        users = []
        if event.name in (".step", ".apply_gradients", ".minimize", ".gradient"):
            users = [event.receiver, *event.arguments[:1]] if event.name == ".step" else [event.receiver]
        elif event.name == ".compile":
            optimizer = event.argument(0, "optimizer")
            users = [optimizer] if optimizer is not None else []
        found += [event for value in users if value.tags & inner and not value.has("wrapped")]
    if any(event.name == "hvd.DistributedGradientTape" for event in wrapped):
        found = [event for event in found if event.name == ".gradient"]
        if trace.by_name("hvd.DistributedOptimizer"):
            return []
    return [event for event in found if event.number > wrapped[0].number or not event.certain]


def _keras_3(script: Script, wrapped: list[Event]) -> list[Finding]:
    """Keras 3 does not call what Horovod's optimizer replaces: each rank trains alone, without a message."""
    trace = script.trace
    optimizers = [event for event in wrapped if event.name == "hvd.DistributedOptimizer"]
    if script.framework != "tensorflow" or not optimizers:
        return []
    if any(text in _LEGACY for text in trace.texts) or trace.imported("tf_keras", "tensorflow.compat.v1"):
        return []
    if any(name.startswith("tensorflow.python") for name in trace.imports) or trace.by_name(
        "tensorflow.ConfigProto", "keras.backend.set_session"
    ):
        return []
    fits = [event for event in trace.events if event.name in (".fit", ".compile", ".fit_generator", ".apply_gradients")]
    if not trace.imported("keras") or not fits or trace.imported("keras.backend"):
        return []
    fix = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before TensorFlow is imported, and tf.keras in place of keras'
    return [
        wrong("Keras 3 trains without Horovod's DistributedOptimizer: gradients stay on each rank", optimizers[0], fix)
    ]


def _ddp(script: Script) -> list[Finding]:
    trace = script.trace
    fix = "model = DistributedDataParallel(model, device_ids=[local_rank])"
    models = [event for event in trace.by_name(*_MODELS) if "class " not in event.name]
    if not models:
        manual = [
            event
            for event in trace.events
            if event.name in ("dist.all_reduce", "dist.all_gather") and "grad" in _text(event)
        ]
        if manual:
            return [ok("by all_reduce of each gradient", manual[0])]
        return [script.missing("the model is not wrapped: every rank trains a model of its own", fix)]
    kept = [event for event in models if not event.discarded or event.last == "fully_shard"]
    if not kept:
        return [
            wrong("the wrapped model is not kept: what DistributedDataParallel returns must be used", models[0], fix)
        ]
    if all("root" in event.guards for event in kept):
        return [wrong("only rank 0 wraps the model: it waits for the others", kept[0], fix)]
    training = {event.loops[-1] for event in trace.events if is_backward(event) and event.loops}
    numbers = {f"raw:{event.number}" for event in kept}
    forward = [event for event in trace.events if _is_forward(event) and event.loops and event.loops[-1] in training]
    in_step = {tag for event in forward if not _is_raw(event) for tag in event.receiver.numbered("model")}
    for event in forward:
        bare = numbers & (_raw(event.receiver) if event.name == ".module" else event.receiver.numbered("raw"))
        if _is_raw(event) and bare and not {tag.replace("raw", "model") for tag in bare} & in_step:
            return [wrong("the loop trains the model that is not wrapped", event, "output = ddp_model(input)")]
    early = _optimizer_before_parts(trace, kept)
    if early:
        reason = "the optimizer has the parameters that the model had before it was divided"
        return [wrong(reason, early, "optimizer = ...(model.parameters())  # after it was divided")]
    alone = _optimizer_of_another(trace, kept)
    if alone:
        return [wrong("the model of this optimizer is not wrapped: every rank trains its own", alone, fix)]
    return [ok(kept[0].last, kept[0])]


def _is_forward(event: Event) -> bool:
    """A call of something that may be a model."""
    return event.name.startswith("?") or event.name in (".forward", ".__call__", ".call", ".module")


def _is_raw(event: Event) -> bool:
    """Whether the model that is called is not wrapped; ``ddp_model.module(x)`` calls what is inside."""
    return event.name == ".module" or not event.receiver.has("wrapped_model")


def _raw(model: Value) -> frozenset[str]:
    return frozenset(tag.replace("model", "raw") for tag in model.numbered("model") if model.has("wrapped_model"))


def _optimizer_before_parts(trace: Trace, wrapped: list[Event]) -> Event | None:
    """An optimizer of a model that FSDP divides later, where no other is made after it.

    With ``use_orig_params`` the parameters stay the same objects (https://docs.pytorch.org/docs/stable/fsdp.html).
    """
    made = [event for event in trace.events if is_optimizer(event.name)]
    for event in wrapped:
        if event.last not in _IN_PARTS or event.argument(None, "use_orig_params") is not None:
            continue
        if event.has_unknown_arguments or not event.arguments or not event.certain:
            continue
        models = event.arguments[0].numbered("model")
        before = [each for each in made if each.number < event.number and _models(each) & models]
        if before and len(before) == len(made) and before[-1].certain:
            return before[-1]
    return None


def _optimizer_of_another(trace: Trace, wrapped: list[Event]) -> Event | None:
    """An optimizer that takes steps on a model of which no part is wrapped, where it is known what is wrapped."""
    known = [event.arguments[0].numbered("model") if event.arguments else frozenset() for event in wrapped]
    if trace.uncertain or not all(known) or any(event.last == "fully_shard" for event in wrapped):
        return None
    if any(event.name.startswith("dist.all_") and "grad" in _text(event) for event in trace.events):
        return None
    in_step = frozenset[str]().union(*known) | {f"model:{event.number}" for event in wrapped}
    steps = [event for event in trace.by_name(".step") if event.certain and event.loops and not event.guards]
    for event in trace.events:
        if not is_optimizer(event.name) or not event.certain or event.guards or event.has_unknown_arguments:
            continue
        models = _models(event)
        if models and not models & in_step and any(f"optimizer:{event.number}" in each.receiver.tags for each in steps):
            return event
    return None


def _models(optimizer: Event) -> frozenset[str]:
    parameters = optimizer.argument(0, "params")
    return parameters.numbered("model") if parameters is not None else frozenset()


def _text(event: Event) -> str:
    return ast.unparse(event.node) if isinstance(event.node, ast.expr) else ""
