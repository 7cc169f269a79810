"""From a question to launches: which, in which order, under which names, and with which options; and what is none."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as how_often
from hypothesis import strategies as st

from runner.core.errors import UsageError
from runner.model.study import Launch
from runner.study import plan
from runner.study.directory import find, read
from runner.study.gather import list_studies
from tests.support.studies import on_disk, study


def test_repeats_go_forward_and_backward_so_that_no_point_has_a_place() -> None:
    found = plan.launches((1, 2), plan.parse_arms("full"), ((),), 6)
    assert "".join("AB"[each.gpus - 1] for each in found) == "ABBAABBAABBA"
    assert [each.place for each in found] == list(range(12))


@how_often(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True),
    st.sets(st.sampled_from(plan.ARMS)),
    st.lists(st.text(max_size=8), min_size=1, max_size=3, unique=True),
    st.integers(1, 4),
)
def test_every_point_is_launched_as_often_as_requested_under_a_name_of_its_own(
    gpus: list[int], arms: set[str], values: list[str], repeats: int
) -> None:
    named = plan.parse_arms(",".join(["full", *arms]))
    settings = tuple((("note", value),) for value in values)
    found = plan.launches(sorted(gpus), named, settings, repeats)
    points = [(each.gpus, each.arm, each.settings) for each in found]
    assert {points.count(point) for point in points} == {repeats}
    alone = [arm for arm in named if arm.startswith("solo")]
    assert len(set(points)) == (len(gpus) + len(alone)) * len(values)
    keys = [each.key for each in found]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[A-Za-z0-9._=+-]{1,160}", key) for key in keys)


def test_arms_that_one_process_can_alternate_between_are_one_launch() -> None:
    (launch,) = plan.launches((4,), plan.parse_arms("coordination,uncoupled"), ((),), 1)
    assert (launch.arm, launch.arms) == ("full", ("uncoupled", "coordination", "full"))
    assert plan.launch_options(launch, ()) == (("arms", "uncoupled,coordination,full"),)


def test_a_single_gpu_has_no_arms_within_but_those_of_its_own() -> None:
    found = plan.launches((1, 2), plan.parse_arms("solo,solo-hooks,uncoupled"), ((),), 1)
    assert [(each.gpus, each.arm, bool(each.arms)) for each in found] == [
        (1, "solo", False),
        (1, "solo-hooks", False),
        (1, "full", False),
        (2, "full", True),
    ]
    assert plan.launch_options(found[1], (("model", "m"),)) == (("model", "m"), ("hooks-at-one", "true"))


def test_where_nodes_are_fixed_every_gpu_runs_by_itself_once_a_repeat_one_of_each_node_at_a_time() -> None:
    """Nodes of 3 and of 2 GPUs, without and with hooks; each repeat begins with another GPU."""
    found = plan.launches((5,), ("full", "solo", "solo-hooks"), ((),), 3, solo_places=(3, 2))
    every = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    firsts = set()
    for repeat in (1, 2, 3):
        for arm in ("solo", "solo-hooks"):
            own = [each for each in found if (each.repeat, each.arm) == (repeat, arm)]
            assert sorted((each.node, each.device) for each in own) == every
        firsts.add(next(each.device for each in found if each.repeat == repeat and each.node == 0))
    assert len(firsts) > 1
    turns = plan.turns(found)
    assert [launch for turn in turns for launch in turn] == list(found)
    assert [len(turn) for turn in turns if turn[0].repeat == 1] == [2, 2, 2, 2, 1, 1, 1]
    for turn in turns:
        assert len({each.node for each in turn}) == len(turn)
        assert len({(each.arm, each.repeat) for each in turn}) == 1


def test_what_is_left_of_single_gpus_goes_side_by_side_and_nothing_else_does() -> None:
    found = plan.launches((2, 4), ("full", "solo"), ((),), 2, solo_places=(2, 2))
    left = [each for each in found if each.key not in (found[0].key, found[3].key)]
    for turn in plan.turns(left):
        assert len(turn) == 1 or {each.arm for each in turn} == {"solo"}
    assert [len(turn) for turn in plan.turns(plan.launches((1, 2), ("full", "solo"), ((),), 1))] == [1, 1, 1]
    assert plan.turns(()) == ()


def test_fewer_gpus_of_a_node_are_others_in_each_repeat() -> None:
    found = plan.launches((4,), ("full", "solo"), ((),), 2, solo_places=(2, 2), solo_gpus=1)
    places = [(each.repeat, each.node, each.device) for each in found if each.arm == "solo"]
    assert sorted(places) == [(1, 0, 0), (1, 1, 1), (2, 0, 1), (2, 1, 0)]
    of_eight = plan.launches((8,), ("full", "solo"), ((),), 3, solo_places=(8,), solo_gpus=3)
    assert len({each.device for each in of_eight if each.arm == "solo"}) == 8
    uneven = plan.launches((6,), ("full", "solo"), ((),), 2, solo_places=(4, 1), solo_gpus=2)
    places = [(each.repeat, each.node, each.device) for each in uneven if each.arm == "solo"]
    assert sorted(places) == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 2), (2, 0, 3), (2, 1, 0)]


def test_an_option_with_one_value_is_shared_and_others_are_combined() -> None:
    options = [("batch-size", "128,256"), ("model", "resnet18"), ("precision", "fp32,tf32"), ("model", "resnet50")]
    shared, settings = plan.parse_settings(options)
    assert shared == (("model", "resnet50"),)
    assert len(settings) == 4
    assert settings[0] == (("batch-size", "128"), ("precision", "fp32"))
    assert plan.parse_settings([]) == ((), ((),))


def test_a_whole_batch_is_shared_equally_or_refused() -> None:
    launch = Launch("k", 4, "full", 1, 0)
    assert plan.launch_options(launch, (("batch-size", "256"),), "batch-size") == (("batch-size", "64"),)
    with pytest.raises(UsageError, match="a whole batch of 254 cannot be shared by 4 GPUs"):
        plan.launch_options(launch, (("batch-size", "254"),), "batch-size")
    with pytest.raises(UsageError, match="the whole batch is not given"):
        plan.launch_options(launch, (), "batch-size")


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "1,x", "1, 2", "1.5", "1,1", "99999999", "१"])
def test_sizes_are_numbers_each_named_once_and_rise(text: str) -> None:
    assert plan.parse_sizes("16,1,4") == (1, 4, 16)
    with pytest.raises(UsageError, match=r"no list of sizes|names a size twice"):
        plan.parse_sizes(text)


def test_an_unknown_arm_and_a_value_that_is_empty_or_twice_there_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no arm 'ful'(.|\n)*mean 'full'"):
        plan.parse_arms("ful")
    for values in ("128,128", "128,"):
        with pytest.raises(UsageError, match="empty, or there twice"):
            plan.parse_settings([("batch-size", values)])
    with pytest.raises(UsageError, match="the values of api-key, and they look secret"):
        plan.parse_settings([("api-key", "a,b")])


# what a launch of study.json is changed to; whether it is one GPU alone, in one allocation
ALTERED: dict[str, tuple[bool, dict[str, Any]]] = {
    "a key that leads elsewhere": (False, {"key": "../../elsewhere"}),
    "a key that is no file name": (False, {"key": "g0001-full\0"}),
    "a key twice": (False, {"key": "g0002-full-r1"}),
    "no GPUs": (False, {"gpus": 0}),
    "a size that was not asked for": (False, {"gpus": 7}),
    "an arm that was not asked for": (False, {"arm": "solo"}),
    "arms that were not asked for": (False, {"arms": ["uncoupled", "full"]}),
    "a setting that was not asked for": (False, {"settings": [["a", "b"]]}),
    "a node before the first": (True, {"node": -1}),
    "more nodes than GPUs": (True, {"node": 2}),
    "more GPUs of a node than GPUs": (True, {"device": 2}),
    "a node without a GPU": (True, {"device": None}),
    "a GPU that another launch has": (True, {"device": 1}),
    "two GPUs": (True, {"gpus": 2}),
    "training as it is": (True, {"arm": "full"}),
}


@pytest.mark.parametrize("case", ALTERED)
def test_a_study_that_was_altered_is_refused(tmp_path: Path, case: str) -> None:
    """Directories are made and removed by what it says."""
    alone, changes = ALTERED[case]
    planned = plan.launches((2,), ("full", "solo"), ((),), 2, solo_places=(2,))
    asked = study((2,), 2, way="one-allocation", arms=("full", "solo"), launches=planned) if alone else study((1, 2), 2)
    of = on_disk(tmp_path, asked)
    assert find(of.path.name).study == of.study
    altered = json.loads((of.path / "study.json").read_text())
    altered["launches"][0] |= changes
    (of.path / "study.json").write_text(json.dumps(altered))
    assert read(of.path) is None
    for wanted in (of.path.name, of.name, of.path.name[:-3], str(of.path)):
        with pytest.raises(UsageError, match="not as `scale` wrote it"):
            find(wanted)
    assert list_studies() == ()
    (of.path / "study.json").write_text(json.dumps(altered | {"launches": []}))
    assert read(of.path) is None
