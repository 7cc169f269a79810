"""What counts as the samples of a window: the stated ones, those that the model was given, or steps."""

from types import SimpleNamespace
from typing import Any

import pytest
from gpu_runner_inside.meter.counting import KNOWN, SEEN, Count, Step, Window, samples_of

FULL, LAST, TWICE, BLIND, NONE = Step(1, 64, 64), Step(1, 9, 9), Step(2, 128, 64), Step(1, 0, 0), Step()


@pytest.mark.parametrize(
    ("stated", "accumulate", "watched", "steps", "expected"),
    [
        (64, 1, 1, [FULL, FULL], Window([64, 64], 64, 128)),
        (64, 1, 1, [FULL, LAST], Window([64, 9], 64, 73)),
        (4096, 1, 1, [FULL, LAST], Window([64, 9], 64, 73, by_input=True)),
        (32, 1, 1, [FULL, FULL], Window([32, 32], 32, 128)),  # doubtful: each sample may be given twice
        (64, 1, 1, [FULL, NONE], Window([64, 64], 64)),  # doubtful: a part of the model, perhaps
        (64, 1, 1, [NONE, NONE], Window([0, 0], 64, 0)),
        (64, 1, 2, [TWICE, TWICE], Window([128, 128], 128, 256)),  # the script leaves out that it accumulates
        (64, 2, 2, [TWICE, FULL], Window([128, 64], 128, 192)),
        (128, 1, 2, [TWICE, FULL], Window([128, 64], 128, 192)),
        (64, 1, 0, [TWICE, TWICE], Window([64, 64], 64)),  # more passes than it accumulates
        (64, 1, 1, [FULL, TWICE], Window([64, 64], 64)),
        (64, 1, 1, [FULL, BLIND], Window([64, 64], 64)),
        (0, 1, 1, [FULL, LAST], Window([64, 9], 64, 73, by_input=True)),
        (0, 1, 2, [TWICE, TWICE], Window([128, 128], 128, 256, by_input=True)),
        (0, 1, 0, [TWICE, TWICE], Window(None, 1)),
        (0, 1, None, [TWICE, TWICE], Window(None, 1)),
        (0, 1, 1, [FULL, BLIND], Window(None, 1)),
    ],
)
def test_what_counts(stated: int, accumulate: int, watched: int | None, steps: list[Step], expected: Window) -> None:
    """``watched``: passes of a step in the warm-up that only accumulated; a group is one step."""
    count = Count(stated * accumulate, accumulate)
    count.add(FULL, None)
    count.begin(watched)
    for step in steps:
        count.add(step, None)
        count.begin_group()
    assert count.window(2, count.view) == expected
    assert stated or count.window(2, SEEN) == Window(None, 1), "all ranks count alike"


def test_what_a_framework_has_given_counts_whatever_its_passes_show() -> None:
    count = Count(64, 1)
    for given, said in ((64, None), (9, 64)):
        count.add(TWICE, said, given)
        count.begin_group()
    assert (count.window(2, KNOWN), count.forwards) == (Window([64, 9], 64, 73), 2)
    count = Count(64, 1)
    assert (count.window(1, SEEN), count.view) == (Window([0], 64), 0)


def tensor(*shape: int, dtype: str = "torch.float32") -> Any:
    return SimpleNamespace(shape=shape, dtype=dtype)


IDS = tensor(8, 5, dtype="torch.int64")


@pytest.mark.parametrize(
    ("inputs", "expected", "ways", "samples"),
    [
        ([tensor(8, 3, 4), tensor(8)], 0, {}, 8),
        ([{"inputs": tensor(8, 3), "labels": tensor(8)}, 3, None, tensor()], 0, {}, 8),
        ([tensor(8, 5), tensor(1, 5)], 0, {}, 8),  # positions, for all alike
        ([tensor(1, 5)], 0, {}, 1),
        ([tensor(400, 5), tensor(2, 900)], 0, {}, 0),  # nodes and edges
        ([tensor(8, 5), tensor(5, 5)], 8, {}, 8),  # a mask
        ([[tensor(3, 8), tensor(3, 8)]], 2, {}, 0),  # a list of images
        ([tensor(35, 20)], 0, {"time_major": True}, 0),
        ([tensor(35, 20)], 20, {"time_major": True}, 20),
        ([IDS, tensor(8, dtype="torch.int64"), tensor(8, 1, 5, 5)], 0, {"tokens": True}, 40),
        ([IDS, tensor(8, dtype="torch.int64")], 8, {"tokens": True}, 8),
        ([tensor(8, 5)], 40, {"tokens": True}, 0),
    ],
)
def test_samples_that_inputs_show(inputs: list[Any], expected: int, ways: dict[str, bool], samples: int) -> None:
    assert samples_of(inputs, expected, **ways) == samples
