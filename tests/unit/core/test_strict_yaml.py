"""YAML is read strictly, and every error says file, line and key."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.core.strict_yaml import MAX_BYTES, load, parse, read


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 1
    label: str = ""


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    items: tuple[Inner, ...] = ()
    env: dict[str, str] = {}


def error(text: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        parse(text.encode() if isinstance(text, str) else text, Outer, "f.yaml")
    return str(caught.value)


def test_core_scalars_are_those_of_yaml_1_2() -> None:
    class Any_(msgspec.Struct):
        v: dict[str, str | int | float | bool | None]

    text = "v: {a: yes, b: 1:30, c: 010, d: 0x10, e: 1e3, f: ~, g: true, h: '5', i: 1_000, j: on, k: 2026-11-21,"
    text += " l: 0o17}"
    assert parse(text.encode(), Any_, "f").v == {
        "a": "yes", "b": "1:30", "c": 10, "d": 16, "e": 1000.0, "f": None, "g": True, "h": "5", "i": "1_000", "j": "on",
        "k": "2026-11-21", "l": 15,
    }  # fmt: skip


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kept.yaml")
    with pytest.raises(UsageError, match="a pipe is no file to read"):
        read(tmp_path / "kept.yaml")


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_right_one() -> None:
    said = error("name: x\ninner:\n  cuont: 3\n")
    assert "unknown key 'cuont'" in said
    assert "f.yaml:3: inner.cuont" in said
    assert "did you mean 'count'?" in said


def test_an_unknown_key_in_a_list_of_structs() -> None:
    assert "f.yaml:4: items.1.lable" in error("name: x\nitems:\n- label: a\n- lable: b\n")


def test_a_wrong_type_names_line_and_key() -> None:
    said = error("name: x\ninner:\n  count: many\n")
    assert "f.yaml:3: inner.count" in said
    assert "int" in said


def test_a_value_that_is_no_choice_is_refused_with_the_choices() -> None:
    class Choice(msgspec.Struct):
        items: tuple[Literal["none", "nil", "all"], ...] = ()
        one: Literal["a", "b"] | None = None

    for text, says in (("items: [nil, some]\n", "one of all, nil, none"), ("one: c\n", "one of a, b")):
        with pytest.raises(UsageError) as caught:
            parse(text.encode(), Choice, "f.yaml")
        assert caught.value.fix == says


def test_a_missing_key_is_named() -> None:
    assert "name" in error("inner: {}\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nname: y\n", "f.yaml:2"),
        ("name: &a x\n", "anchors and aliases"),
        ("name: *a\n", "aliases"),
        ("name: !!python/object/apply:os.system [ls]\n", "tag"),
        ("name: !x y\n", "the tag"),
        ("name: x\n---\nname: y\n", "document"),
        ("- a\n- b\n", "f.yaml:1"),
        ("{1: {2: 3}}\n", "f.yaml:1"),
        ("? [a]\n: b\n", "plain string"),
        ("name: 'x\n", "not valid YAML"),
        ("name: x\n\tinner: y\n", "not valid YAML"),
        ("", "empty"),
        ("name: [" + "[" * 30 + "]" * 31, "nested deeper"),
        ("name: " + "9" * 50, "digits"),
        (b"name: \xff\xfe\n", "not UTF-8"),
        (b"name: x\n" + b"#" * MAX_BYTES, "larger than"),
    ],
)  # fmt: skip
def test_what_has_no_place_is_refused(text: str | bytes, says: str) -> None:
    assert says in error(text)


def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    began = time.monotonic()
    assert "aliases" in error("\n".join(layers))
    assert time.monotonic() - began < 5


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "none.yaml", Outer)
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path, Outer)
