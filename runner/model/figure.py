"""A measured figure with all that must be said with it: the one struct that every way out of this program embeds.

What makes a figure less than a plain claim about training is one of its ``doubts``. A projection (a row, a list, a file
of another program) embeds the whole ``Figure``, and prints ``doubts`` where it prints the value, each by its words or
its code. A new doubt is one row of ``DOUBTS``: every way out has it then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from runner.core.text import counted, percent
from runner.model.request import RunArm
from runner.model.verdict import Unit, Verdict


class Doubt(msgspec.Struct, frozen=True):
    """A reason not to quote a figure as it stands.

    Attributes:
        code: stable name. words: what it is, in a few words that may stand beside the value.
    """

    code: str
    words: str


class Figure(msgspec.Struct, frozen=True):
    """Throughput of a whole world, from one run whose verdict is ``measured``.

    Attributes:
        value: in ``unit`` per second. interval: of it within this run (95 %); null where there is none.
        window_s: length of its window, seconds.
        arm: that it is of: ``full`` is training as it is; of another one the figure is none of training.
        demonstration: why it is no performance claim; empty where it is one.
        proven: what was proven, one sentence each.
        steady: neither trend nor shift of more than 1 % in the window; null where that is unknown.
        doubts: all that must be said with the value.
    """

    value: float
    unit: Unit
    interval: tuple[float, float] | None = None
    window_s: float | None = None
    arm: RunArm = "full"
    demonstration: str = ""
    proven: tuple[str, ...] = ()
    steady: bool | None = None
    doubts: tuple[Doubt, ...] = ()

    @property
    def claim(self) -> str:
        """What it may be quoted as: ``performance``, ``demonstration``, ``unexamined``, or the arm that it is of."""
        if self.has("demonstration"):
            return "demonstration"
        return self.arm if self.arm != "full" else "unexamined" if self.has("not-examined") else "performance"

    def has(self, code: str) -> bool:
        """Whether it has that doubt."""
        return any(doubt.code == code for doubt in self.doubts)

    def beside(self, study: OfStudy, launch: str) -> Figure:
        """The same with what its study says of it; ``launch``: the key of the launch that it is of."""
        doubts = (*gap_doubts(study.gaps), *unproven_doubts(study.lacks.get(launch, 0)))
        return self.labelled(study.demonstration).doubted((*doubts, *study.unequal.get(launch, ())))

    def after_others(self, others: Collection[str]) -> Figure:
        """The same, of a launch that had runs before which gave no figure. ``others``: their outcomes."""
        if not others:
            return self
        words = f"an earlier run of its launch gave no figure ({', '.join(sorted(set(others)))}): it may have been slow"
        return self.doubted((Doubt("replaced", words),))

    def doubted(self, more: Sequence[Doubt]) -> Figure:
        """The same with more doubts."""
        doubts = sorted((*more, *self.doubts), key=lambda doubt: [*DOUBTS].index(doubt.code))
        return msgspec.structs.replace(self, doubts=tuple(doubts))

    def labelled(self, demonstration: str) -> Figure:
        """The same as a demonstration, unless it is one: where no figure of its study is a claim, nor is this one."""
        if not demonstration or self.demonstration:
            return self
        doubts = (Doubt("demonstration", demonstration), *self.doubts)
        return msgspec.structs.replace(self, demonstration=demonstration, doubts=doubts)


AT_ONCE = "ran at the same time"


class OfStudy(msgspec.Struct, frozen=True):
    """What a study says of the figures of its runs, which none of them shows by itself.

    Attributes:
        gaps: what was launched and cannot be shown any more, a sentence each.
        demonstration: where one figure of a study is no claim, each is.
        lacks: by a launch's key, how many other launches of its point are not proven.
        unequal: by a launch's key, what the launches of its point do not have in common.
    """

    gaps: tuple[str, ...] = ()
    demonstration: str = ""
    lacks: Mapping[str, int] = {}
    unequal: Mapping[str, tuple[Doubt, ...]] = {}


def gap_doubts(gaps: Sequence[str]) -> tuple[Doubt, ...]:
    """Of every figure of a study of which something that was launched cannot be shown."""
    return (Doubt("gap", f"its study has {counted(len(gaps), 'gap')}: it may be a chosen one"),) if gaps else ()


def unproven_doubts(lacks: int) -> tuple[Doubt, ...]:
    """Of the figure of a point, or of a launch, where ``lacks`` other launches of the point are not proven."""
    words = f"{counted(lacks, 'more launch')} of its point not proven, which may have been slow"
    return (Doubt("replaced", words),) if lacks else ()


_FAR_APART = 0.25  # repeats of one launch, also on busy processors


def spread_doubts(rates: Collection[float]) -> tuple[Doubt, ...]:
    """Of the mean of launches that are far apart."""
    between = max(rates) / min(rates) - 1.0 if rates else 0.0
    words = f"rates of its launches differ by {percent(between)}"
    return (Doubt("unequal", words),) if between > _FAR_APART else ()


@dataclass(frozen=True)
class DoubtKind:
    """A row of ``DOUBTS``.

    Attributes:
        words: of a verdict whose figure is of this arm; empty where the doubt does not hold.
        short: for the narrow cells of a list.
        of_value: it is said beside the value, else of the run.
    """

    words: Callable[[Verdict, RunArm], str]
    short: str
    of_value: bool = False


_BATCH = {
    "not-checked": "batch stated, not checked",
    "others-trained": "another optimizer stepped in the window, too, whose steps and samples do not count",
    "not-stated": "batch as seen: the first dimension of the model's input, of all passes of a step",
    "": "",
}
_STEPS = ("", "steps of every rank, added up: the samples of one are unknown")
# code -> doubt, the gravest first.
DOUBTS: dict[str, DoubtKind] = {
    "demonstration": DoubtKind(lambda verdict, _: verdict.demonstration, "demo"),
    "gap": DoubtKind(lambda _verdict, _arm: "", "gap"),  # of its study, not of the run: ``beside_gaps``
    "replaced": DoubtKind(lambda verdict, _: verdict.replaced, "replaced"),  # of its study, too: ``after_others``
    "unequal": DoubtKind(lambda _verdict, _arm: "", "unequal"),  # of a study: ``beside``, and what a point is made of
    "other-arm": DoubtKind(lambda _, arm: "" if arm == "full" else f"arm {arm}: no figure of training", "arm"),
    "not-examined": DoubtKind(
        lambda verdict, _: "synchronisation not examined" if verdict.synchronisation else "", "unexamined"
    ),
    "mixed-hardware": DoubtKind(
        lambda verdict, _: f"mixed hardware ({verdict.mixed})" if verdict.mixed else "", "mixed"
    ),
    "disturbed": DoubtKind(lambda verdict, _: verdict.disturbed, "disturbed"),
    "judged-anew": DoubtKind(
        lambda verdict, _: "judged anew: its files do not fit its seal here" if verdict.anew else "", "anew"
    ),
    "shared-batch": DoubtKind(lambda verdict, _: verdict.shared_batch, "shared batch"),
    "batch": DoubtKind(
        lambda verdict, _: "; ".join(filter(None, (_STEPS[verdict.unit == "steps"], _BATCH[verdict.batch]))), "batch"
    ),
    "transport-unproven": DoubtKind(
        lambda verdict, _: "transport UNPROVEN" if verdict.transport == "unproven" else "", "transport"
    ),
    "forced": DoubtKind(lambda verdict, _: f"forced: {', '.join(verdict.forced)}" if verdict.forced else "", "forced"),
    "not-steady": DoubtKind(lambda verdict, _: "NOT steady" if verdict.steady is False else "", "not steady", True),
    "steadiness-unknown": DoubtKind(
        lambda verdict, _: "cannot tell whether steady" if verdict.steady is None else "", "steady?", of_value=True
    ),
    "no-interval": DoubtKind(
        lambda verdict, _: "no interval" if verdict.precision is None else "", "no interval", of_value=True
    ),
}


NO_INTERVAL = frozenset(("no-interval",))
OWN_OF_A_POINT = NO_INTERVAL | {"other-arm", "unequal"}  # what a point of a study has itself


def figure_of(verdict: Verdict | None, arm: RunArm | None = None) -> Figure | None:
    """The figure of a verdict; None unless it is ``measured``.

    Args:
        arm: as the plan has it; None where only the verdict says. Verdicts of older versions say nothing of it.
    """
    if verdict is None or verdict.outcome != "measured" or verdict.images_per_s is None:
        return None
    own = verdict.arm if arm is None else arm
    doubts = (Doubt(code, kind.words(verdict, own)) for code, kind in DOUBTS.items())
    return Figure(
        value=verdict.images_per_s,
        unit=verdict.unit,
        interval=verdict.precision,
        window_s=verdict.window_s,
        arm=own,
        demonstration=verdict.demonstration,
        proven=verdict.proven,
        steady=verdict.steady,
        doubts=tuple(doubt for doubt in doubts if doubt.words),
    )


def shared_doubts(
    figures: Iterable[Figure | None], noun: str = "launch", *, without: Collection[str] = ()
) -> tuple[Doubt, ...]:
    """The doubts about several figures, each once, with how many have it where not all do.

    Args:
        figures: of single runs; None for one without. noun: what a run is called.
        without: codes of doubts that do not count for what is made of the figures.
    """
    known = [figure for figure in figures if figure is not None]
    words: dict[str, dict[str, None]] = {}
    for doubt in (doubt for figure in known for doubt in figure.doubts):
        words.setdefault(doubt.code, {})[doubt.words] = None
    order = {code: place for place, code in enumerate(DOUBTS)}
    return tuple(
        Doubt(code, _with_count("; ".join(each), sum(figure.has(code) for figure in known), len(known), noun))
        for code, each in sorted(words.items(), key=lambda item: order.get(item[0], len(order)))
        if code not in without
    )


def is_of_value(doubt: Doubt) -> bool:
    """Whether it is said beside the value, else of the run."""
    return doubt.code in DOUBTS and DOUBTS[doubt.code].of_value


def in_words(doubts: Iterable[Doubt], *, labelled: bool = False) -> str:
    """``transport UNPROVEN; NOT steady``; empty for none. ``labelled``: a demonstration is said elsewhere."""
    return "; ".join(doubt.words for doubt in doubts if not (labelled and doubt.code == "demonstration"))


def in_codes(doubts: Iterable[Doubt]) -> str:
    """``transport-unproven,not-steady``, for other programs; empty for none."""
    return ",".join(dict.fromkeys(doubt.code for doubt in doubts))


def in_short(doubts: Iterable[Doubt]) -> str:
    """``demo, 2 more``: the gravest one, and how many there are besides; empty for none."""
    first, *others = [DOUBTS[doubt.code].short if doubt.code in DOUBTS else doubt.code for doubt in doubts] or [""]
    return f"{first}, {len(others)} more" if others else first


class FigureKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What every projection of a run has of its figure.

    Attributes:
        figure: with its doubts; null where the run is not measured.
        images_per_s, unit, demonstration, synchronisation: the same as keys of their own: the value in ``unit`` per
            second, why it is no performance claim, and ``not-examined`` where nothing showed whether the ranks train
            together. A reader of ``figure`` needs none of them.
    """

    figure: Figure | None = None
    images_per_s: float | None = None
    unit: str = "images"
    demonstration: str = ""
    synchronisation: str = ""


def figure_keys(verdict: Verdict | None, figure: Figure | None) -> dict[str, Any]:
    """The values of ``FigureKeys`` for a run with this verdict, and the figure of it; empty without a verdict."""
    if verdict is None:
        return {}
    return {
        "figure": figure,
        "images_per_s": figure.value if figure else None,
        "unit": verdict.unit,
        "demonstration": figure.demonstration if figure else verdict.demonstration,
        "synchronisation": verdict.synchronisation,
    }


def _with_count(words: str, having: int, of: int, noun: str) -> str:
    return words if having == of else f"{words} ({having} of {counted(of, noun)})"
