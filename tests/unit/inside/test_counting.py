"""What counts as the samples of a window: the stated ones, those that the model was given, or steps."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_runner_inside.meter.counting import KNOWN, SEEN, Count, Step, Window, is_time_lost, numbers_of, samples_of

TEXTS = [Step(1, 64, 64, (length,)) for length in (9, 20, 31, 64)]
FULL, LAST, TWICE, BLIND, NONE = Step(1, 64, 64), Step(1, 9, 9), Step(2, 128, 64), Step(1, 0, 0), Step()


@pytest.mark.parametrize(
    ("stated", "accumulate", "watched", "steps", "expected"),
    [
        (64, 1, 1, [FULL, FULL], Window([64, 64], 64, 128)),
        (64, 1, 1, [*[FULL] * 60, LAST], Window([*[64] * 60, 9], 64, 3849)),
        (64, 1, 1, [*[FULL] * 10, LAST], Window([*[64] * 10, 9], 64, 649, by_input=True)),  # or of two kinds of steps
        (4096, 1, 1, [FULL, LAST], Window([64, 9], 64, 73, by_input=True)),
        (32, 1, 1, [FULL, FULL], Window([32, 32], 32, 128)),  # doubtful: each sample may be given twice
        (64, 1, 1, [FULL, LAST, LAST, FULL], Window([64, 9, 9, 64], 64, 146, by_input=True)),  # what is hard, perhaps
        (64, 1, 1, [LAST, LAST], Window([9, 9], 9, 18, by_input=True)),  # the whole batches were in the warm-up
        (64, 1, 1, [FULL, Step(1, 9, 9, (9, 64))], Window([64, 9], 64, 73, by_input=True)),  # (time, batch), a mask
        (64, 1, 1, [Step(1, 64, 64, (64,))] * 2 + [Step(1, 64, 64, (9,))], Window([64] * 3, 64, 192, by_input=True)),
        (64, 1, 1, [Step(1, 32, 32, (64,))] * 2, Window([32, 32], 32, 64, by_input=True)),  # the length was stated
        (64, 1, 1, [Step(1, 128, 128, (64,))] * 2, Window([64, 64], 64, 256)),  # doubtful
        (64, 1, 1, TEXTS, Window([64] * 4, 64, 256)),  # a text as long as the batch
        (64, 1, 1, [Step(1, 64, 64, (64,))] + [Step(1, 64, 64, (9,))] * 3, Window([64] * 4, 64, 256, by_input=True)),
        (64, 1, 1, [FULL, NONE], Window([64, 64], 64)),  # doubtful: a part of the model, perhaps
        (64, 1, 1, [NONE, NONE], Window([0, 0], 64, 0)),
        (64, 1, 2, [TWICE, TWICE], Window([64, 64], 64, 256)),  # an accumulation that is left out, or adversarial
        (64, 2, 2, [*[TWICE] * 30, FULL], Window([*[128] * 30, 64], 128, 3904)),  # an epoch ends with fewer passes
        (64, 4, 4, [TWICE, FULL], Window([128, 64], 128, 192, by_input=True)),
        (128, 1, 2, [TWICE, TWICE], Window([128, 128], 128, 256)),
        (256, 1, 4, [TWICE, FULL], Window([128, 64], 128, 192, by_input=True)),
        (64, 1, 4, [FULL, Step(2, 96, 64)], Window([64, 64], 64, 160)),  # a probe of the gradient, in the window alone
        (16, 1, 1, [Step(1, 1, 1)] * 2, Window([16, 16], 16)),  # rows of several samples
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
    assert count.window(len(steps), count.view) == expected
    assert stated or count.window(len(steps), SEEN) == Window(None, 1), "all ranks count alike"


@pytest.mark.parametrize(
    ("steps", "size", "passes"),
    [([FULL] * 3, "", "1"), ([Step(2, 64, 32, numbers=640)] * 2 + [Step(1, 32, 32, numbers=960)], "14", "1.66667"),
     ([NONE], "", ""), ([Step(1, 0, 0, numbers=9), Step(1, 2, 2, numbers=9)], "4.5", "1")],
)  # fmt: skip
def test_means_of_a_window(steps: list[Step], size: str, passes: str) -> None:
    count = Count(0, 1)
    count.begin(1)
    for step in steps:
        count.add(step, None)
    count.begin_group()
    assert [*count.means.values()] == [size, passes]
    assert numbers_of([SimpleNamespace(shape=(2, 3)), {"a": SimpleNamespace(shape=(4,))}, 1, None]) == 10


@pytest.mark.parametrize(
    "steps", [[FULL] * 5 + [LAST] + [FULL] * 2, [FULL] + [LAST] * 3, [TWICE] * 4, [NONE] * 3 + [FULL]]
)
def test_equal_steps_of_a_group_count_as_one_by_one(steps: list[Step]) -> None:
    at_once, singly = Count(64, 1), Count(64, 1)
    for step in steps:
        at_once.add(step, None)
        singly.add(replace(step), None)
    for count in (at_once, singly):
        count.begin_group()
    assert at_once.forwards == singly.forwards
    assert at_once.window(1, at_once.view) == singly.window(1, singly.view)


def test_what_a_framework_has_given_counts_whatever_its_passes_show() -> None:
    count = Count(64, 1)
    for given in (*[64] * 60, 9):
        count.add(TWICE, None, (given, 64))
        count.begin_group()
    assert (count.window(61, KNOWN), count.forwards) == (Window([*[64] * 60, 9], 64, 3849), 61)
    count = Count(64, 1)
    assert (count.window(1, SEEN), count.view) == (Window([0], 64), 0)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(FULL, 64), (LAST, 9)], Window([64, 9], 64, 73)),
        ([(FULL, 40), (FULL, 64)], Window([40, 64], 64, 128)),  # padded, which only the script knows
        ([(FULL, 640), (FULL, None)], Window([64, 64], 64, 128, by_input=True)),
    ],
)
def test_what_the_script_says_of_a_step_counts_unless_the_model_was_given_fewer(
    steps: list[tuple[Step, int | None]], expected: Window
) -> None:
    count = Count(64, 1)
    for step, said in steps:
        count.add(step, said)
        count.begin_group()
    assert count.window(len(steps), count.view) == expected


def tensor(*shape: int, dtype: str = "torch.float32") -> Any:
    return SimpleNamespace(shape=shape, dtype=dtype)


IDS = tensor(8, 5, dtype="torch.int64")


@pytest.mark.parametrize(
    ("inputs", "ways", "samples"),
    [
        ([tensor(8, 3, 4), tensor(8)], {}, 8),
        ([{"inputs": tensor(8, 3), "labels": tensor(8)}, 3, None, tensor()], {}, 8),
        ([tensor(1, 5)], {}, 1),
        ([tensor(1, 128), tensor(128, 8)], {}, 0),  # a batch of one, and positions
        ([tensor(400, 5), tensor(2, 900)], {}, 0),  # nodes and edges
        ([[tensor(3, 8), tensor(3, 8)]], {}, 0),  # a list of images
        ([tensor(8, 3), [tensor(8), tensor(8, 2)]], {}, 8),
        ([(tensor(70, 8), tensor(9)), tensor(2, 16, 16)], {}, 0),  # packed sequences, and a state of two layers
        ([tensor(35, 20)], {"time_major": True}, 0),
        ([IDS, tensor(8, dtype="torch.int64"), tensor(8, 1, 5, 5)], {"tokens": True}, 40),
        ([tensor(8, 5)], {"tokens": True}, 0),
        ([tensor(8, 50, 3), tensor(8, dtype="torch.int64")], {"tokens": True}, 0),  # frames, and their lengths
        ([(IDS, tensor(8, dtype="torch.int64")), tensor(8, dtype="torch.int64")], {"tokens": True}, 0),  # and labels
        ([tensor(40, dtype="torch.int64"), tensor(9, dtype="torch.int32")], {"tokens": True}, 40),  # packed
    ],
)
def test_samples_that_inputs_show(inputs: list[Any], ways: dict[str, bool], samples: int) -> None:
    assert samples_of(inputs, **ways) == samples


@pytest.mark.parametrize(
    ("given", "output", "lost"),
    [
        ((64, 16), (16, 4), True),  # (time, batch), and a class for each sample
        ((64, 16), (16,), True),
        ((64, 16), (64, 4), False),
        ((64, 16), (64, 16, 50), False),
        ((64, 16), (16, 64, 50), False),  # time first in the output alone, as CTC's loss takes it
        ((64, 16), (1024, 50), False),
        ((64, 16), (), False),
        ((64, 1), (1,), False),  # a loss of images of one channel
        ((0, 16), (16, 4), False),
    ],
)
def test_output_without_the_first_dimension_shows_that_it_was_the_time(
    given: tuple[int, int], output: tuple[int, ...], *, lost: bool
) -> None:
    samples, across = given
    assert is_time_lost(Step(1, samples, samples, (across,)), output) is lost


def test_time_as_long_as_the_batch_of_the_warm_up_is_a_doubt() -> None:
    count = Count(64, 1)
    count.add(TEXTS[-1], None)
    count.begin(1)
    count.add(TEXTS[0], None)
    assert count.window(1, KNOWN) == Window([64], 64, 64, by_input=True)
