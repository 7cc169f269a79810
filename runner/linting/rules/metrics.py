"""Step 8: metrics that are reported are those of all ranks."""

from __future__ import annotations

import ast
import re

from runner.linting.findings import Finding, Script, ok, unclear, wrong
from runner.linting.loading import is_backward, loaders, sharding
from runner.linting.ranks import is_left_waiting
from runner.linting.trace import Event

_SYNCHRONIZE = frozenset(
    ("hvd.allreduce", "hvd.allreduce_", "hvd.allreduce_async", "hvd.allreduce_async_", "hvd.grouped_allreduce",
     "hvd.allgather", "hvd.allgather_object", "hvd.callbacks.MetricAverageCallback", "hvd.reducescatter",
     "dist.all_reduce", "dist.reduce", "dist.all_gather", "dist.all_gather_object", "dist.gather", "dist.gather_object",
     "dist.all_gather_into_tensor", "dist.reduce_scatter")
)  # fmt: skip
_IN_PLACE = ("dist.all_reduce", "dist.reduce", "dist.all_gather", "dist.gather", "dist.all_gather_object",
             "dist.gather_object", "dist.all_gather_into_tensor")  # fmt: skip
_MAKERS = frozenset(("tensor", "Tensor", "FloatTensor", "IntTensor", "zeros", "ones", "constant", "array"))
_METRIC = re.compile(
    r"loss|acc(?![a-z]*el)|metric|correct|error_rate|score|auc|perplex|\bppl|bleu|\bmae\b|rmse|\bmse\b|\biou\b|\bf1\b",
    re.IGNORECASE,
)
_REPORTS = re.compile(
    r"(print|info|debug|write|add_scalar|log|set_postfix|log_metrics|scalar|report|writerow|dump|append_row)\Z"
)
_EVALUATION = re.compile(r"\b(test|val|valid|validation|eval|evaluation)\b", re.IGNORECASE)


def judge(script: Script) -> list[Finding]:
    """Whether metrics are averaged over the ranks before they are reported."""
    trace = script.trace
    if script.way == "ddp":
        fix = "dist.all_reduce(loss, op=dist.ReduceOp.AVG)  # on every rank, before rank 0 prints"
    elif script.framework == "torch":
        fix = 'loss = hvd.allreduce(loss, name="loss")  # on every rank, before rank 0 prints'
    else:
        fix = "callbacks = [..., hvd.callbacks.MetricAverageCallback()]"
    shared = [
        event
        for event in trace.events
        if event.name in _SYNCHRONIZE and "grad" not in _text(event) and not _is_barrier(event)
    ]
    for event in shared:
        if event.name.startswith("hvd.allreduce") and _has_average(event):
            by = "hvd.allreduce(value, op=hvd.Average)"
            return [wrong("allreduce(average=...) was replaced by op=", event, by)]
    for event in shared:
        if is_left_waiting(event, trace):
            return [wrong("only some of the ranks come here, and wait for the others", event, fix)]
        if event.discarded and event.name not in _IN_PLACE and not event.name.endswith("_"):
            return [wrong("the average is not used: allreduce returns it", event, fix)]
    trains = any(is_backward(event) and event.certain for event in trace.events)
    if trains and shared and not any(event.certain for event in shared):
        return [unclear("nothing is seen to call what averages", shared[0], fix)]
    if shared:
        return [ok(f"by {shared[0].last}", shared[0])]
    if trace.imported("torchmetrics", "torcheval"):
        return [ok("the metrics' package synchronises")]
    fits = [event for event in trace.events if event.name in (".fit", ".fit_generator")]
    if fits and script.framework == "tensorflow":
        if script.way == "none":
            return [script.missing("the metrics of fit are those of each rank", fix)]
        if trace.uncertain:
            return [unclear(trace.uncertain, fits[0], fix)]
        return [Finding("missing", "the metrics of fit are those of each rank", fits[0].place, fix)]
    return [_of_reports(script, fix)]


def _is_barrier(event: Event) -> bool:
    """Whether what it reduces is made of literals: ranks wait for each other, and no metric is averaged."""
    return isinstance(event.node, ast.Call) and bool(event.node.args) and _is_literal(event.node.args[0])


def _is_literal(node: ast.expr) -> bool:
    """``0``, ``torch.zeros(1)``, ``tf.constant([0.0])``, ``torch.tensor(0).to(device)``."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in ("to", "cuda", "float") and isinstance(node.func, ast.Attribute):
            return _is_literal(node.func.value)
        return name in _MAKERS and bool(node.args) and all(map(_is_literal, node.args))
    return isinstance(node, ast.Constant)


def _has_average(event: Event) -> bool:
    """``average`` by its name, or by its place: the second argument of Horovod before 0.20."""
    second = event.argument(1)
    return any(name == "average" for name, _ in event.keywords) or (
        second is not None and isinstance(second.constant, bool)
    )


def _of_reports(script: Script, fix: str) -> Finding:
    trace = script.trace
    batches = {event.loops[-1] for event in trace.events if is_backward(event) and event.loops}
    reports = [event for event in trace.events if _REPORTS.search(event.last) and _is_metric(event)]
    if not reports:
        return ok("it reports no metric that can be seen")
    if script.way == "none":
        return script.missing("nothing averages what the ranks measure", fix)
    known = loaders(trace)
    whole = {tag for tag, event in known.items() if sharding(event) == ""}
    goes_over = {
        tag for number, loop in trace.loops.items() if number not in batches for tag in loop.over.numbered("loader")
    } & set(known)  # fmt: skip
    after_steps = [event for event in reports if not set(event.loops) & batches]
    if not after_steps:
        return unclear("it reports the loss of single steps, of one rank", reports[0], fix)
    if goes_over and goes_over <= whole:
        return ok("every rank evaluates the whole set", after_steps[0])
    evaluated = bool(goes_over)
    if trace.uncertain:
        return unclear(trace.uncertain, after_steps[0], fix)
    if evaluated or script.way == "horovod":
        return wrong("the metrics are those of one rank", after_steps[0], fix)
    return unclear("it reports the training loss of one rank", after_steps[0], fix)


def _is_metric(event: Event) -> bool:
    text = _text(event)
    return _METRIC.search(text) is not None or (
        _EVALUATION.search(text) is not None and any(value.constant is ... for value in event.values)
    )


def _text(event: Event) -> str:
    return ast.unparse(event.node) if isinstance(event.node, ast.expr) else ""
