"""The samples of a step: as the script states them, and as the forward passes of its model were given them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Iterable, Mapping, Sequence

NONE_SEEN, SEEN, KNOWN = 0, 1, 2  # of a rank: no forward pass; some; and what each step took
_LARGEST_LAST = 1.02  # samples as stated over those seen, where smaller last batches are the only difference
_MOST_KINDS = 3  # of groups of whole batches, with an epoch's last or not: how many differ in their samples
SAMPLE_SIZE, PASSES = "mean size of a sample", "forward passes of a step"
NOT_GIVEN = 0, 0  # of the samples of a step, where no framework made its batches


@dataclass(frozen=True)
class Step:
    """The forward passes of one step.

    Attributes:
        passes: in training. samples: that they were given; 0 where one of them does not show it.
        largest: samples of one pass. across: second dimensions of the last one's tensors.
        stepped: it had no pass that is seen, and the optimizer stepped. numbers: in all inputs.
    """

    passes: int = 0
    samples: int = 0
    largest: int = 0
    across: tuple[int, ...] = ()
    stepped: bool = False
    numbers: int = 0


NONE, STEPPED = Step(), Step(stepped=True)


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
        stated: samples of a step; 0 where the script does not say. accumulate: forward passes of a step.
        is_part: the model that is seen is the smaller part of what is trained, as one expert of several.

    Attributes:
        forwards: steps of the window that had a forward pass; done: and those in which the optimizer stepped alone.
    """

    def __init__(self, stated: int, accumulate: int, *, is_part: bool = False) -> None:
        self.stated, self._is_part = stated, is_part
        self._has_passes = self._has_square = False  # in warm-up or window
        self.begin(accumulate)

    def begin(self, accumulated: int | None) -> None:
        """The window begins. ``accumulated``: forward passes of a step, as the warm-up shows them; None: as stated."""
        self._last: Step | None = None  # of the last step, where that is all that is known of it
        self._more = 0  # further steps that were the same
        if accumulated is not None:
            self._accumulated = accumulated  # a step with more may repeat its samples
        self.forwards = self.done = self._steps = self._most = self._largest = self._square = 0
        self._passes = self._numbers = 0
        self._kinds: set[tuple[int, ...]] = set()  # of second dimensions
        self._known, self._by_step = True, False
        self._was_smaller = self._varies = False
        self._said: list[int] = []
        self._seen: list[int] = []
        self.begin_group()

    def begin_group(self) -> None:
        """A group of steps begins."""
        if self._more:
            self._add_more()
        self._said.append(0)
        self._seen.append(0)

    def add(self, step: Step, samples: int | None, given: tuple[int, int] = NOT_GIVEN) -> None:
        """A step has ended. One that is the same as the last is only counted: most are.

        Args:
            samples: as the script states them of this one.
            given: by a framework that made its batches, and as its arguments state it; 0: unknown.
        """
        if step is self._last and samples is None and given is NOT_GIVEN:
            self._more += 1
            return
        if self._more:
            self._add_more()
        self._last = step if samples is None and given is NOT_GIVEN else None
        self._add(step, samples, given, 1)

    def _add_more(self) -> None:
        assert self._last is not None
        more, self._more = self._more, 0
        self._add(self._last, None, NOT_GIVEN, more)

    def _add(self, step: Step, samples: int | None, given: tuple[int, int], times: int) -> None:
        made, stated = given
        fits = step.passes <= self._accumulated or made > 0
        self._passes += times * step.passes
        step = replace(step, passes=1, samples=made, largest=made) if made else step
        self._said[-1] += times * ((stated or self.stated) if samples is None else samples)
        self._by_step = self._by_step or samples is not None
        self._seen[-1] += times * step.samples
        self._numbers += times * step.numbers if step.samples else 0
        self.forwards += times * (step.passes > 0)
        self.done += times * (step.passes > 0 or step.stepped)
        self._steps += times
        smaller = 0 < step.samples < self.stated
        # The last batch of an epoch follows a whole one. Where the other dimension fits, this one is perhaps the time.
        fits_across = self.stated in (step.passes * each for each in step.across)
        self._varies = self._varies or (smaller and (self._was_smaller or fits_across))
        is_square = fits_across and step.samples == self.stated
        self._square += times * is_square
        self._has_square = self._has_square or is_square
        if len(self._kinds) <= _MOST_KINDS:
            self._kinds.add(step.across)
        self._was_smaller = smaller
        self._known = self._known and fits and (step.samples > 0 or not step.passes)
        self._has_passes = self._has_passes or step.passes > 0
        self._most, self._largest = max(self._most, step.samples), max(self._largest, step.largest)

    @property
    def means(self) -> dict[str, str]:
        """Of the window, as far as the passes show it: what tells launches of one batch apart."""
        samples = sum(self._seen)
        size = self._numbers / samples if samples else 0.0
        passes = self._passes / self.forwards if self.forwards else 0.0
        return {SAMPLE_SIZE: f"{size:.6g}" if size else "", PASSES: f"{passes:.6g}" if passes else ""}

    @property
    def view(self) -> int:
        """How much of the model's forward passes this rank sees."""
        # Where a model has passes in some steps alone (a part of one, perhaps), only the script knows what a step took.
        is_share = self._is_part and len(set(self._seen)) > _MOST_KINDS
        is_known = self._known and self.forwards in (0, self._steps) and not is_share
        return NONE_SEEN if not self._has_passes else KNOWN if is_known else SEEN

    def window(self, groups: int, of_all: int) -> Window:
        """What counts. ``of_all``: KNOWN where every rank sees what a step took, so that all count alike."""
        said, seen = self._said[:groups], self._seen[:groups]
        said_sum, seen_sum = sum(said), sum(seen)
        if not self.stated:
            return Window(seen, max(self._most, 1), seen_sum, True) if of_all == KNOWN else Window(None, 1)
        fewer = 0 < seen_sum < said_sum
        # One row may hold several samples, and other models may take batches of their own.
        if self.view != KNOWN or (fewer and (self._largest == 1 or self._is_part)):
            return Window(said, self.stated)
        if seen_sum > said_sum:
            return Window(said, self.stated, seen_sum)
        # Of many, or far smaller ones: does the pass have all samples of its step? It does not show that.
        is_small = said_sum < _LARGEST_LAST * seen_sum
        has_smaller_last = is_small and self._most == self.stated and not self._by_step and not self._varies
        # Both dimensions fit in some steps, and in others the first alone. That one is perhaps the time, unless few of
        # the texts, which have many lengths, are as long as the batch.
        is_text = 2 * self._square <= self._steps and len(self._kinds) > _MOST_KINDS
        doubtful = (fewer and not has_smaller_last) or (self._has_square and self._square < self._steps and not is_text)
        return Window(seen, self._most if doubtful else self.stated, seen_sum, doubtful)


def samples_of(inputs: Iterable[Any], *, tokens: bool = False, time_major: bool = False) -> int:
    """Samples, or tokens, that a forward pass is given: the first dimension of its tensors, if they agree.

    Args:
        inputs: tensors are those that have a shape; of a mapping its values; those of a list may only disagree.
        tokens: all numbers of its largest tensor of whole numbers, unless those are one of each sample.
            time_major: a layer takes (time, batch, ...).

    Returns:
        0 where the inputs do not show it.
    """
    flat = _flat(inputs)
    if tokens:
        whole = [each for each in flat if str(getattr(each, "dtype", "")).endswith(("int32", "int64"))]
        most = max((tuple(map(int, each.shape)) for each in whole), key=math.prod, default=(0,))
        others = [each for each in flat if isinstance(each, (list, tuple)) or len(_shape(each)) > 1]
        are_lengths = len(most) == 1 and any(tuple(_shape(each)[:1]) in ((), most) for each in others)
        return 0 if are_lengths else math.prod(most)
    sizes = {int(length) for each in flat for length in _shape(each)[: 2 if time_major else 1]}
    listed = {int(_shape(one)[0]) for each in flat if isinstance(each, (list, tuple)) for one in each if _shape(one)}
    return sizes.pop() if len(sizes) == 1 and listed <= sizes else 0


def numbers_of(inputs: Iterable[Any]) -> int:
    """All that its tensors have."""
    return sum(math.prod(map(int, shape)) for shape in map(_shape, _flat(inputs)) if shape)


def is_time_major(modules: Iterable[Any]) -> bool:
    """Whether a layer among them takes (time, batch, ...)."""
    return any(getattr(each, "batch_first", True) is False for each in modules)


def is_time_lost(step: Step, output: Sequence[int]) -> bool:
    """Whether a pass's output begins with the second dimension of its input, and has the first no more: that was the
    time, of which an output for each sample is made.
    """
    begin = tuple(map(int, output[:2]))
    return begin not in ((), (1,)) and begin[0] in step.across and step.samples not in (0, *begin)


def across_of(inputs: Iterable[Any]) -> tuple[int, ...]:
    """The second dimensions of the tensors that have one, each once."""
    return tuple({int(shape[1]) for shape in map(_shape, _flat(inputs)) if len(shape) > 1})


def _flat(inputs: Iterable[Any]) -> list[Any]:
    return [one for each in inputs for one in (each.values() if isinstance(each, Mapping) else (each,))]


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None) or ()
