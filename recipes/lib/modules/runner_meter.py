"""Measure a training script of your own, with the proof that the benchmarks have::

    import runner_meter

    meter = runner_meter.start(batch_size=256, model=model, optimizer=optimizer)
    for images, labels in loader:
        ...
        optimizer.step()
        meter.step()

``submit -- python train.py`` makes this module importable; docs/meter.md explains it. Outside of a job it measures,
too, and prints what it finds. Standard library only, and the framework that the script has imported already.
"""

from __future__ import annotations

import operator
import sys
from typing import Any, Callable

from gpu_runner_inside.meter import callbacks, hook
from gpu_runner_inside.meter.meter import Meter, Settings

__all__ = ["Meter", "keras_callback", "lightning_callback", "start", "transformers_callback"]

_UNITS = ("samples", "tokens")


def start(
    *,
    batch_size: int,
    model: Any = None,
    optimizer: Any = None,
    accumulate: int = 1,
    unit: str = "samples",
    sharded: bool = False,
    flops_per_sample: float | None = None,
    peak_flops: float | None = None,
    warmup_steps: int | None = None,
    warmup_seconds: float | None = None,
    steps: int | None = None,
    window_seconds: float | None = None,
    demonstration: bool | None = None,
) -> Meter:
    """Begin to measure; call ``step()`` of what this returns after each step of the optimizer.

    Args:
        batch_size: samples (or tokens) of this rank in one forward pass.
        model, optimizer: what is trained. Without them it cannot be proven that the ranks train together: the rate is
            then shown with that remark, and the run only "ran".
        accumulate: forward passes for one step of the optimizer.
        unit: ``samples`` or ``tokens``.
        sharded: the parameters are divided among the ranks (DeepSpeed's ZeRO); FSDP is seen without it.
        flops_per_sample: floating-point operations of the model for one sample (or token), forward and backward;
            peak_flops: those that one device could do in a second. With both the verdict shows the utilisation.
        warmup_steps, warmup_seconds, steps, window_seconds: at least so long (both of each); None: as the benchmarks.
        demonstration: a short window that makes no performance claim; None: on processors.

    Raises:
        ValueError, TypeError: an argument cannot be right.
    """
    _check({name: value for name, value in locals().items() if name in _ARGUMENTS})
    settings = Settings(
        int(batch_size) * int(accumulate), unit, "stated by the script" if sharded else "",
        _of(float, flops_per_sample), _of(float, peak_flops), _of(int, warmup_steps), _of(float, warmup_seconds),
        _of(int, steps), _of(float, window_seconds), demonstration, int(accumulate),
    )  # fmt: skip
    if _trains_with_torch(model, optimizer):
        from gpu_runner_inside.meter.torch_training import TorchTraining

        return hook.begin(settings, TorchTraining(model, _parameters(model, optimizer), optimizer), "script")
    from gpu_runner_inside.meter.other_training import OtherTraining

    return hook.begin(settings, OtherTraining(), "script")


def lightning_callback(batch_size: int, **stated: Any) -> Any:
    """A callback for Lightning's Trainer: ``Trainer(callbacks=[runner_meter.lightning_callback(batch_size=32)])``.

    ``stated``: other arguments of ``start``; the trainer says itself how it accumulates.
    """
    return callbacks.lightning(start, batch_size, stated)


def transformers_callback(**stated: Any) -> Any:
    """A callback for Hugging Face's Trainer, which says its batch size and accumulation itself.

    ``stated``: other arguments of ``start``.
    """
    return callbacks.transformers(start, stated)


def keras_callback(batch_size: int, **stated: Any) -> Any:
    """A callback for Keras's ``fit``; the rate alone, since Keras shows no gradients. ``stated``: as of ``start``."""
    return callbacks.keras(start, batch_size, stated)


def _trains_with_torch(model: Any, optimizer: Any) -> bool:
    """Whether PyTorch trains, and does not only load data for another framework."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    others = any(name in sys.modules for name in ("jax", "tensorflow"))
    distributed = torch.distributed
    formed = distributed.is_available() and distributed.is_initialized()
    return model is not None or optimizer is not None or formed or not others


def _parameters(model: Any, optimizer: Any) -> list[Any]:
    """The model's, and what the optimizer has beside them: a proof holds for all that is trained.

    Raises:
        TypeError: these are no model and no optimizer of PyTorch.
    """
    for name, given, needed in (("model", model, "parameters"), ("optimizer", optimizer, "param_groups")):
        if given is not None and not hasattr(given, needed):
            raise TypeError(f"runner_meter: {name}={given!r} has no {needed}: give the {name} that PyTorch trains with")
    found = [] if model is None else list(model.parameters())
    having = {id(each) for each in found}
    groups = getattr(optimizer, "param_groups", ())
    return found + [each for group in groups for each in group["params"] if id(each) not in having]


def _of(kind: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else kind(value)


def _check(stated: dict[str, Any]) -> None:
    """Refuse what cannot be right, by name."""
    for name, value in stated.items():
        kind, what = _ARGUMENTS[name]
        if not kind(value):
            raise ValueError(f"runner_meter: {name}={value!r} is not {what}")


def _is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number, of NumPy's too, from ``least`` to what a record can hold."""
    try:
        return not isinstance(value, bool) and least <= operator.index(value) <= _MOST
    except TypeError:
        return False


def _is_number(value: Any, least: float) -> bool:
    """Whether it is a finite number from ``least`` on, of NumPy's too."""
    try:
        return not isinstance(value, (bool, str, bytes)) and least <= float(value) <= _MOST**2
    except (TypeError, ValueError, OverflowError):
        return False


_MOST = 10**12
_LONGEST_S = 1e6
_COUNT = (lambda value: _is_whole(value, 1), "a whole number of 1 or more")
_SECONDS = (
    lambda value: value is None or (_is_number(value, 0.0) and float(value) <= _LONGEST_S),
    f"a number of seconds from 0 to {_LONGEST_S:g}",
)
_RATE = (lambda value: value is None or _is_number(value, sys.float_info.min), "a finite number above 0")
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "batch_size": _COUNT,
    "accumulate": _COUNT,
    "unit": (lambda value: isinstance(value, str) and value in _UNITS, f"one of {', '.join(_UNITS)}"),
    "sharded": (lambda value: isinstance(value, bool), "True or False"),
    "flops_per_sample": _RATE,
    "peak_flops": _RATE,
    "warmup_steps": (lambda value: value is None or _is_whole(value, 0), "a whole number of 0 or more"),
    "warmup_seconds": _SECONDS,
    "steps": (lambda value: value is None or _is_whole(value, 1), "a whole number of 1 or more"),
    "window_seconds": _SECONDS,
    "demonstration": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
}
