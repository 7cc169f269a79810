"""The one view of a script that all rules share: its calls in order, by which ranks and in which loops each is reached,
how it trains and on what, and who waits for whom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from astroid import nodes

from runner.linting.conditions import around_in_function, guards_at
from runner.linting.frameworks import TABLES, canonical, matches
from runner.linting.names import Resolver, class_of, decorators
from runner.linting.values import NOTHING, Call, Reach, Value, union

State = Literal["ok", "missing", "wrong", "cannot tell"]
# What a rule says of a step: its state, if there are such calls (or if this is true); the reason, in which ``{}`` is
# the last part of the first call's name; and the fix, with a line of code, where it is not the step's.
Claim = tuple[State, bool | Iterable[Call], str] | tuple[State, bool | Iterable[Call], str, str]
Rule = Callable[["Script"], Iterator[Claim]]


class Script:
    """A script that was read.

    Attributes:
        every: its calls, in the order in which they are reached.
        way: how its ranks come together; ``ddp``: by torch.distributed.
        is_tensorflow: it trains with TensorFlow or Keras, and not with PyTorch.
        backward: what computes gradients. fits: where Keras trains. optimizers, samplers, loaders: what makes one;
            samplers that divide the data. sent: what sends parameters.
        batches: the innermost loops that compute gradients.
        trained_on: what the loops that compute gradients go over: the innermost that has a loader, else the innermost.
        evaluated: the loaders that a loop without gradients goes over.
    """

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self._top = next(iter(resolver.sources))
        self._sites: dict[nodes.NodeNG, list[nodes.NodeNG]] = defaultdict(list)
        self._reached: dict[nodes.NodeNG, Reach | None] = {}
        self._references = [node for node in resolver.nodes if isinstance(node, nodes.Name | nodes.Attribute)]
        for node in resolver.nodes:
            self._find_sites(node)
        every = ((call, self._reach(node)) for node in resolver.nodes for call in self._calls(node))
        self.every = [replace(call, place=resolver.sources[call.node.root()].place(call.node.lineno), **vars(reach))
                      for call, reach in every if reach is not None]  # fmt: skip
        self.every.sort(key=lambda call: call.order)
        by_import = self.imports("torch.distributed", "torch.nn.parallel.DistributedDataParallel")
        is_ddp = by_import or self.calls("init ddp", "ddp")
        self.way = "horovod" if self.imports("horovod") else "ddp" if is_ddp else "none"
        by_itself = self.imports("tensorflow", "keras", "tf_keras") and not self.imports("torch")
        by_horovod = self.imports("horovod.tensorflow", "horovod.keras")
        self.is_tensorflow = (by_horovod or by_itself) and not self.imports("horovod.torch")
        self.backward, self.fits = self.calls("backward"), self.calls("fit")
        self.optimizers, self.samplers = self.calls("optimizer"), self.calls("sampler")
        self.loaders = [call for call in self.calls("loader", "new *")
                        if call.thing("loader") in resolver.value(call.node).tags]  # fmt: skip
        words = ("state", "param", "model", "weight")  # and not an epoch's number or another small thing
        self.sent = [call for call in self.calls("parameters", "objects")
                     if call.means("parameters") or union(call.values).things("model", "optimizer")
                     or any(word in call.text for word in words)]  # fmt: skip
        loops = [call.loops for call in self.backward if call.loops]
        self.batches = {each[-1] for each in loops}
        overs = [[self.over(loop) for loop in reversed(each)] for each in loops]
        self.trained_on = [next((over for over in each if over.things("loader")), each[0]) for each in overs]
        others = {loop for call in self.every for loop in call.loops} - self.batches
        self.evaluated = union(map(self.over, others)).things("loader")

    def _find_sites(self, node: nodes.NodeNG) -> None:
        """Note what a node calls, hands on to be called, or imports."""
        sites: list[Any] = []
        if isinstance(node, nodes.Call):
            function = self.resolver.call(node).function
            handed = () if function else (*node.args, *(each.value for each in node.keywords))
            sites = [function, *(self.resolver.value(each).what for each in handed)]
        elif isinstance(node, nodes.Import | nodes.ImportFrom):
            sites = [self.resolver.module(name) for name in self.resolver.imported(node)]
        for each in sites:
            if isinstance(each, nodes.FunctionDef | nodes.Module):
                self._sites[each].append(node)

    def _calls(self, node: Any) -> Iterator[Call]:
        """What a node calls or sets."""
        value = self.resolver.value
        match node:
            case nodes.Call():
                call = self.resolver.call(node)
                yield call
                if call.name == "os.environ.setdefault":
                    yield replace(call, name="set.env")
            case nodes.Name() | nodes.Attribute() if isinstance(node.parent, nodes.Decorators) and value(node).path:
                yield Call(canonical(value(node).path), node)
            case nodes.AssignAttr(attrname="visible_device_list" | "lr" | "learning_rate", parent=nodes.Assign()):
                yield Call(f"set.{node.attrname}", node, arguments=(value(node.parent.value),))
            case nodes.Subscript(parent=nodes.Assign(targets=[target])) if target is node:
                key, new = value(node.slice), value(node.parent.value)
                if value(node.value).path == "os.environ":
                    yield Call("set.env", node, arguments=(key, new))
                elif key.constant in ("lr", "learning_rate"):
                    yield Call("set.lr", node, arguments=(new,))

    def _reach(self, node: nodes.NodeNG) -> Reach | None:
        """How a place is reached; None where nothing comes to it."""
        if node not in self._reached:
            self._reached[node] = None  # while it is looked for: a function may call itself
            around = [node, *around_in_function(node)]
            outer = self._entry(around[-1])
            if outer is not None:
                loops = [each for child, each in zip(around[-2::-1], around[:0:-1], strict=True)
                         if isinstance(each, nodes.For | nodes.While) and child in each.body]  # fmt: skip
                order = (*outer.order, node.end_lineno or 0, node.end_col_offset or 0)  # inner calls end before outer
                guards = outer.guards | guards_at(node, self.resolver.value)
                self._reached[node] = replace(outer, guards=guards, loops=(*outer.loops, *loops), order=order)
        return self._reached[node]

    def _entry(self, scope: Any) -> Reach | None:
        """How the body of a function or a module is reached: by all the calls that are seen, or by none of them."""
        if scope is self._top:
            return Reach()
        reached = [reach for each in self._sites.get(scope, ()) if (reach := self._reach(each)) is not None]
        certain = [each for each in reached if each.certain] or reached
        if not certain and not self._may_be_called(scope):
            return None
        entry = Reach(order=(1_000_000_000,), certain=False)
        if certain:
            deepest = max(certain, key=lambda each: (len(each.loops), each.order))
            guards = frozenset.intersection(*(each.guards for each in certain))
            entry = replace(deepest, guards=guards, order=min(each.order for each in certain))
        by_root = any(matches("root decorator", each) for each in decorators(scope))
        return replace(entry, guards=entry.guards | {"root"}) if by_root else entry

    def _may_be_called(self, scope: Any) -> bool:
        """Whether a function may be called where that is not seen: by a framework, a table, a command line."""
        if not isinstance(scope, nodes.FunctionDef):
            return False
        owner = class_of(scope)
        if scope.root() is not self._top:
            return scope in self.resolver.named or owner in self.resolver.named
        by_base = owner is not None and any(isinstance(each, str) for each in self.resolver.ancestors(owner))
        used = (getattr(each, "name", "") or getattr(each, "attrname", "") for each in self._references)
        return scope.decorators is not None or matches("entry", scope.name) or by_base or scope.name in used

    @cached_property
    def does_it_itself(self) -> str:
        """A framework that does the steps by itself; empty for none."""
        kinds = [each for each in self.resolver.nodes if isinstance(each, nodes.ClassDef)]
        bases = [each for kind in kinds for each in self.resolver.ancestors(kind) if isinstance(each, str)]
        used = {*(call.name for call in self.every), *map(canonical, bases), *bases}
        rows = TABLES["themselves"].items()
        return next((name for name, row in rows if any(matches(row, each) for each in used)), "")

    @cached_property
    def uncertain(self) -> str:
        """Why something may be missing here that the script has; empty if nothing is."""
        if self.resolver.unread:
            return f"{self.resolver.unread[0]} could not be read"
        training = [call.certain for call in (*self.backward, *self.fits)]
        return "nothing here is seen to call what trains" if training and not any(training) else ""

    @cached_property
    def names(self) -> set[str]:
        """What it names of what it imports, as ``canonical`` spells it."""
        return self._names(self._references)

    def _names(self, references: Iterable[Any]) -> set[str]:
        return {canonical(path) for each in references if (path := self.resolver.value(each).path)}

    @cached_property
    def texts(self) -> set[str]:
        """Its string literals, of a line at most."""
        strings = (each.value for each in self.resolver.nodes if isinstance(each, nodes.Const))
        return {each for each in strings if isinstance(each, str) and len(each) < 200}

    @cached_property
    def not_judged(self) -> str:
        """Why nothing of it is judged; empty where it is."""
        if self.imports("mxnet"):
            return "MXNet is not known here"
        if any(matches("divided", name) for name in self.resolver.imports):
            return "it divides the model among the ranks, and not the data alone"
        if self.does_it_itself:
            return f"{self.does_it_itself} does this itself"
        if self.backward or self.fits or (self.way != "none" and self.optimizers) or self.uncertain:
            return ""
        reached = self._names(node for node in self._references if self._reach(node))
        used = (*reached, *(call.name for call in self.every))
        return "" if any(matches("training", name) for name in used) else "no training that can be seen in this file"

    def over(self, loop: nodes.NodeNG) -> Value:
        """What a loop goes over."""
        return self.resolver.value(loop.iter) if isinstance(loop, nodes.For) else NOTHING

    def calls(self, *rows: str) -> list[Call]:
        """The calls of one of these rows of ``calls``, or with a name of this pattern: ``.step``, ``*.fully_shard``."""
        return [call for call in self.every if call.means(*rows)]

    def imports(self, *packages: str) -> bool:
        """Whether one of these packages, or a module below it, is imported."""
        heads = tuple(f"{package}." for package in packages)
        return any(f"{name}.".startswith(heads) for name in self.resolver.imports)

    def fix(self, step: int, writes: str = "torch.save(...)") -> str:
        """What to write: for the way that it has, or a line for each of both where it has none."""
        by_way: dict[str, str] = {way: text.replace("{}", writes) for way, text in TABLES["fixes"][step - 1].items()}
        if self.way == "none" and not self.is_tensorflow:
            return f"DDP: {by_way['ddp']}\nHorovod: {by_way['horovod']}"
        way = "ddp" if self.way == "ddp" else "tensorflow" if self.is_tensorflow else "horovod"
        return by_way.get(way, by_way["horovod"])

    def sharding(self, loader: Call) -> str:
        """``sampler``, ``rank`` (the data depend on it), ``size`` (on it alone), or empty for the whole data."""
        names = {"", "dataset", "sampler", "batch_sampler"}.intersection(loader.keywords)
        given = union((*map(loader.argument, (0, 3, 4)), *map(loader.keywords.__getitem__, names)))
        return "sampler" if given.things("sampler") else next((tag for tag in ("rank", "size") if given.has(tag)), "")

    def left_waiting(self, call: Call) -> bool:
        """Whether only some ranks come to this collective, and the others to no other call of it.

        ``if rank == 0: dist.gather(x, parts)``, ``else: dist.gather(x)`` brings all of them together, as
        ``if rank != 0: dist.barrier()`` does with a later one on rank 0. A group of its own is not judged.
        """
        if not call.guards or call.given(None, "group", "process_group", "process_set") is not None:
            return False
        others = [each for each in self.every if each.name == call.name and each is not call]
        for guard, opposite in (("root", "not_root"), ("not_root", "root")):
            if guard in call.guards:
                return not any(opposite in each.guards for each in others)
        return not any(each.node.frame() is call.node.frame() and not each.guards for each in others)
