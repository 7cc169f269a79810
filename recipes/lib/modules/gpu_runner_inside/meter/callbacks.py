"""The meter as a callback of frameworks that own the training loop. Each imports its framework when it is asked for."""

from __future__ import annotations

import sys
from typing import Any, Mapping

from gpu_runner_inside.meter.counting import is_time_major, samples_of
from gpu_runner_inside.meter.meter import Meter


def lightning(begin: Any, batch_size: int, stated: dict[str, Any]) -> Any:
    """A callback for Lightning's Trainer, of whichever of its two packages the script has imported."""
    if "lightning" in sys.modules or "pytorch_lightning" not in sys.modules:
        from lightning.pytorch import Callback
    else:
        from pytorch_lightning import Callback

    class MeterCallback(Callback):  # type: ignore[misc, unused-ignore]
        """Counts the steps of the optimizer, by the trainer's own count, and the batches of each: the last step of an
        epoch may have fewer.
        """

        meter: Meter | None = None
        _counted, _time_major = 0, False
        _batches: list[int]

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if self.meter is not None and self.meter.active:
                self.meter.replace()  # another fit
            values = {"accumulate": trainer.accumulate_grad_batches, **stated}
            optimizer = trainer.optimizers[0] if trainer.optimizers else None
            self.meter = begin(batch_size=batch_size, model=pl_module, optimizer=optimizer, **values)
            self._counted, self._batches = trainer.global_step, []
            self._time_major = is_time_major(getattr(pl_module, "modules", tuple)())

        def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, batch: Any, *_args: Any) -> None:
            inputs = batch if isinstance(batch, (list, tuple)) else (batch,)
            is_tokens = stated.get("unit") == "tokens"
            # Each loader has samples of its own.
            is_of_several = isinstance(getattr(trainer, "train_dataloader", None), (list, tuple, Mapping))
            shown = samples_of(inputs, tokens=is_tokens, time_major=self._time_major)
            self._batches.append(0 if is_of_several else shown)
            if self.meter is not None and trainer.global_step != self._counted:
                batches, self._batches, self._counted = self._batches, [], trainer.global_step
                self.meter.given(sum(batches) if all(batches) else 0, len(batches) * batch_size)
                self.meter.step()

    return MeterCallback()


def transformers(begin: Any, stated: dict[str, Any]) -> Any:
    """A callback for Hugging Face's Trainer, which knows its batch size and accumulation."""
    from transformers import TrainerCallback

    class MeterCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Counts the steps of the optimizer, and the batches of each: the last step of an epoch may have fewer."""

        meter: Meter | None = None
        _batches, _batch_size = 1, 0

        def on_train_begin(self, args: Any, state: Any, _control: Any, **named: Any) -> None:
            size = getattr(state, "train_batch_size", None) or args.train_batch_size
            if self.meter is not None and size < self._batch_size:
                self.meter.replace()  # the trainer begins anew with a batch that fits (auto_find_batch_size)
            values = {
                "batch_size": size,
                "accumulate": args.gradient_accumulation_steps,
                "model": named.get("model"),
                "optimizer": named.get("optimizer"),
                **stated,
            }
            self._batches, self._batch_size = 1, values["batch_size"]
            self.meter = begin(**values)

        def on_substep_end(self, _args: Any, _state: Any, _control: Any, **_named: Any) -> None:
            self._batches += 1

        def on_step_end(self, _args: Any, _state: Any, _control: Any, **_named: Any) -> None:
            taken, self._batches = self._batches * self._batch_size, 1
            if self.meter is not None:
                self.meter.given(0, taken)
                self.meter.step()

    return MeterCallback()


def keras(begin: Any, batch_size: int, stated: dict[str, Any]) -> Any:
    """A callback for Keras's ``fit``: steps and time alone, since it shows no gradients."""
    from keras.callbacks import Callback

    class MeterCallback(Callback):  # type: ignore[misc, unused-ignore]
        """Counts the batches."""

        meter: Meter | None = None
        _done = 0  # batches of this epoch

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002, Keras gives it by name
            if self.meter is not None and self.meter.active:
                self.meter.replace()  # another fit
            self.meter = begin(batch_size=batch_size, **stated)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002, as above
            self._done = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002, as above
            done = min(batch + 1, self.params.get("steps") or batch + 1)  # several by steps_per_execution
            batches, self._done = done - self._done, done
            if self.meter is not None:
                self.meter.step(batches * batch_size)

    return MeterCallback()
