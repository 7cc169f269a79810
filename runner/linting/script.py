"""Facts of a script that several rules ask for: how it trains, on what, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

from runner.linting import names
from runner.linting.findings import Finding
from runner.linting.trace import Event, Loop, Trace
from runner.linting.values import NOTHING, Value, is_distributed_sampler

# What does the steps by itself, by the name of a call or of a base class.
_THEMSELVES = {
    "Lightning": ("lightning.", "pytorch_lightning."),
    "Accelerate": ("accelerate.Accelerator",),
    "Hugging Face's Trainer": ("transformers.Trainer", "transformers.Seq2SeqTrainer", "transformers.trainer.", "trl."),
    "DeepSpeed": ("deepspeed.initialize",),
    "tf.distribute": ("tensorflow.distribute.",),
    "Ray Train": ("ray.train.",),
    "Composer": ("composer.Trainer",),
    "fastai": ("fastai.",),
    "Horovod's estimator": ("horovod.spark.",),
}  # fmt: skip
# Ranks that do not all do the same.
_DIVIDED = ("torch.distributed.rpc", "torch.distributed.tensor.parallel", "torch.distributed.pipelining",
            "torch.distributed.pipeline", "megatron")  # fmt: skip
_TRAINING = ("train", "hvd.DistributedOptimizer", "hvd.elastic.run", "tensorflow.compat.v1.train")
_BACKWARD = (".backward", ".apply_gradients", ".minimize", ".train_on_batch", ".train_step", ".gradient",
             "torch.autograd.backward")  # fmt: skip
_READS = ("load", "load_data", "load_dataset", "memmap", "fromfile", "loadtxt", "read_csv", "read_parquet", "imread")
_SOME = frozenset(("root", "not_root", "local_root"))


class Script(Trace):
    """A script that was read."""

    @cached_property
    def way(self) -> Literal["horovod", "ddp", "none"]:
        """How its ranks come together; ``ddp``: by torch.distributed."""
        if self.imports("horovod"):
            return "horovod"
        by_call = self.calls("dist.init_process_group", *(f"*.{name}" for name in names.WRAPPED_MODELS))
        by_name = self.imports("torch.distributed", "torch.nn.parallel.DistributedDataParallel")
        return "ddp" if by_name or by_call else "none"

    @cached_property
    def is_tensorflow(self) -> bool:
        """Whether it trains with TensorFlow or Keras, and not with PyTorch."""
        by_horovod = self.imports("horovod.tensorflow", "horovod.keras")
        by_itself = self.imports("tensorflow", "keras", "tf_keras") and not self.imports("torch")
        return (by_horovod or by_itself) and not self.imports("horovod.torch")

    @cached_property
    def does_it_itself(self) -> str:
        """A framework that does the steps by itself; empty for none."""
        used = [*(event.name for event in self.events), *map(names.canonical, self.bases), *self.bases]
        pairs = ((name, heads) for name, heads in _THEMSELVES.items() for each in used if each.startswith(heads))
        return next((name for name, _ in pairs), "")

    @cached_property
    def uncertain(self) -> str:
        """Why something may be missing here that the script has; empty if nothing is."""
        folder, training = self.resolver.folder, [*self.backward, *self.fits]
        if self.resolver.uncertain:
            return self.resolver.uncertain
        if any(source.cut for source in self.resolver.sources.values()):
            return "the script is too large to be read to its end"
        if folder.unread:
            return f"{folder.unread[0]} could not be read"
        only_uncalled = training and not any(event.certain for event in training)
        return "nothing here is seen to call what trains" if only_uncalled else ""

    @cached_property
    def names(self) -> set[str]:
        """What it names of what it imports, as `canonical` spells it."""
        return self._names(self.resolver.references)

    def _names(self, references: Iterable[Any]) -> set[str]:
        values = [self.resolver.value(node) for node in references]
        return {names.canonical(value.path) for value in values if value.path and value.reference is None}

    def not_judged(self) -> str:
        """Why nothing of it is judged; empty where it is."""
        if self.imports("mxnet"):
            return "MXNet is not known here"
        if self.imports(*_DIVIDED):
            return "it divides the model among the ranks, and not the data alone"
        if self.does_it_itself:
            return f"{self.does_it_itself} does this itself"
        made = self.way != "none" and self.optimizers
        if self.backward or self.fits or made or self.uncertain:
            return ""
        reached = self._names(node for node in self.resolver.references if self.reach(node))
        used = (*reached, *(event.name for event in self.events))
        return "" if any(name.startswith(_TRAINING) for name in used) else "no training that can be seen in this file"

    def calls(self, *wanted: str) -> list[Event]:
        """The events with one of these names: ``hvd.init``, ``.step``, or ``*.DataLoader`` for a last part."""
        return [event for event in self.events if event.name in wanted or f"*.{event.last}" in wanted]

    def imports(self, *packages: str) -> bool:
        """Whether one of these packages, or a module below it, is imported."""
        heads = tuple(f"{package}." for package in packages)
        return any(name in packages or name.startswith(heads) for name in self.resolver.imports)

    def missing(self, reason: str, fix: str, event: Event | None = None) -> Finding:
        """A step that was not found: missing, unless something of the script could not be read."""
        place = event.place if event else ""
        if self.uncertain:
            return Finding("cannot tell", f"{reason}; but {self.uncertain}", place, fix)
        return Finding("missing", reason, place, fix)

    def fix(self, ddp: str, horovod: str, tensorflow: str = "") -> str:
        """What to write: for the way that it has, or a line for each of both where it has none."""
        if self.way == "ddp":
            return ddp
        if self.is_tensorflow:
            return tensorflow or horovod
        return horovod if self.way == "horovod" else f"DDP: {ddp}\nHorovod: {horovod}"

    @cached_property
    def backward(self) -> list[Event]:
        """What computes gradients."""
        return self.calls(*_BACKWARD)

    @cached_property
    def fits(self) -> list[Event]:
        """Where Keras trains."""
        return self.calls(".fit", ".fit_generator")

    @cached_property
    def optimizers(self) -> list[Event]:
        """What makes an optimizer."""
        return [event for event in self.events if names.is_optimizer(event.name)]

    @cached_property
    def batches(self) -> set[Loop]:
        """The innermost loops that compute gradients."""
        return {event.loops[-1] for event in self.backward if event.loops}

    @cached_property
    def trained_on(self) -> list[Value]:
        """What the loops that compute gradients go over: the innermost that has a loader, else the innermost."""
        all_overs = [[loop.over for loop in reversed(event.loops)] for event in self.backward if event.loops]
        return [next((over for over in overs if over.things("loader")), overs[0]) for overs in all_overs]

    @cached_property
    def loaders(self) -> list[Event]:
        """What makes a DataLoader."""
        return [event for event in self.events if event.last == "DataLoader"] + [
            event for event in self.events if event.name.startswith("new ") and self._makes_loader(event)
        ]

    def _makes_loader(self, event: Event) -> bool:
        return f"loader:{event.number}" in self.resolver.value(event.node).tags

    @cached_property
    def samplers(self) -> list[Event]:
        """What makes a sampler that divides the data."""
        return [event for event in self.events if is_distributed_sampler(event.last)]

    @cached_property
    def reads_data(self) -> bool:
        """Whether data can be seen: a loader, what is given to ``fit``, a file's, or a loop over more than a count."""
        overs = [loop.over for loop in self.batches]
        by_loop = any(over != NOTHING and "count" not in over.tags for over in overs)
        return bool(self.loaders or self.fits or self.calls(*(f"*.{name}" for name in _READS)) or by_loop)

    def left_waiting(self, events: Iterable[Event]) -> Event | None:
        """A collective to which only some ranks come, and the others to no other call of it.

        ``if rank == 0: dist.gather(x, parts)``, ``else: dist.gather(x)`` brings all of them together, as
        ``if rank != 0: dist.barrier()`` does with a later one on rank 0. A group of its own is not judged.
        """
        return next((event for event in events if self._is_left_waiting(event)), None)

    def _is_left_waiting(self, event: Event) -> bool:
        guards = event.guards & _SOME
        if not guards or event.argument(None, "group", "process_group", "process_set") is not None:
            return False
        others = [each for each in self.calls(event.name) if each is not event]
        for guard, opposite in (("root", "not_root"), ("not_root", "root")):
            if guard in guards:
                return not any(opposite in each.guards for each in others)
        return not any(each.function == event.function and not each.guards & _SOME for each in others)


def sharding(loader: Event) -> str:
    """``sampler``, ``rank`` (the data depend on it), ``size`` (on the size alone), or empty for the whole data."""
    by_place = [loader.argument(0, "dataset", "sampler", "batch_sampler"), loader.argument(3), loader.argument(4)]
    by_name = [value for name, value in loader.keywords if name in ("", "sampler", "batch_sampler")]
    given = Value(frozenset[str]().union(*(value.tags for value in (*by_place, *by_name) if value is not None)))
    return "sampler" if given.things("sampler") else next((tag for tag in ("rank", "size") if given.has(tag)), "")
