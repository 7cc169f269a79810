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

import sys
from typing import Any

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
    **lengths: Any,
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
        lengths: ``warmup_steps``, ``warmup_seconds``, ``steps``, ``window_seconds`` (both at least), and
            ``demonstration`` for a short window that makes no performance claim, as on processors.

    Raises:
        ValueError, TypeError: an argument cannot be right.
    """
    _check(batch_size, accumulate, unit)
    stated = "stated by the script" if sharded else ""
    settings = Settings(batch_size * accumulate, unit, stated, flops_per_sample, peak_flops, **lengths)
    if "torch" in sys.modules:
        from gpu_runner_inside.meter.torch_training import TorchTraining

        return hook.begin(settings, TorchTraining(model, _parameters(model, optimizer)), "script")
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


def _parameters(model: Any, optimizer: Any) -> list[Any]:
    """The model's; where there is none, the optimizer's."""
    if model is not None:
        return list(model.parameters())
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def _check(batch_size: int, accumulate: int, unit: str) -> None:
    for name, value in (("batch_size", batch_size), ("accumulate", accumulate)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"runner_meter: {name}={value!r} is no whole number of 1 or more")
    if unit not in _UNITS:
        raise ValueError(f"runner_meter: unit={unit!r} is none of {', '.join(_UNITS)}")
