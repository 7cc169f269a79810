"""YAML is read strictly, and every error says file, line and key."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.core.strict_yaml import MAX_BYTES, load, parse


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 1
    label: str = ""


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    items: tuple[Inner, ...] = ()
    env: dict[str, str] = {}
    parts: dict[str, Inner] = {}


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\ninner:\n  cuont: 3\n", ("unknown key 'cuont'", "f.yaml:3: inner.cuont", "did you mean 'count'?")),
        ("name: x\nitems:\n- label: a\n- lable: b\n", ("f.yaml:4: items.1.lable",)),
        ("name: x\ninner:\n  count: many\n", ("f.yaml:3: inner.count", "int")),
        ("name: x\nenv:\n  A: a\n  B: 3\n", ("f.yaml:4: env.B", "str")),
        ("name: x\nparts:\n  a: {}\n  b: {count: 1}\n  c:\n    count: many\n", ("f.yaml:6: parts.c.count", "int")),
        ("inner: {}\n", ("name",)),
    ],
)
def test_what_does_not_fit_is_named_with_line_and_key(text: str, says: tuple[str, ...]) -> None:
    said = error(text)
    assert [words for words in says if words not in said] == []


def test_a_value_that_is_no_choice_is_refused_with_the_choices() -> None:
    class Choice(msgspec.Struct):
        items: tuple[Literal["none", "nil", "all"], ...] = ()
        one: Literal["a", "b"] | None = None

    for text, says in (("items: [nil, some]\n", "one of all, nil, none"), ("one: c\n", "one of a, b")):
        with pytest.raises(UsageError) as caught:
            parse(text.encode(), Choice, "f.yaml")
        assert caught.value.fix == says


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
        ("? " + "k" * 500_000 + "\n: 1\n", "a key of 500000 characters"),  # the most similar name took minutes
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


@pytest.mark.parametrize(
    ("name", "says"),
    [("none", "no such file"), ("", "cannot be read"), ("pipe", "a pipe is no"), ("open", "everybody's to write to")],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, says: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "open").touch()
    (tmp_path / "open").chmod(0o666)
    with pytest.raises(UsageError, match=says):
        load(tmp_path / name, Outer)
