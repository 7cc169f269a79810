"""What is known of the result of a call of what the source does not have: frameworks, the standard library."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from runner.linting import names
from runner.linting.trace import NOTHING, Arguments, Keywords, Value, text_of, union

_CONDITIONS = frozenset(("is_root", "not_root", "is_local_root"))
_ON_DEVICE = frozenset(("to", "cuda", "cpu", "eval", "train", "double", "half", "float", "compile", "requires_grad_"))
_PATHS = frozenset(("join", "Path", "open", "joinpath", "with_suffix", "with_name", "replace", "abspath", "expanduser"))
_LAYERS = ("torch.nn.", "timm.", "keras.", "transformers.")
_PRETRAINED = re.compile(r"transformers\.\w*(Model|For[A-Z])\w*\.")
_RATE = re.compile(r"learning_rate|lr\Z|\Avalues\Z")
_ZOOS = ("torchvision.models.", "keras.applications.", "timm.create_model")


@dataclass(frozen=True)
class Call:
    """A call: its name as `canonical` spells it, the number of its event, and what it is given."""

    path: str
    number: int
    arguments: Arguments
    keywords: Keywords
    receiver: Value

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.path.rpartition(".")[2]

    @property
    def tags(self) -> frozenset[str]:
        """What it is given, and what it belongs to, together."""
        return union((*self.arguments, *(value for _, value in self.keywords), self.receiver)).tags

    @property
    def things(self) -> frozenset[str]:
        """Those tags that are things with a number."""
        return frozenset(tag for tag in self.tags if ":" in tag)


def result_of(call: Call) -> Value:
    """The result, by the first row that knows the call."""
    return next(result(call) for knows, result in _ROWS if knows(call))


def _is_sampler(call: Call) -> bool:
    return "Sampler" in call.last and ("Distributed" in call.last or "Elastic" in call.last)


def _is_text(call: Call) -> bool:
    return call.path in (".format", "os.path.join", "pathlib.Path")


def _is_model(call: Call) -> bool:
    if call.last in ("from_pretrained", "from_config"):  # AutoModelForCausalLM.from_pretrained
        return _PRETRAINED.match(call.path) is not None
    return call.path.startswith(_ZOOS) or (call.path.startswith(_LAYERS) and call.last[:1].isupper())


def _is_same(call: Call) -> bool:
    return call.path.startswith(".") and call.last in _ON_DEVICE


def _is_schedule(call: Call) -> bool:
    name = call.path.lower()
    return "schedule" in name or call.last.endswith(("LR", "Scaler"))


def _is_number(call: Call) -> bool:
    return call.path in ("builtins.int", "builtins.bool", "builtins.max", "builtins.min") and len(call.arguments) == 1


def _sampler(call: Call) -> Value:
    return Value(call.things | {f"sampler:{call.number}"})


def _optimizer(call: Call) -> Value:
    return Value(frozenset(tag for tag in call.things if not tag.startswith("model:")) | {f"optimizer:{call.number}"})


def _wrapped_model(call: Call) -> Value:
    return Value(call.things | {"wrapped_model", f"model:{call.number}"})


def _schedule(call: Call) -> Value:
    tags = rate_of(call.last, call.arguments, call.keywords) | union((call.receiver,)).tags
    return Value(frozenset(tag for tag in tags if not tag.startswith("optimizer:") and tag != "wrapped"))


def rate_of(name: str, arguments: Arguments, keywords: Keywords) -> frozenset[str]:
    """What the rate of a schedule is made from: not a number of steps that is divided by the number of ranks."""
    place = 1 if "Piecewise" in name else 0
    rates = [*arguments[place : place + 1], *(value for key, value in keywords if _RATE.search(key))]
    others = [*arguments[:place], *arguments[place + 1 :], *(value for key, value in keywords if not _RATE.search(key))]
    return union((*rates, *(value for value in others if not value.has("over_size")))).tags


def _other(call: Call) -> Value:
    tags = call.tags - _CONDITIONS
    if call.last not in _PATHS and "by_rank_in_text" not in call.receiver.tags:
        tags -= {"by_rank_in_text"}
    return Value(tags)


_ROWS: tuple[tuple[Callable[[Call], bool], Callable[[Call], Value]], ...] = (
    (lambda call: call.path in names.CALLS, lambda call: Value(names.CALLS[call.path])),
    (lambda call: call.path in ("io.BytesIO", "io.StringIO"), lambda _call: Value(frozenset(("in_memory",)))),
    (lambda call: call.path == "builtins.range", lambda call: Value(call.tags | {"count"})),
    (_is_number, lambda call: call.arguments[0]),
    (_is_text, lambda call: text_of(Value(call.tags))),
    (lambda call: bool(names.meaning(call.last)), lambda call: Value(names.meaning(call.last))),
    (lambda call: call.last == "DataLoader", lambda call: Value(call.tags - _CONDITIONS | {f"loader:{call.number}"})),
    (_is_sampler, _sampler),
    (lambda call: names.is_optimizer(call.path), _optimizer),
    (
        lambda call: call.path in ("hvd.DistributedOptimizer", "hvd.DistributedGradientTape"),
        lambda call: Value(call.tags | {"wrapped"}),
    ),
    (lambda call: call.last == "GradientTape", lambda call: Value(frozenset((f"tape:{call.number}",)))),
    (lambda call: call.last in ("DistributedDataParallel", "FullyShardedDataParallel"), _wrapped_model),
    (_is_schedule, _schedule),
    (_is_model, lambda call: Value(call.tags | {f"model:{call.number}"})),
    (_is_same, lambda call: call.receiver),
    (lambda call: call.path in (".append", ".extend", ".update", ".add"), lambda _call: NOTHING),
    (
        lambda call: call.path in (".item", ".cpu", ".detach", ".mean", ".sum"),
        lambda call: Value(union((call.receiver,)).tags),
    ),
    (lambda _call: True, _other),
)
