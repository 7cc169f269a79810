"""Names of a rank, a size and their like, and one spelling for what frameworks spell in several ways."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

RANK, LOCAL_RANK, SIZE, LOCAL_SIZE = "rank", "local_rank", "size", "local_size"
EXACT = "exact"  # with `rank` or `local_rank`: it is that number, and not only made with it

# Calls, by their spelling of `canonical`.
CALLS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("hvd.rank", "dist.get_rank"), frozenset((RANK, EXACT))),
    **dict.fromkeys(("hvd.local_rank", "dist.get_node_local_rank"), frozenset((LOCAL_RANK, EXACT))),
    **dict.fromkeys(("hvd.size", "dist.get_world_size"), frozenset((SIZE,))),
    **dict.fromkeys(("hvd.local_size", "torch.cuda.device_count"), frozenset((LOCAL_SIZE,))),
    "hvd.cross_rank": frozenset(),
}
# Environment variables of torchrun, Slurm, Open MPI, MPICH, Horovod.
_VARIABLES = {
    RANK: "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK HOROVOD_RANK MV2_COMM_WORLD_RANK GLOBAL_RANK "
    "RUNNER_RANK",
    LOCAL_RANK: "LOCAL_RANK SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID HOROVOD_LOCAL_RANK "
    "MV2_COMM_WORLD_LOCAL_RANK RUNNER_LOCAL_RANK",
    SIZE: "WORLD_SIZE SLURM_NTASKS SLURM_NPROCS OMPI_COMM_WORLD_SIZE PMI_SIZE HOROVOD_SIZE MV2_COMM_WORLD_SIZE "
    "RUNNER_WORLD",
    LOCAL_SIZE: "LOCAL_WORLD_SIZE SLURM_NTASKS_PER_NODE OMPI_COMM_WORLD_LOCAL_SIZE HOROVOD_LOCAL_SIZE "
    "SLURM_GPUS_ON_NODE",
}
VARIABLES = {name: tag for tag, text in _VARIABLES.items() for name in text.split()}
# Names of variables, parameters and attributes that are given no value which could be followed.
_NAMES = {
    LOCAL_RANK: r"local_?rank|local_?id|rank_?local",
    RANK: r"((global|world|ddp|my|node_global)_?)?rank",
    SIZE: r"world_?size|world|num_?ranks|n_?ranks|num_?replicas|ddp_world_size",
    LOCAL_SIZE: r"local_?size|local_?world_?size",
    "is_root": r"(is_?)?(main|master|root|chief|primary|rank_?(0|zero))(_?(process|rank|worker|proc|node))?"
    r"|is_?(first|head)(_?rank)?",
}
_PATTERNS = {tag: re.compile(rf"_?({text})\Z", re.IGNORECASE) for tag, text in _NAMES.items()}
# What wraps a model for torch.distributed.
WRAPPED_MODELS = ("DistributedDataParallel", "FullyShardedDataParallel")
_OPTIMIZER = re.compile(
    r"(SGD|N?Adam\w*|RAdam|Nadam|Fused(Adam|SGD|LAMB)|RMSprop|Ada(grad|delta|factor)|LAMB|Lamb|LARS|Lars|Lion|Ftrl"
    r"|\w*Optimizer)\Z"
)
_DEVICE = re.compile(r"(cuda|gpu):(%\w|\{[^}]*\})?\Z", re.IGNORECASE)
_HOROVOD = re.compile(r"\Ahorovod\.(torch|tensorflow\.keras|tensorflow|keras|mxnet)\.(?=.)")
_KERAS = re.compile(r"\A(tensorflow\.(compat\.v[12]\.)?(python\.)?keras|tf_keras|keras\.api|keras)\.(?=.)")


def names_in(text: str, head: str = "") -> frozenset[str]:
    """The words of a text, each with this before it."""
    return frozenset(f"{head}{word}" for word in text.split())


def canonical(path: str) -> str:
    """One spelling for the names of Horovod, torch.distributed and Keras."""
    if path.startswith("torch.distributed.") and path.count(".") == 2:
        return f"dist.{path.rpartition('.')[2]}"
    return _KERAS.sub("keras.", _HOROVOD.sub("hvd.", path))


def meaning(name: str) -> frozenset[str]:
    """The tags of a name that nothing else is known of."""
    tags = {tag for tag, pattern in _PATTERNS.items() if pattern.match(name)}
    return frozenset(tags | {EXACT} if tags else ())


def is_optimizer(path: str) -> bool:
    """Whether a call of this name, as `canonical` spells it, makes an optimizer."""
    last = path.rpartition(".")[2]
    other = path.startswith(("hvd.", ".", "?", "local ", "new ", "set ")) or "schedule" in path or "swa_utils" in path
    known = path.startswith(("torch.optim.", "keras.optimizers.", "tensorflow.optimizers."))
    return not other and last[:1].isupper() and (known or _OPTIMIZER.match(last) is not None)


@dataclass(frozen=True)
class Value:
    """What is known of an expression.

    Attributes:
        tags: ``rank``, ``local_rank``, ``size``, ``local_size``: it depends on them; ``exact``: it is that rank, not
            only made with it; ``by_rank_in_text``: a text that depends on it; ``over_size``: it was divided by the
            size; ``is_root``, ``not_root``, ``is_local_root``: it is true there; ``root_only``: it is None, or not set,
            elsewhere; ``fixed``: one element of a list, or one GPU by its name; ``in_memory``: a buffer; ``count``: a
            range of numbers; ``wrapped``: by Horovod; ``instance``: of a class of the source; and things, with the
            number of the call that made them: ``loader:3``, ``sampler:2``, ``model:1``, ``optimizer:5``, ``ddp:4``.
        path: dotted name of what was imported, ``torch.optim.SGD``; empty for anything else.
        constants: the literals that it may be.
        reference: a function, class or module of the source.
        items: of a tuple, by place.
    """

    tags: frozenset[str] = frozenset()
    path: str = ""
    constants: frozenset[Any] = frozenset()
    reference: Any = None
    items: tuple[Value, ...] = ()

    @property
    def constant(self) -> Any:
        """The literal that it is; ``...`` for no literal, or one of several."""
        return next(iter(self.constants)) if len(self.constants) == 1 else ...

    def things(self, *kinds: str) -> frozenset[str]:
        """The things of these kinds (of all, where none is given) that it is, or was made from."""
        return frozenset(tag for tag in self.tags if ":" in tag and (not kinds or tag.partition(":")[0] in kinds))

    def has(self, *tags: str) -> bool:
        """Whether it has any of these tags."""
        return not self.tags.isdisjoint(tags)


NOTHING = Value()
# What is true of a value itself, and not of what is made with it; and what a thing does not have as its owner has it.
_ITSELF = frozenset((EXACT, "root_only", "fixed", "instance"))
_CONDITIONS = frozenset(("is_root", "not_root", "is_local_root"))
SCALARS = _ITSELF | _CONDITIONS | {RANK, LOCAL_RANK, SIZE, LOCAL_SIZE, "over_size", "by_rank_in_text", "count"}


def tagged(*tags: str) -> Value:
    """A value of which nothing else is known."""
    return Value(frozenset(tags))


def union(values: Iterable[Value]) -> Value:
    """What is known of a value that is made from others."""
    tags = frozenset[str]().union(*(value.tags for value in values)) - _ITSELF
    return Value(frozenset(tag for tag in tags if not tag.startswith("object:")))


def joined(one: Value, other: Value) -> Value:
    """What is known of a value that is one of two."""
    items = one.items or other.items
    if one.items and len(one.items) == len(other.items):
        items = tuple(map(joined, one.items, other.items))
    reference = one.reference if one.reference is not None else other.reference
    return Value(one.tags | other.tags, one.path or other.path, one.constants | other.constants, reference, items)


def text_of(value: Value, into: Any = "") -> Value:
    """A text that a value is written into; of a device's name, ``cuda:{}``, the number alone matters."""
    if isinstance(into, str) and _DEVICE.search(into):
        return union((value,))
    tags = union((value,)).tags - SCALARS
    return Value(tags | {"by_rank_in_text"} if value.has(RANK, LOCAL_RANK, "by_rank_in_text") else tags)


def combined(operator: str, left: Value, right: Value) -> Value:
    """What is known of ``left operator right``."""
    tags = union((left, right)).tags
    if any(isinstance(each.constant, str) for each in (left, right)):
        return text_of(Value(tags), left.constant)
    if operator == "+" and {LOCAL_RANK, EXACT} <= right.tags and not left.constants:
        return tagged(RANK, EXACT)  # the node's first rank and the local rank
    by_node = left.has(EXACT) or (left.has(RANK) and right.has(LOCAL_SIZE))
    if operator == "%" and by_node and not right.has(SIZE):
        return tagged(LOCAL_RANK, EXACT)  # the rank by the GPUs of a node
    if right.has(SIZE) and operator in ("/", "//", "*"):
        divided = operator != "*" and not left.has("over_size", SIZE)
        tags = tags | {"over_size"} if divided else tags - {"over_size"}
    return Value(tags)


@dataclass(frozen=True, eq=False)
class Call:
    """A call, or an assignment to a rate (``set lr``) or environment variable (``set env``) as one.

    Attributes:
        name: dotted name of what was imported; ``.step`` for a method of a value, ``local f`` for a function of the
            source, ``new C`` for a class of it, ``?f`` for what is unknown.
        number: what its result carries in its tags.
        receiver: what a method belongs to.
        function: that can be followed; ``kind``: the class of the source that it makes an instance of.
        keywords: what is given by name; an empty name stands for ``**keywords`` that are not known.
    """

    name: str
    node: Any = None
    number: int = 0
    receiver: Value = NOTHING
    function: Any = None
    kind: Any = None
    arguments: tuple[Value, ...] = ()
    keywords: tuple[tuple[str, Value], ...] = ()

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def values(self) -> tuple[Value, ...]:
        """All arguments."""
        return (*self.arguments, *(value for _, value in self.keywords))

    @property
    def tags(self) -> frozenset[str]:
        """The tags of all arguments."""
        return frozenset[str]().union(*(value.tags for value in self.values))

    @property
    def has_unknown_arguments(self) -> bool:
        """Whether it takes ``*arguments`` or ``**keywords`` that are not known."""
        return any(not name for name, _ in self.keywords)

    def argument(self, place: int | None, *by_name: str) -> Value | None:
        """The argument of a name or place; None where it is not given."""
        at_place = self.arguments[place] if place is not None and place < len(self.arguments) else None
        return next((value for name, value in self.keywords if name in by_name), at_place)


_ON_DEVICE = names_in("to cuda cpu eval train double half float compile requires_grad_")
_PATHS = names_in("join Path open joinpath with_suffix with_name replace abspath expanduser")
_RATE = re.compile(r"learning_rate|lr\Z|\Avalues\Z")
_MODEL = re.compile(
    r"(torch\.nn|timm|keras|transformers)\.(.*\.)?[A-Z]\w*\Z|torchvision\.models\.|keras\.applications\."
    r"|timm\.create_model|transformers\.\w*(Model|For[A-Z])\w*\.from_(pretrained|config)\Z"
)


def result_of(call: Call) -> Value:
    """The result of a call of what the source does not have: frameworks, the standard library."""
    name, last, first = call.name, call.last, call.arguments[0] if call.arguments else NOTHING
    given = union((*call.values, call.receiver))
    things = given.things()
    if name in CALLS:
        return Value(CALLS[name])
    if name in ("io.BytesIO", "io.StringIO"):
        return tagged("in_memory")
    if name == "builtins.range":
        return Value(given.tags | {"count"})
    if first != NOTHING and (name == "builtins.int" or (last == "compile" and not name.startswith("."))):
        return first
    if name in ("builtins.max", "builtins.min"):
        return Value(call.tags)
    if name == ".format":
        return text_of(given, call.receiver.constant)
    if meaning(last):
        return Value(meaning(last))
    if last == "DataLoader":
        return Value(given.tags - _CONDITIONS | {f"loader:{call.number}"})
    if is_distributed_sampler(last):
        return Value(things | {f"sampler:{call.number}"})
    if is_optimizer(name):
        return Value(things - given.things("model", "ddp") | {f"optimizer:{call.number}"})
    if name in ("hvd.DistributedOptimizer", "hvd.DistributedGradientTape"):
        return Value(given.tags | {"wrapped"})
    if last == "GradientTape":
        return tagged(f"tape:{call.number}")
    if last in WRAPPED_MODELS:
        return Value(things | first.things("object") | {f"ddp:{call.number}"})
    if "schedule" in name.lower() or last.endswith(("LR", "Scaler")):
        tags = rate_of(call) | union((call.receiver,)).tags
        return Value(frozenset(tag for tag in tags if not tag.startswith("optimizer:") and tag != "wrapped"))
    if _MODEL.match(name):
        return Value(given.tags | {f"model:{call.number}"})
    if name.startswith(".") and last in _ON_DEVICE:
        return call.receiver
    by_path = last in _PATHS or call.receiver.has("by_rank_in_text")
    tags = given.tags - _CONDITIONS - (frozenset() if by_path else {"by_rank_in_text"})
    return Value(tags | {f"object:{call.number}"})


def rate_of(call: Call) -> frozenset[str]:
    """What the rate of a schedule is made from: not a number of steps that is divided by the number of ranks."""
    place = 1 if "Piecewise" in call.last else 0
    rates = [*call.arguments[place : place + 1], *(value for key, value in call.keywords if _RATE.search(key))]
    return union(value for value in call.values if value in rates or not value.has("over_size")).tags


def is_distributed_sampler(last: str) -> bool:
    """Whether a class of this name divides the data among the ranks."""
    return "Sampler" in last and ("Distributed" in last or "Elastic" in last)
