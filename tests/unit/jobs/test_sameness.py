"""Whether runs are the same: for each fact a run that differs in it, and the questions that it decides."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from runner.jobs.comparison import FACTS, Ran, copy_among, differences, facts_for, first_difference, unlike
from runner.model.figure import figure_of
from runner.model.plan import PlannedImage
from runner.model.verdict import Verdict
from tests.support.plans import PLAN


def with_verdict(**of_verdict: Any) -> dict[str, Any]:
    return {"figure": figure_of(Verdict("measured", images_per_s=400.0, **of_verdict))}


PROGRAM = ("python3", "main.py", "--model", "resnet50", "--precision=fp32")
ONE = Ran(
    plan=msgspec.structs.replace(PLAN, program=PROGRAM, recipe="r", tasks_per_node=(2, 2), gpus_per_node=2),
    batch=10,
    **with_verdict(),
    code={"program": "sha256 a", "commit": "c0ffee", "changes": "none"},
)
# What differs -> the keys of all facts that tell it.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "recipe": ({"recipe": "another"}, "recipe"),
    "program of no recipe": ({"recipe": "", "program": ("python3", "-u", "-m", "x.train")},
                             "recipe program model precision command"),
    "model": ({"program": ("python3", "main.py", "--model", "vgg16", "--precision=fp32")}, "model command"),
    "precision": ({"program": (*PROGRAM[:-1], "--precision", "bf16")}, "precision command"),
    "image size": ({"program": (*PROGRAM, "--image-size", "299")}, "image-size command"),
    "batch": ({"batch": 20}, "batch"),
    "nodes": ({"tasks_per_node": (2, 1)}, "gpus placement"),
    "type of GPU": ({"gpu_type": "v100"}, "device"),
    "site": ({"site": "elsewhere"}, "site"),
    "arm": ({"arms": ("uncoupled",)}, "arm"),
    "unit": (with_verdict(unit="tokens"), "unit"),
    "synchronisation": (with_verdict(synchronisation="not-examined"), "proof"),
    "claim": (with_verdict(demonstration="CPU"), "claim"),
    "image": ({"image": PlannedImage("i", "sha256:other", "/i")}, "image"),
    "variable": ({"env": (("NCCL_ALGO", "Ring"),)}, "env"),
    "variable taken away": ({"unset": ("NCCL_ALGO",)}, "env"),
    "runtime": ({"runtime": "another"}, "runtime"),
    "copied code": ({"code": {**ONE.code, "program": "sha256 b"}}, "copy"),
    "commit": ({"code": {**ONE.code, "commit": "f00d"}}, "commit"),
    "changes": ({"code": {**ONE.code, "changes": "x"}}, "changes"),
}  # fmt: skip
DECIDES = {
    "compare": "recipe model precision image-size batch gpus placement device site arm unit proof claim",
    "curve": "recipe program model precision image-size batch device site proof claim",
    "repeats": "placement site command image env runtime copy commit changes",
    "study": "unit image copy commit changes",
    "point": "command",
}


def with_changes(changes: dict[str, Any]) -> Ran:
    of_plan = {name: value for name, value in changes.items() if name in PLAN.__struct_fields__}
    own = {name: value for name, value in changes.items() if name not in of_plan}
    return dataclasses.replace(ONE, plan=msgspec.structs.replace(ONE.plan, **of_plan), **own)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("question", DECIDES)
def test_a_difference_counts_for_the_questions_that_it_decides(case: str, question: Any) -> None:
    changes, keys = CASES[case]
    other = with_changes(changes)
    wanted = [fact.key for fact in FACTS if fact.key in keys.split() and fact.key in DECIDES[question].split()]
    assert [fact.key for fact, _, _ in differences(question, [ONE], [other, other])] == wanted
    assert [fact.key for fact in unlike(question, [ONE, ONE, other])] == wanted
    first = first_difference(question, ONE, other)
    assert (first.key if first else None) == next(iter(wanted), None)
    assert first_difference(question, ONE, ONE) is None


def test_every_fact_decides_something_and_has_a_case() -> None:
    assert {fact.key for fact in FACTS} == {key for _, keys in CASES.values() for key in keys.split()}
    for question, keys in DECIDES.items():
        assert {fact.key for fact in facts_for(question)} == set(keys.split())  # type: ignore[arg-type]


def test_what_a_run_did_not_record_is_no_difference_where_only_records_count() -> None:
    unknown = dataclasses.replace(ONE, code={})
    assert first_difference("study", ONE, unknown, recorded=True) is None
    assert first_difference("repeats", ONE, unknown) is not None


def test_the_first_copy_is_named() -> None:
    one, other = ("41", "t", 1.0), ("42", "t", 1.0)
    assert copy_among([("a", one), ("b", None), ("c", other), ("d", None), ("e", one)]) == ("a", "e")
    assert copy_among([("a", one), ("b", other), ("c", None), ("d", None)]) is None
