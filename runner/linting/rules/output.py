"""Step 7: rank 0 alone writes checkpoints and logs."""

from __future__ import annotations

from runner.linting.findings import Finding, Script, ok, unclear, wrong
from runner.linting.names import LOCAL_RANK, RANK
from runner.linting.ranks import is_left_waiting
from runner.linting.trace import Event, Trace, Value

_CHECKPOINTS = frozenset(
    ("torch.save", "torch.jit.save", ".save_weights", ".save_pretrained", ".save_model", ".save",
     "keras.callbacks.ModelCheckpoint", "keras.models.save_model", "keras.saving.save_model",
     "tensorflow.saved_model.save", "joblib.dump", "pickle.dump", "safetensors.torch.save_file",
     "safetensors.torch.save_model", "numpy.save", "numpy.savez")
)  # fmt: skip
_LOGS = frozenset(
    ("keras.callbacks.TensorBoard", "keras.callbacks.CSVLogger", "torch.utils.tensorboard.SummaryWriter",
     "torch.utils.tensorboard.writer.SummaryWriter", "tensorboardX.SummaryWriter",
     "tensorflow.summary.create_file_writer", "wandb.init")
)  # fmt: skip
# Every rank takes part in these, as in `_COLLECTIVES`.
_TOGETHER = ("torch.distributed.checkpoint.", "torch.distributed.fsdp.", "orbax.")
_BARRIERS = ("dist.barrier", "dist.monitored_barrier", "hvd.barrier")
_COLLECTIVES = (*_BARRIERS, "torch.distributed.checkpoint.save", "torch.distributed.checkpoint.save_state_dict")

# A state of all parts, which FSDP's ranks put together.
_STATES = tuple(
    f"torch.distributed.checkpoint.state_dict.{name}"
    for name in ("get_model_state_dict", "get_optimizer_state_dict", "get_state_dict")
)


def judge(script: Script) -> list[Finding]:
    """Whether several ranks write one file."""
    trace = script.trace
    condition = "hvd.rank() == 0" if script.way != "ddp" else "dist.get_rank() == 0"
    waiting = _waiting(trace)
    if waiting:
        return waiting
    kinds = [(event, _CHECKPOINTS) for event in trace.events if event.name in _CHECKPOINTS]
    kinds += [(event, _LOGS) for event in trace.events if event.name in _LOGS]
    kinds += [(event, _LOGS) for event in trace.events if _is_open(event)]
    kinds = [(event, kind) for event, kind in kinds if not _is_no_file_of_training(event)]
    good: list[Event] = []
    doubtful: list[Finding] = []
    for event, kind in kinds:
        what = "writes the checkpoint" if kind is _CHECKPOINTS else "writes the log"
        fix = f"if {condition}: {_call(event)}"
        if event.guards & {"root"} or _by_root(event):
            good.append(event)
        elif "not_root" in event.guards:
            return [wrong(f"every rank but rank 0 {what}", event, fix)]
        elif _by_rank(event):
            good.append(event)
        elif "local_root" in event.guards:
            reason = f"one rank of every node {what}: wrong on a file system that nodes share"
            doubtful.append(unclear(reason, event, fix))
        elif kind is _LOGS and trace.imported("ray", "horovod.ray"):
            doubtful.append(unclear("a rank or Ray's driver writes the log", event, fix))
        elif not event.certain and (":" in event.place or kind is _LOGS):
            doubtful.append(unclear(f"nothing is seen to call what {what}", event, fix))
        elif script.way == "none":
            return [Finding("missing", f"every rank {what}", event.place, fix)]
        else:
            return [wrong(f"every rank {what}", event, fix)]
    if doubtful:
        return doubtful[:1]
    if good:
        return [ok("rank 0 writes", good[0])]
    return [ok("it writes no checkpoint that can be seen")]


def _waiting(trace: Trace) -> list[Finding]:
    """What rank 0 alone comes to where it writes, and all ranks must: a barrier, a checkpoint of parts."""
    if trace.uncertain:
        return []
    parts = {f"model:{event.number}" for event in trace.by_name("*.FullyShardedDataParallel")}
    if any(name.endswith(".LOCAL_STATE_DICT") for name in trace.names):
        parts = set()
    divided = trace.by_name("*.FullyShardedDataParallel", "*.fully_shard")
    for event in trace.events:
        is_state = (event.name == ".state_dict" and bool(event.receiver.tags & parts)) or (
            divided and event.name in _STATES
        )
        if not event.certain or "root" not in event.guards or event.argument(None, "no_dist") is not None:
            continue
        if (event.name in _COLLECTIVES or is_state) and is_left_waiting(event, trace):
            fix = f"{_call(event)}  # on every rank, before the condition"
            if event.name in _BARRIERS:
                return [wrong("only rank 0 comes to this barrier, and waits for the others", event, fix)]
            return [wrong("each rank has a part of the checkpoint: rank 0 alone waits for the others", event, fix)]
    return []


def _is_open(event: Event) -> bool:
    """A text file that is written."""
    if event.name not in ("builtins.open", ".open", "io.open"):
        return False
    mode = event.argument(1, "mode") if event.name != ".open" else event.argument(0, "mode")
    if mode is None or not isinstance(mode.constant, str):
        return False
    return (
        mode.constant[:1] in ("w", "a", "x") and "b" not in mode.constant
    )  # binary: a picture, or `pickle.dump` says it


def _is_no_file_of_training(event: Event) -> bool:
    """What all ranks write together, a buffer in memory, the null device, a picture or a plot."""
    path = _path(event)
    if event.name.startswith(_TOGETHER) or (path is not None and (path.has("in_memory") or path.path == "os.devnull")):
        return True
    is_picture = (
        path is not None and isinstance(path.constant, str) and path.constant.endswith((".png", ".jpg", ".pdf"))
    )
    return event.name == ".save" and (is_picture or event.argument(None, "format") is not None)


def _by_root(event: Event) -> bool:
    return any(value.has("root_only", "is_root") for value in (*event.values, event.receiver))


def _by_rank(event: Event) -> bool:
    path = _path(event)
    return path is not None and path.has("by_rank_in_text", RANK, LOCAL_RANK)


def _path(event: Event) -> Value | None:
    second = event.name in ("torch.save", "torch.jit.save", "pickle.dump", "joblib.dump") or "safetensors" in event.name
    return event.argument(1 if second else 0, "f", "path", "filepath", "file", "filename", "log_dir")


def _call(event: Event) -> str:
    name = event.name.removeprefix("builtins.")
    return f"{name if not name.startswith('.') else 'model' + name}(...)"
