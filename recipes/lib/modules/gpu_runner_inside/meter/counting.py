"""The samples of a step: as the script states them, and as the forward passes of its model were given them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterable, Mapping

NONE_SEEN, SEEN, KNOWN = 0, 1, 2  # of a rank: no forward pass; some; and what each step took


@dataclass(frozen=True)
class Step:
    """The forward passes of one step.

    Attributes:
        passes: in training. samples: that they were given; 0 where one of them does not show it.
        largest: samples of one pass.
    """

    passes: int = 0
    samples: int = 0
    largest: int = 0


@dataclass(frozen=True)
class Window:
    """What counts.

    Attributes:
        samples: of each group; None: steps count. batch: of a step.
        seen: what the model was given in all; None where that is not known. by_input: it counts, and was not stated.
    """

    samples: list[int] | None
    batch: int
    seen: int | None = None
    by_input: bool = False


class Count:
    """Of the steps of this rank.

    Args:
        stated: samples of a step; 0 where the script does not say.
        accumulate: forward passes of a step.

    Attributes:
        forwards: steps of the window that had a forward pass.
    """

    def __init__(self, stated: int, accumulate: int) -> None:
        self.stated, self._of_pass = stated, stated // accumulate
        self._most_passes = self._most = self._largest = 0
        self.begin(accumulate)

    def begin(self, accumulated: int | None) -> None:
        """The window begins. ``accumulated``: forward passes of a step, as the warm-up shows them; None: as stated."""
        if accumulated is not None:
            self._accumulated = accumulated  # a step with more may repeat its samples
        self.forwards = self._steps = 0
        self._known = True
        self._said: list[int] = []
        self._seen: list[int] = []
        self.begin_group()

    def begin_group(self) -> None:
        """A group of steps begins."""
        self._said.append(0)
        self._seen.append(0)

    def add(self, step: Step, samples: int | None, given: int = 0) -> None:
        """A step has ended.

        Args:
            samples: as the script states them of this one. given: by a framework that made the batch; 0: unknown.
        """
        fits = step.passes <= self._accumulated or given > 0
        step = Step(1, given, given) if given else step
        self._said[-1] += self.stated if samples is None else samples
        self._seen[-1] += step.samples
        self.forwards += step.passes > 0
        self._steps += 1
        self._known = self._known and fits and (step.samples > 0 or not step.passes)
        self._most_passes = max(self._most_passes, step.passes)
        self._most, self._largest = max(self._most, step.samples), max(self._largest, step.largest)

    @property
    def view(self) -> int:
        """How much of the model's forward passes this rank sees."""
        # Where a model has passes in some steps alone (a part of one, perhaps), only the script knows what a step took.
        is_known = self._known and self.forwards in (0, self._steps)
        return NONE_SEEN if not self._most_passes else KNOWN if is_known else SEEN

    def window(self, groups: int, of_all: int) -> Window:
        """What counts. ``of_all``: KNOWN where every rank sees what a step took, so that all count alike."""
        said, seen = self._said[:groups], self._seen[:groups]
        known, said_sum, seen_sum = self.view == KNOWN, sum(said), sum(seen)
        if not self.stated:
            return Window(seen, max(self._most, 1), seen_sum, True) if of_all == KNOWN else Window(None, 1)
        if not known:
            return Window(said, self.stated)
        of_pass = self._largest == self._of_pass
        agreed = of_pass or said_sum == seen_sum or self._most == self.stated
        if agreed or seen_sum < said_sum:
            return Window(seen, self._most if of_pass or not agreed else self.stated, seen_sum, not agreed)
        return Window(said, self.stated, seen_sum)


def samples_of(inputs: Iterable[Any], expected: int, *, tokens: bool = False, time_major: bool = False) -> int:
    """Samples, or tokens, that a forward pass is given: the first dimension of its tensors, if they agree.

    Args:
        inputs: tensors are those that have a shape; of a mapping its values.
        expected: as the script states it, which decides where several are possible; 0 where it does not.
        tokens: all numbers of its largest tensor of whole numbers. time_major: a layer takes (time, batch, ...).

    Returns:
        0 where the inputs do not show it.
    """
    flat = [one for each in inputs for one in (each.values() if isinstance(each, Mapping) else (each,))]
    shapes = [
        tuple(each.shape)
        for each in flat
        if getattr(each, "shape", None) and (not tokens or str(each.dtype).endswith(("int32", "int64")))
    ]
    if tokens:
        sizes = {math.prod(map(int, shape)) for shape in shapes}
        return expected if expected in sizes else max(sizes, default=0)
    sizes = {int(length) for shape in shapes for length in shape[: 2 if time_major else 1]}
    if len(sizes) > 1:
        sizes.discard(1)  # broadcast
    return sizes.pop() if len(sizes) == 1 else expected if expected in sizes else 0
