"""Step 6: all ranks begin with the parameters and optimizer state of rank 0."""

from __future__ import annotations

import ast

from runner.linting.findings import Finding, Script, ok, unclear, wrong
from runner.linting.names import LOCAL_RANK, RANK, is_optimizer
from runner.linting.ranks import is_left_waiting
from runner.linting.trace import Event, Trace

_PARAMETERS = ("hvd.broadcast_parameters", "hvd.broadcast_variables", "hvd.broadcast_global_variables",
               "hvd.broadcast_object", "hvd.broadcast_", "hvd.broadcast", "hvd.broadcast_model_weights")  # fmt: skip
_CALLBACKS = ("hvd.callbacks.BroadcastGlobalVariablesCallback", "hvd.BroadcastGlobalVariablesHook",
              "hvd.callbacks.BroadcastGlobalVariablesCallbackImpl")  # fmt: skip
_ELASTIC = ("hvd.elastic.TorchState", "hvd.elastic.TensorFlowKerasState", "hvd.elastic.KerasState",
            "hvd.elastic.TensorFlowState", "hvd.elastic.run")  # fmt: skip
_ALL_OF_TORCH = (
    "hvd.broadcast_parameters(model.state_dict(), root_rank=0); hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
)


def judge(script: Script) -> list[Finding]:
    """Whether parameters and optimizer state are broadcast, when they are there."""
    trace = script.trace
    if script.way == "ddp":
        models = trace.by_name("*.DistributedDataParallel", "*.FullyShardedDataParallel", "*.fully_shard")
        if models:
            return [ok(f"{models[0].last} does it", models[0])]
        return [script.missing("nothing gives all ranks the same parameters", "model = DistributedDataParallel(model)")]
    fix = (
        _ALL_OF_TORCH
        if script.framework == "torch"
        else "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), ...]"
    )
    elastic, callbacks = trace.by_name(*_ELASTIC), trace.by_name(*_CALLBACKS)
    parameters = [event for event in trace.by_name(*_PARAMETERS) if _is_of_a_model(event)]
    state = trace.by_name("hvd.broadcast_optimizer_state")
    both = [*parameters, *state, *callbacks]
    if not both:
        if elastic:
            return [ok("by the elastic state", elastic[0])]
        return [script.missing("every rank begins with its own parameters", fix)]
    for event in both:
        if event.guards & {"root", "not_root"} and is_left_waiting(event, trace):
            return [wrong("only some of the ranks come here, and wait for the others", event, fix)]
        root = event.argument(0 if event in callbacks else 1, "root_rank")
        if root is not None and root.has(RANK, LOCAL_RANK):
            return [wrong("every rank names itself as the root", event, fix)]
    return (
        _torch(script, parameters, state, fix)
        if script.framework == "torch"
        else _tensorflow(script, parameters, callbacks)
    )


def _torch(script: Script, parameters: list[Event], state: list[Event], fix: str) -> list[Finding]:
    trace = script.trace
    if not [event for event in parameters if event.name != "hvd.broadcast_object"] and not _of_state(parameters):
        return [
            script.missing(
                "the parameters are not broadcast", "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
            )
        ]
    loads = trace.by_name(".load_state_dict", ".load_weights")
    last = max(event.number for event in (*parameters, *state))
    late = [
        event
        for event in loads
        if event.certain and event.guards & {"root"} and event.number > last
        and all(each.certain for each in parameters)
    ]  # fmt: skip
    if late:
        return [
            wrong(
                "rank 0 loads a checkpoint after the broadcast: the others do not get it",
                late[0],
                f"{fix}  # after it was loaded",
            )
        ]
    early = _before_the_model(parameters, trace)
    if early:
        return [wrong("the parameters change after they were broadcast", early, fix)]
    if not state and not _of_optimizer(parameters):
        made = [event for event in trace.events if is_optimizer(event.name)]
        restores = [event for event in loads if event.receiver.numbered("optimizer")]
        without = made and all(
            event.name == "torch.optim.SGD"
            and event.argument(2, "momentum") is None
            and not event.has_unknown_arguments
            for event in made
        )
        if without and not restores:
            return [ok("the parameters; plain SGD has no state", parameters[0])]
        fix = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
        if "hvd.broadcast_optimizer_state" in trace.names:
            return [unclear("nothing is seen to call what broadcasts the optimizer's state", parameters[0], fix)]
        if trace.uncertain:
            return [unclear("the optimizer's state is not broadcast", parameters[0], fix)]
        return [Finding("missing", "the optimizer's state is not broadcast", parameters[0].place, fix)]
    return [ok("parameters and optimizer state", parameters[0])]


def _is_of_a_model(event: Event) -> bool:
    """Whether this sends parameters, and not an epoch's number or another small thing."""
    if event.name not in ("hvd.broadcast", "hvd.broadcast_", "hvd.broadcast_object"):
        return True
    if any(value.numbered("model") | value.numbered("optimizer") for value in event.values):
        return True
    text = ast.unparse(event.node) if isinstance(event.node, ast.expr) else ""
    return any(part in text for part in ("state", "param", "model", "weight"))


def _before_the_model(parameters: list[Event], trace: Trace) -> Event | None:
    """A broadcast of a model's parameters after which the model gets others at random, or is made anew."""
    for event in parameters:
        if not event.certain or event.loops or event.name != "hvd.broadcast_parameters":
            continue
        models = {tag for value in event.values for tag in value.numbered("model")}
        again = [
            each
            for each in trace.by_name(".apply")
            if each.certain and each.number > event.number and not each.loops and each.receiver.tags & models
        ]
        if again:
            return event
    return None


def _of_state(events: list[Event]) -> list[Event]:
    return [event for event in events if event.name == "hvd.broadcast_object"]


def _of_optimizer(events: list[Event]) -> list[Event]:
    return [event for event in events if any(value.numbered("optimizer") for value in event.values)]


def _tensorflow(script: Script, variables: list[Event], callbacks: list[Event]) -> list[Finding]:
    trace = script.trace
    if callbacks:
        fits = trace.by_name(".fit", ".fit_generator")
        for event in callbacks:
            if event.discarded:
                fix = "model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])"
                return [wrong("the callback is not given to fit", event, fix)]
        if fits and not any(event.argument(None, "callbacks") or event.has_unknown_arguments for event in fits):
            fix = "model.fit(..., callbacks=callbacks)"
            return [wrong("the callback is not given to fit", fits[0], fix)]
        return [ok(callbacks[0].last, callbacks[0])]
    steps = [event for event in trace.by_name(".apply_gradients", ".minimize") if event.certain]
    state = [event for event in variables if _of_optimizer([event])]
    fix = (
        "if step == 0: hvd.broadcast_variables(model.variables, root_rank=0); "
        "hvd.broadcast_variables(optimizer.variables(), root_rank=0)  # after apply_gradients"
    )
    for event in state:
        if event.certain and steps and event.number < steps[0].number and not _restored(trace, event):
            return [wrong("the optimizer has no state before its first step", event, fix)]
    if trace.by_name(".apply_gradients") and not state and script.framework == "tensorflow":
        made = [event for event in trace.events if is_optimizer(event.name)]
        plain = made and all(event.last == "SGD" and event.argument(1, "momentum") is None for event in made)
        if not plain and not trace.uncertain and made:
            return [Finding("missing", "the optimizer's state is not broadcast", variables[0].place, fix)]
    return [ok("variables", variables[0])]


def _restored(trace: Trace, event: Event) -> bool:
    return any(
        each.number < event.number for each in trace.by_name(".build", ".restore", ".load_weights", ".set_weights")
    )
