"""Steps 7 and 8: rank 0 alone writes checkpoints and logs, and metrics are those of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from astroid import nodes

from runner.linting.names import NOTHING, Value, names_in
from runner.linting.script import Event, Finding, Script, ok, rule, sharding, unclear, wrong

_CHECKPOINTS = names_in(
    "torch.save torch.jit.save .save_weights .save_pretrained .save_model .save keras.callbacks.ModelCheckpoint "
    "keras.models.save_model keras.saving.save_model tensorflow.saved_model.save joblib.dump pickle.dump "
    "safetensors.torch.save_file safetensors.torch.save_model numpy.save numpy.savez"
)
_LOGS = names_in(
    "keras.callbacks.TensorBoard keras.callbacks.CSVLogger torch.utils.tensorboard.SummaryWriter "
    "torch.utils.tensorboard.writer.SummaryWriter tensorboardX.SummaryWriter tensorflow.summary.create_file_writer "
    "wandb.init"
)
# Every rank takes part in these, as in `_COLLECTIVES`.
_TOGETHER = ("torch.distributed.checkpoint.", "torch.distributed.fsdp.", "orbax.")
_BARRIERS = ("dist.barrier", "dist.monitored_barrier", "hvd.barrier")
_COLLECTIVES = (*_BARRIERS, "torch.distributed.checkpoint.save", "torch.distributed.checkpoint.save_state_dict")
# A state of all parts, which FSDP's ranks put together.
_STATES = names_in("get_model_state_dict get_optimizer_state_dict get_state_dict",
                "torch.distributed.checkpoint.state_dict.")  # fmt: skip
_IN_PLACE = names_in(
    "all_reduce reduce all_gather gather all_gather_object gather_object all_gather_into_tensor", "dist."
)
_RETURNED = {"hvd.callbacks.MetricAverageCallback", "dist.reduce_scatter"} | names_in(
    "allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce allgather allgather_object reducescatter",
    "hvd.",
)
_MAKERS = names_in("tensor Tensor FloatTensor IntTensor zeros ones constant array")
_METRIC = re.compile(
    r"loss|acc(?![a-z]*el)|metric|correct|error_rate|score|auc|perplex|\bppl|bleu|\bmae\b|rmse|\bmse\b|\biou\b|\bf1\b",
    re.IGNORECASE,
)
_REPORTS = re.compile(
    r"(print|info|debug|write|add_scalar|log|set_postfix|log_metrics|scalar|report|writerow|dump|append_row)\Z"
)
_EVALUATION = re.compile(r"\b(test|val|valid|validation|eval|evaluation)\b", re.IGNORECASE)


@rule(7, "rank 0 writes")
def writes(script: Script) -> Iterator[Finding]:
    """Whether several ranks write one file, or rank 0 alone comes to what all must."""
    yield from _waiting(script)
    logs = [event for event in script.events if event.name in _LOGS or _opens_a_text(event)]
    files = [event for event in script.events if event.name in _CHECKPOINTS] + logs
    good: list[Event] = []
    doubtful: list[Finding] = []
    for event in files:
        if _is_no_file_of_training(event):
            continue
        what = "writes the log" if event in logs else "writes the checkpoint"
        call = f"if {{}} == 0: {_call(event)}"
        fix = script.fix(call.format("dist.get_rank()"), call.format("hvd.rank()"))
        by_root = any(value.has("root_only", "is_root") for value in (*event.values, event.receiver))
        if "root" in event.guards or by_root or _path(event).has("by_rank_in_text", "rank", "local_rank"):
            good.append(event)
        elif "local_root" in event.guards:
            reason = f"one rank of every node {what}: wrong on a file system that nodes share"
            doubtful.append(unclear(reason, event, fix))
        elif event in logs and script.imports("ray", "horovod.ray"):
            doubtful.append(unclear("a rank or Ray's driver writes the log", event, fix))
        elif not event.certain and (":" in event.place or event in logs):
            doubtful.append(unclear(f"nothing is seen to call what {what}", event, fix))
        else:
            reason = f"every rank{' but rank 0' if 'not_root' in event.guards else ''} {what}"
            yield Finding("missing" if script.way == "none" else "wrong", reason, event.place, fix)
    yield from doubtful
    yield ok("rank 0 writes", good[0]) if good else ok("it writes no checkpoint that can be seen")


def _waiting(script: Script) -> Iterator[Finding]:
    """What rank 0 alone comes to where it writes, and all ranks must: a barrier, a checkpoint of parts."""
    divided = script.calls("*.FullyShardedDataParallel", "*.fully_shard")
    local = any(name.endswith(".LOCAL_STATE_DICT") for name in script.names)
    parts = {f"ddp:{event.number}" for event in divided if not local}
    states = [event for event in script.calls(".state_dict") if event.receiver.tags & parts]
    states += script.calls(*_STATES) if divided else []
    waited = [event for event in (*script.calls(*_COLLECTIVES), *states) if event.certain and "root" in event.guards]
    event = script.left_waiting(each for each in waited if each.argument(None, "no_dist") is None)
    if event is not None and not script.uncertain:
        barrier = "only rank 0 comes to this barrier, and waits for the others"
        part = "each rank has a part of the checkpoint: rank 0 alone waits for the others"
        fix = f"{_call(event)}  # on every rank, before the condition"
        yield wrong(barrier if event.name in _BARRIERS else part, event, fix)


def _opens_a_text(event: Event) -> bool:
    """A text file that is written; of a binary one, `pickle.dump` or its like says what it is."""
    if event.name not in ("builtins.open", ".open", "io.open"):
        return False
    mode = (event.argument(0 if event.name == ".open" else 1, "mode") or NOTHING).constant
    return isinstance(mode, str) and mode[:1] in ("w", "a", "x") and "b" not in mode


def _is_no_file_of_training(event: Event) -> bool:
    """What all ranks write together, a buffer in memory, the null device, a picture or a plot."""
    path = _path(event)
    if event.name.startswith(_TOGETHER) or path.has("in_memory") or path.path == "os.devnull":
        return True
    is_picture = isinstance(path.constant, str) and path.constant.endswith((".png", ".jpg", ".pdf"))
    return event.name == ".save" and (is_picture or event.argument(None, "format") is not None)


def _path(event: Event) -> Value:
    second = event.name in ("torch.save", "torch.jit.save", "pickle.dump", "joblib.dump") or "safetensors" in event.name
    return event.argument(int(second), "f", "path", "filepath", "file", "filename", "log_dir") or NOTHING


def _call(event: Event) -> str:
    name = event.name.removeprefix("builtins.")
    return f"model{name}(...)" if name.startswith(".") else f"{name}(...)"


@rule(8, "average metrics")
def metrics(script: Script) -> Iterator[Finding]:
    """Whether metrics are averaged over the ranks before they are reported."""
    fix = script.fix(
        "dist.all_reduce(loss, op=dist.ReduceOp.AVG)  # on every rank, before rank 0 prints",
        'loss = hvd.allreduce(loss, name="loss")  # on every rank, before rank 0 prints',
        "callbacks = [..., hvd.callbacks.MetricAverageCallback()]",
    )
    shared = [event for event in script.calls(*_IN_PLACE, *_RETURNED) if "grad" not in event.text]
    shared = [event for event in shared if not (event.node.args and _is_literal(event.node.args[0]))]
    for event in shared:
        second = event.argument(1) or NOTHING  # of Horovod before 0.20
        by_name = event.argument(None, "average") is not None
        if event.name.startswith("hvd.allreduce") and (by_name or isinstance(second.constant, bool)):
            reason = "allreduce(average=...) was replaced by op="
            yield wrong(reason, event, "hvd.allreduce(value, op=hvd.Average)")
    waiting = script.left_waiting(shared)
    if waiting:
        yield wrong("only some of the ranks come here, and wait for the others", waiting, fix)
    for event in shared:
        if event.discarded and event.name in _RETURNED and not event.name.endswith("_"):
            yield wrong("the average is not used: allreduce returns it", event, fix)
    trains = any(event.certain for event in script.backward)
    if trains and shared and not any(event.certain for event in shared):
        yield unclear("nothing is seen to call what averages", shared[0], fix)
    if shared:
        yield ok(f"by {shared[0].last}", shared[0])
    if script.imports("torchmetrics", "torcheval"):
        yield ok("the metrics' package synchronises")
    if script.fits and script.is_tensorflow:
        yield script.missing("the metrics of fit are those of each rank", fix, script.fits[0])
    yield from _judge_reports(script, fix)


def _is_literal(node: nodes.NodeNG) -> bool:
    """What is made of literals: ``0``, ``torch.zeros(1)``, ``torch.tensor(0).to(device)``; it makes a barrier."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(_is_literal, node.elts))
    if isinstance(node, nodes.Call) and isinstance(node.func, nodes.Attribute):
        if node.func.attrname in ("to", "cuda", "float"):
            return _is_literal(node.func.expr)
        return node.func.attrname in _MAKERS and bool(node.args) and all(map(_is_literal, node.args))
    return isinstance(node, nodes.Const)


def _judge_reports(script: Script, fix: str) -> Iterator[Finding]:
    reports = [event for event in script.events if _REPORTS.search(event.last) and _is_metric(event)]
    if not reports:
        yield ok("it reports no metric that can be seen")
    if script.way == "none":
        yield script.missing("nothing averages what the ranks measure", fix)
    whole = {f"loader:{event.number}" for event in script.loaders if not sharding(event)}
    after_steps = [event for event in reports if not script.batches.intersection(event.loops)]
    if not after_steps:
        yield unclear("it reports the loss of single steps, of one rank", reports[0], fix)
    if script.evaluated and script.evaluated <= whole:
        yield ok("every rank evaluates the whole set", after_steps[0])
    if script.uncertain:
        yield unclear(script.uncertain, after_steps[0], fix)
    if script.evaluated or script.way == "horovod":
        yield wrong("the metrics are those of one rank", after_steps[0], fix)
    yield unclear("it reports the training loss of one rank", after_steps[0], fix)


def _is_metric(event: Event) -> bool:
    by_word = _EVALUATION.search(event.text) and any(not value.constants for value in event.values)
    return bool(_METRIC.search(event.text) or by_word)
