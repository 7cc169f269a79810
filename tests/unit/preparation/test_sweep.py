"""The requests of a sweep: what a value may be, and where it is filled in."""

from __future__ import annotations

from typing import Any

import pytest

from runner.core.errors import UsageError
from runner.model.request import Request
from runner.preparation.sweep import combinations, filled_request, values_of

VALUES = {
    "0.1,0.2": ("0.1", "0.2"),
    "one": ("one",),
    r"a\,b,c": ("a,b", "c"),
    r"a\\,b\n\ ": ("a\\", r"b\n\ "),
    r"a\,": ("a,",),
    "x y,$HOME,'\"é,{b},a=b": ("x y", "$HOME", "'\"é", "{b}", "a=b"),
    "a,,b,": ("a", "", "b", ""),
}


@pytest.mark.parametrize("text", VALUES)
def test_values_have_commas_between_them_and_may_have_any_character(text: str) -> None:
    assert values_of([("n", text), ("m", "1")]) == {"n": VALUES[text], "m": ("1",)}


def test_each_combination_is_a_run_and_the_last_name_changes_fastest() -> None:
    made = combinations({"lr": ("1", "2"), "seed": ("a", "b")})
    assert [tuple(each.values()) for each in made.values()] == [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]
    assert list(made) == ["1", "2", "3", "4"]


WRONG: dict[str, tuple[dict[str, tuple[str, ...]], str]] = {
    "an empty value": ({"a": ("1", "")}, "an empty value"),
    "no value": ({"a": ()}, "an empty value"),
    "a value twice": ({"a": ("1", "1")}, "twice"),
    "a name that is none": ({"a b": ("1",)}, "no name"),
    "too many": ({name: tuple(map(str, range(11))) for name in "abc"}, "1331 runs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_sweep_can_have_is_refused(case: str) -> None:
    values, says = WRONG[case]
    with pytest.raises(UsageError, match="--sweep") as caught:
        combinations(values)
    assert says in caught.value.what


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        values_of([("a", "1"), ("a", "2")])


def test_only_names_of_the_sweep_are_filled_in_and_a_value_is_no_place_for_another() -> None:
    program = ("python", "t.py", "--lr={lr}", '{"lr": {lr}, "x": {other}, "y": {}}', "{{lr}}")
    request = Request(
        1, program=program, options=(("lr", "{lr}"),), env=(("A", "{seed} {lr}"), ("B", None)), job_name="x"
    )
    made = filled_request(request, {"lr": "{seed} $(id)", "seed": "é"}, "train.7")
    assert made.program[2:] == ("--lr={seed} $(id)", '{"lr": {seed} $(id), "x": {other}, "y": {}}', "{{seed} $(id)}")
    assert (made.options, made.env) == ((("lr", "{seed} $(id)"),), (("A", "é {seed} $(id)"), ("B", None)))
    assert (made.job_name, made.gpus) == ("train.7", 1)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("api-key", {"program": ("t.py", "{api-key}")}),
        ("x", {"program": ("t.py", "--password", "{x}")}),
        ("x", {"program": ("t.py", "x=1"), "arguments": ("--api-key={x}",)}),
        ("x", {"program": ("t.py",), "env": (("HF_TOKEN", "{x}"),)}),
        ("x", {"options": (("password", "{x}"),)}),
        ("https", {"options": (("data", "{https}"),)}),
    ],
)
def test_a_secret_tells_no_runs_from_one_another(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="they look secret"):
        filled_request(Request(1, **given), {name: f"{name}://me:planted@host/x"}, "a")
    others: dict[str, Any] = {
        "env": (("HF_TOKEN", "planted"), ("HF_HOME", None), ("DSN", "postgres://me:planted@db/run{x}")),
        "program": (
            "bash",
            "-c",
            "API_KEY=planted t.py --lr {x}",
            "https://me:planted@host/{x}",
            "--max-tokens",
            "{x}",
        ),
    }
    assert filled_request(Request(1, **others), {"x": "512"}, "a").program[-1] == "512", "beside a secret is none"


def test_a_name_that_stands_nowhere_and_a_name_of_a_job_that_is_too_long_are_refused() -> None:
    request = Request(1, program=("echo", "{lr}"))
    with pytest.raises(UsageError, match=r"there is no \{bs\} in the command"):
        filled_request(request, {"lr": "1", "bs": "2"}, "a")
    for name in (f"{'a' * 62}.12", "a/b.1"):
        with pytest.raises(UsageError, match="use 1 to 64 of A-Z"):
            filled_request(request, {"lr": "1"}, name)
