"""The calls of a script, from where each is reached, by which ranks and in which loops; and what several rules ask of
it: how it trains, on what, and who waits for whom.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from astroid import nodes

from runner.linting import names
from runner.linting.names import NOTHING, Call, Value, is_distributed_sampler
from runner.linting.resolve import ROOT, Resolver, around_in_function, class_of, dotted

State = Literal["ok", "missing", "wrong", "cannot tell"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule says.

    Attributes:
        place: the line, or ``file:line`` of another file; empty where there is no line.
        fix: what to do, with a line of code, one line for each way of several; empty where nothing is to be done.
    """

    state: State
    reason: str
    place: str = ""
    fix: str = ""


# A rule is asked for its first finding; what stands after that `yield` is the next case.
Judge = Callable[["Script"], Iterator[Finding]]
RULES: dict[int, tuple[str, Judge]] = {}


def rule(step: int, name: str) -> Callable[[Judge], Judge]:
    """Register the rule of a step, by the step's name in a report."""

    def register(judge: Judge) -> Judge:
        RULES[step] = (name, judge)
        return judge

    return register


def ok(reason: str, event: Event | None = None) -> Finding:
    """A step that is there."""
    return Finding("ok", reason, event.place if event else "")


def wrong(reason: str, event: Event, fix: str) -> Finding:
    """A step that is done wrongly."""
    return Finding("wrong", reason, event.place, fix)


def unclear(reason: str, event: Event | None = None, fix: str = "") -> Finding:
    """A step that cannot be judged."""
    return Finding("cannot tell", reason, event.place if event else "", fix)


@dataclass(frozen=True, eq=False)
class Reach:
    """How a place is reached, or the body of a function or module.

    Attributes:
        guards: ``root``: only rank 0 comes here; ``not_root``; ``local_root``: one rank of each node.
        loops: those around it, the outermost first.
        order: lines, from the script's through those of the calls that lead here; events compare by it.
        certain: it is known when this runs; not so in a function that nothing is seen to call.
    """

    guards: frozenset[str] = frozenset()
    loops: tuple[nodes.NodeNG, ...] = ()
    order: tuple[int, ...] = ()
    certain: bool = True


@dataclass(frozen=True, eq=False)
class Event(Reach, Call):
    """A call that is reached. ``place``: where it is, for a person."""

    place: str = ""

    @property
    def discarded(self) -> bool:
        """Whether the result is not used."""
        parent = self.node.parent
        return isinstance(parent.parent if isinstance(parent, nodes.Await) else parent, nodes.Expr)

    @property
    def text(self) -> str:
        """The source of the call."""
        return str(self.node.as_string()) if isinstance(self.node, nodes.Call) else ""


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
_RATES = ("visible_device_list", "lr", "learning_rate")
_ENTRIES = ("main", "run", "train", "worker", "main_worker")
_ROOT_DECORATORS = re.compile(
    r"(rank_zero_only|main_process_only|on_main_process|master_only|only_rank_?0|rank0_only)\Z"
)


class Script:
    """A script that was read.

    Attributes:
        events: in the order in which they are reached. bases: imported names that its classes inherit from.
        way: how its ranks come together; ``ddp``: by torch.distributed.
        is_tensorflow: it trains with TensorFlow or Keras, and not with PyTorch.
        backward: what computes gradients. fits: where Keras trains. optimizers, samplers, loaders: what makes one;
            samplers that divide the data.
        batches: the innermost loops that compute gradients.
        trained_on: what the loops that compute gradients go over: the innermost that has a loader, else the innermost.
    """

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.events: list[Event] = []
        self.bases: list[str] = []
        self._top = next(iter(resolver.sources))
        self._sites: dict[nodes.NodeNG, list[nodes.NodeNG]] = defaultdict(list)
        self._reached: dict[nodes.NodeNG, Reach | None] = {}
        every = [node for source in resolver.sources.values() for node in source.nodes() if resolver.spend()]
        for node in every:
            self._find_sites(node)
        for node in every:
            for call in self._calls(node):
                if (reach := self.reach(node)) is not None:
                    place = resolver.sources[node.root()].place(node.lineno)
                    self.events.append(Event(**vars(call), **vars(reach), place=place))
        self.events.sort(key=lambda event: event.order)
        self.way: Literal["horovod", "ddp", "none"] = "none"
        by_call = self.calls("dist.init_process_group", *(f"*.{name}" for name in names.WRAPPED_MODELS))
        if self.imports("horovod"):
            self.way = "horovod"
        elif by_call or self.imports("torch.distributed", "torch.nn.parallel.DistributedDataParallel"):
            self.way = "ddp"
        by_itself = self.imports("tensorflow", "keras", "tf_keras") and not self.imports("torch")
        by_horovod = self.imports("horovod.tensorflow", "horovod.keras")
        self.is_tensorflow = (by_horovod or by_itself) and not self.imports("horovod.torch")
        self.backward = self.calls(*_BACKWARD)
        self.fits = self.calls(".fit", ".fit_generator")
        self.optimizers = [event for event in self.events if names.is_optimizer(event.name)]
        self.samplers = [event for event in self.events if is_distributed_sampler(event.last)]
        made = [event for event in self.events if event.name.startswith("new ")]
        self.loaders = [event for event in self.events if event.last == "DataLoader"]
        self.loaders += [each for each in made if f"loader:{each.number}" in resolver.value(each.node).tags]
        loops = [event.loops for event in self.backward if event.loops]
        self.batches = {each[-1] for each in loops}
        overs = [[self.over(loop) for loop in reversed(each)] for each in loops]
        self.trained_on = [next((over for over in each if over.things("loader")), each[0]) for each in overs]

    def _find_sites(self, node: nodes.NodeNG) -> None:
        """Note what a node calls, hands on to be called, or imports."""
        match node:
            case nodes.Call():
                callee = self.resolver.callee(node)
                handed = () if callee.function else (*node.args, *(each.value for each in node.keywords))
                for each in (callee.function, *(self.resolver.value(each).reference for each in handed)):
                    if isinstance(each, nodes.FunctionDef | nodes.Lambda):
                        self._sites[each].append(node)
            case nodes.Import() | nodes.ImportFrom():
                for module in map(self.resolver.module, self.resolver.imported(node)):
                    if module is not None:
                        self._sites[module].append(node)
            case nodes.ClassDef():
                self.bases += [each for each in self.resolver.ancestors(node) if isinstance(each, str)]

    def _calls(self, node: Any) -> Iterator[Call]:
        """What a node calls or sets."""
        value = self.resolver.value
        match node:
            case nodes.Call():
                call = self.resolver.call(node)
                yield call
                if call.name == "os.environ.setdefault" and len(call.arguments) == 2:
                    yield replace(call, name="set env")
            case nodes.Name() | nodes.Attribute() if isinstance(node.parent, nodes.Decorators) and value(node).path:
                yield Call(names.canonical(value(node).path), node)
            case nodes.AssignAttr() if node.attrname in _RATES and isinstance(node.parent, nodes.Assign):
                yield Call(f"set {node.attrname}", node, arguments=(value(node.parent.value),))
            case nodes.Subscript(parent=nodes.Assign(targets=[target])) if target is node:
                key, new = value(node.slice), value(node.parent.value)
                if value(node.value).path == "os.environ":
                    yield Call("set env", node, arguments=(key, new))
                elif key.constant in ("lr", "learning_rate"):
                    yield Call("set lr", node, arguments=(new,))

    def reach(self, node: nodes.NodeNG) -> Reach | None:
        """How a place is reached; None where nothing comes to it."""
        if node not in self._reached:
            self._reached[node] = None  # while it is looked for: a function may call itself
            self._reached[node] = self._reach(node)
        return self._reached[node]

    def _reach(self, node: nodes.NodeNG) -> Reach | None:
        around = [node, *around_in_function(node)]
        outer = self._entry(around[-1])
        if outer is None:
            return None
        loops = list(outer.loops)
        for child, each in zip(around[-2::-1], around[:0:-1], strict=True):
            if isinstance(each, nodes.For | nodes.While) and child in each.body:
                loops.append(each)
        order = (*outer.order, node.end_lineno or 0, node.end_col_offset or 0)  # inner calls end before outer ones
        return Reach(outer.guards | self.resolver.guards_at(node), tuple(loops), order, outer.certain)

    def _entry(self, scope: Any) -> Reach | None:
        """How the body of a function or a module is reached: by all the calls that are seen, or by none of them."""
        reached = [reach for each in self._sites.get(scope, ()) if (reach := self.reach(each)) is not None]
        if scope is self._top:
            return Reach()
        certain = [each for each in reached if each.certain] or reached
        if certain:
            guards = frozenset.intersection(*(each.guards for each in certain))
            deepest = max(certain, key=lambda each: (len(each.loops), each.order))
            entry = Reach(guards, deepest.loops, min(each.order for each in certain), certain[0].certain)
        elif self._may_be_called(scope):
            entry = Reach(order=(1_000_000_000,), certain=False)
        else:
            return None
        decorators = scope.decorators.nodes if getattr(scope, "decorators", None) else ()
        by_root = any(_ROOT_DECORATORS.search(dotted(each)) for each in decorators)
        return replace(entry, guards=entry.guards | {ROOT}) if by_root else entry

    def _may_be_called(self, scope: Any) -> bool:
        """Whether a function may be called where that is not seen: by a framework, a table, a command line."""
        if not isinstance(scope, nodes.FunctionDef):
            return False
        owner = class_of(scope)
        if scope.root() is not self._top:
            return scope in self.resolver.named or owner in self.resolver.named
        by_base = owner is not None and any(isinstance(each, str) for each in self.resolver.ancestors(owner))
        return scope.decorators is not None or scope.name in (*_ENTRIES, *self._used) or by_base

    @cached_property
    def _used(self) -> set[str]:
        return {getattr(each, "name", "") or getattr(each, "attrname", "") for each in self.resolver.references}

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

    def over(self, loop: nodes.NodeNG) -> Value:
        """What a loop goes over."""
        return self.resolver.value(loop.iter) if isinstance(loop, nodes.For) else NOTHING

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
    def evaluated(self) -> frozenset[str]:
        """The loaders that a loop without gradients goes over."""
        others = {loop for event in self.events for loop in event.loops} - self.batches
        return names.union(map(self.over, others)).things("loader")

    @cached_property
    def reads_data(self) -> bool:
        """Whether data can be seen: a loader, what is given to ``fit``, a file's, or a loop over more than a count."""
        overs = map(self.over, self.batches)
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
        return not any(each.node.frame() is event.node.frame() and not each.guards & _SOME for each in others)


def sharding(loader: Event) -> str:
    """``sampler``, ``rank`` (the data depend on it), ``size`` (on the size alone), or empty for the whole data."""
    by_place = [loader.argument(0, "dataset", "sampler", "batch_sampler"), loader.argument(3), loader.argument(4)]
    by_name = [value for name, value in loader.keywords if name in ("", "sampler", "batch_sampler")]
    given = Value(frozenset[str]().union(*(value.tags for value in (*by_place, *by_name) if value is not None)))
    return "sampler" if given.things("sampler") else next((tag for tag in ("rank", "size") if given.has(tag)), "")
