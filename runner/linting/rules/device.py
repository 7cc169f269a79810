"""Step 2: each rank has the GPU of its local rank."""

from __future__ import annotations

from runner.linting.findings import Finding, Script, ok, unclear, wrong
from runner.linting.names import LOCAL_RANK, RANK
from runner.linting.trace import NOTHING, Event, Value

_SET = (
    "torch.cuda.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device",
    "torch.accelerator.device_index",
    "torch.xpu.set_device",
)
_VISIBLE = ("tensorflow.config.set_visible_devices", "tensorflow.config.experimental.set_visible_devices")


def judge(script: Script) -> list[Finding]:
    """Which GPU a rank takes."""
    pins = [pair for event in script.trace.events if "class " not in event.name for pair in _pins(event)]
    local = "hvd.local_rank()" if script.way != "ddp" else 'int(os.environ["LOCAL_RANK"])'
    if script.framework == "torch":
        fix = f"torch.cuda.set_device({local})"
    else:
        fix = (
            'gpus = tf.config.list_physical_devices("GPU"); '
            'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")'
        )
    good = [event for event, value in pins if value.has(LOCAL_RANK)]
    hides = [
        event
        for event, value in pins
        if value.has(LOCAL_RANK) and event.name in (*_VISIBLE, "set env", "set visible_device_list")
    ]
    by_rank = [event for event, value in pins if value.has(RANK) and not value.has(LOCAL_RANK)]
    fixed = [event for event, value in pins if _is_fixed(value) and not value.has(LOCAL_RANK, RANK)]
    if by_rank:
        reason = "the GPU is chosen by the rank of the whole job: a second node has no GPU of that number"
        return [wrong(reason, by_rank[0], fix)]
    if fixed and not hides:
        return [wrong("every rank of a node takes the same GPU", fixed[0], fix)]
    if good:
        return [ok("by the local rank", good[0])]
    if [event for event, value in pins if value is _NONE]:
        return [ok("it hides the GPUs")]
    if pins:
        unknown = [event for event, value in pins if value is not _ANY]
        if unknown:
            return [unclear("the number of the GPU could not be followed", unknown[0], fix)]
    if script.framework == "tensorflow":
        return [script.missing("TensorFlow takes every GPU of the node on each rank", fix)]
    if pins:
        return [script.missing("no GPU is chosen, so every rank of a node takes GPU 0", fix)]
    return [unclear("it uses no GPU that can be seen")]


_ANY, _NONE = Value(constant="cuda"), Value(constant=None)


def _is_fixed(value: Value) -> bool:
    return value.has("gpu0", "fixed") or (isinstance(value.constant, int) and not isinstance(value.constant, bool))


def _pins(event: Event) -> list[tuple[Event, Value]]:
    """What a call says of the GPU: its number, any, or none."""
    first = event.argument(0, "device") or NOTHING
    if event.name in _SET:
        return [(event, first)]
    if event.name in _VISIBLE:
        chosen = [value for _, value in first.items]
        return [(event, _NONE if first.constant == () else chosen[0] if len(chosen) == 1 else first)]
    if event.name == "set visible_device_list":
        return [(event, _number(first))]
    if event.name == "set env" and first.constant == "CUDA_VISIBLE_DEVICES":
        value = event.arguments[1]
        return [(event, _NONE if value.constant in ("", "-1") else _number(value))]
    if event.name == "torch.device":
        index = event.argument(1, "index")
        if index is not None:
            return [(event, index)]
        if isinstance(first.constant, str):
            return [(event, first if first.has("gpu0") else _ANY)] if first.constant.startswith("cuda") else []
        return [(event, first)] if first.has("gpu0", RANK, LOCAL_RANK) else [(event, _ANY)]
    if event.name == ".cuda":
        return [(event, event.argument(0, "device") or _ANY)]
    if event.name == ".to":
        if first.has("gpu0", RANK, LOCAL_RANK) or (
            isinstance(first.constant, int) and not isinstance(first.constant, bool)
        ):
            return [(event, first)]
        return [(event, _ANY)] if first.constant == "cuda" else []
    if event.last == "DistributedDataParallel":
        devices = event.argument(1, "device_ids")
        if devices is not None and devices.constant is not None:
            items = [value for _, value in devices.items]
            return [(event, items[0])] if items else []
    if event.name == "tensorflow.device" and first.has("gpu0"):
        return [(event, first)]
    return []


def _number(value: Value) -> Value:
    """A list of devices, as a text."""
    text = value.constant
    return Value(frozenset(("gpu0",)), constant=text) if isinstance(text, str) and text.isdigit() else value
