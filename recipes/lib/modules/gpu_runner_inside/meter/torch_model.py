"""What the trained model is, how it computes, and of what: digests, which tell launches of one program from others."""

from __future__ import annotations

import gc
import hashlib
import re
import sys
from contextlib import suppress
from typing import Any, Iterable, Sequence

import torch

# Modules that frameworks put around a model, or between its parts, on several ranks only; or to compile it.
_WRAPPERS = (
    "torch.distributed.",
    "torch.nn.parallel.",
    "torch._dynamo.",
    "deepspeed.",
    "accelerate.",
    "horovod.",
    "apex.",
)
_DEVICES = ("cuda", "cpu")
CHECKPOINTING = "activation checkpointing"
_CHECKPOINTS = ("_CheckpointFrame", "CheckpointFunctionBackward")  # what a graph holds that computes again
_ATTENTION = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled")
VARYING = "varying"  # for a digest


def of_modules(modules: Sequence[Any], *, whole: bool) -> dict[str, str]:
    """Of a model's modules, in any order; of parameters only where each rank has them ``whole``."""
    parameters = [
        f"{tuple(each.shape)} {each.stride()} {each.dtype} {each.requires_grad}"
        for module in modules
        for each in vars(module).get("_parameters", {}).values()
        if each is not None
    ]
    return {
        "modules": _digest(filter(None, map(_kind, modules))),
        "parameters": _digest(parameters) if whole else "",
    }


def of_optimizer(optimizer: Any) -> str:
    """Class, and what is on or off; empty for none."""
    defaults = getattr(optimizer, "defaults", {})
    flags = [f"{name} {value}" for name, value in defaults.items() if value is None or isinstance(value, bool)]
    return _digest((type(optimizer).__name__, *flags)) if optimizer is not None else ""


def of_inputs(given: Iterable[Any]) -> str:
    """Types and shapes of tensors, without the first dimension."""
    return _digest(f"{each.dtype} {tuple(each.shape[1:])}" for each in given if isinstance(each, torch.Tensor))


def _kind(module: Any) -> str:
    """Class and, of torch's own, settings; empty for a wrapper. FSDP2 makes classes of its own of a module's."""
    kind = next((each for each in type(module).__mro__ if not any(map(_is_wrapper, each.__mro__))), object)
    if kind is torch.nn.Module or not issubclass(kind, torch.nn.Module) or {*vars(module)["_modules"]} == {"module"}:
        return ""
    name = re.sub(r"_?(Sync)?BatchNorm(\dd)?", "BatchNorm", kind.__qualname__)  # synchronised among several ranks
    own = kind.__module__.startswith("torch.nn.") and not name.startswith("Parameter")  # whose parameters FSDP takes
    return f"{name} {module.extra_repr() if own else ''}"


def _is_wrapper(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(_WRAPPERS)


def is_compiled() -> bool:
    """Whether torch.compile has compiled anything of this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames", {}).get("ok"))


def recomputes() -> bool:
    """Whether a graph that is there now computes activations again, by whatever called torch.utils.checkpoint."""
    return any(type(each).__name__ in _CHECKPOINTS for each in gc.get_objects())


def precision(device: str) -> str:
    """Of the forward pass that runs, and with which kernels; on a processor, on how many threads, too."""
    own: list[str] = []
    with suppress(Exception):  # another torch
        if hasattr(torch, "get_autocast_dtype"):
            own += [f"{each} {torch.is_autocast_enabled(each)} {torch.get_autocast_dtype(each)}" for each in _DEVICES]
        else:
            own.append(f"{torch.is_autocast_enabled()} {torch.is_autocast_cpu_enabled()}")
    with suppress(Exception):
        own.append(f"tf32 {torch.backends.cuda.matmul.allow_tf32} {torch.backends.cudnn.allow_tf32}")
        own.append(f"kernels {torch.backends.cudnn.benchmark} {torch.are_deterministic_algorithms_enabled()}")
    with suppress(Exception):
        own += [f"{each} {getattr(torch.backends.cuda, each)()}" for each in _ATTENTION]
        own.append(f"{torch.backends.cudnn.enabled} {torch.backends.mkldnn.enabled}")
    if device == "cpu":
        own.append(f"threads {torch.get_num_threads()}")
    return _digest(own)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
