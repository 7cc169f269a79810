"""Strict YAML into typed structs, with errors that name file, line and key.

PyYAML's composer gives nodes with their marks; this module builds values from them by the YAML 1.2 core schema
(``yes`` is a string, ``010`` is ten, ``1:30`` is a string, not sixty-based) and refuses what has no place in a
site or recipe file: tags, anchors and aliases, duplicate keys, keys that are not strings, several documents,
files over one megabyte, nesting over 20 levels, keys over 1000 characters.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from runner.core import files, ownership
from runner.core.errors import UsageError
from runner.core.text import instead

T = TypeVar("T")

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_KEY = 1000

# libyaml where PyYAML has it, as its wheels do: ten times as fast, and both read the same language.
_Loader: type[yaml.SafeLoader | yaml.CSafeLoader] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_INT = re.compile(r"[-+]?[0-9]+\Z")
_HEX_OR_OCT = re.compile(r"0x[0-9a-fA-F]+\Z|0o[0-7]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), math.inf),
    "-.inf": -math.inf,
}

Marks = dict[tuple[str | int, ...], str]  # path of keys and indices -> FILE:LINE


@dataclass(frozen=True)
class Document:
    """A YAML document as plain values, where each stands, the text that they were read from (with its comments), and
    whose file that was; None of a text in no file.
    """

    value: Any
    marks: Marks
    name: str
    text: str = ""
    owner: int | None = None

    def over(self, base: Document) -> Document:
        """This document laid over another: mappings are merged key by key, all else is replaced."""
        marks = dict(base.marks)
        return Document(_merged(base.value, self.value, (), marks, self.marks), marks, self.name)


def load(path: Path, kind: type[T]) -> T:
    """Read one YAML document from ``path`` into the struct ``kind``. Raises UsageError: file:line, key."""
    return typed(read(path), kind)


def layered(paths: Iterable[Path], kind: type[T], check: Callable[[Path], object]) -> T:
    """As ``load``, from those of these files that are there, each laid over those after it; else the defaults. Raises
    as ``check``, of each that has been read: before that, one may not be there, or be closed.
    """
    documents = [read(path) for path in paths if _is_there(path)]
    for document in documents:
        check(Path(document.name))
    return typed(reduce(lambda base, document: document.over(base), reversed(documents)), kind) if documents else kind()


def _is_there(path: Path) -> bool:
    """Also a file in a directory that is closed to us, which ``read`` reports."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def parse(raw: bytes, kind: type[T], name: str) -> T:
    """As ``load``, from bytes; ``name`` stands for the file in errors."""
    return typed(document_of(raw, name), kind)


def read(path: Path, owners: Container[int] | None = None) -> Document:
    """Read one YAML document from ``path``; ``owners``: whose it must be, None for anybody's. Raises UsageError: the
    file is missing, unreadable or no YAML, another user's link leads there, others may write to it, or it is of none
    of the owners, nor of another user who is trusted.
    """
    real = files.resolved(path)
    if str(real) == os.devnull:
        return document_of(b"", str(path))
    try:
        with files.open_below(Path("/"), str(real)[1:]) as file:
            status = ownership.status_of(file.fileno())
            if ownership.others_may_write(status):
                what = f"this file is {ownership.open_to(status, path)}, and it says what runs as you"
                raise UsageError(what, where=str(path), fix=f"its owner closes it: chmod go-w {shlex.quote(str(path))}")
            owner = ownership.owner_of(status)
            is_shared = ownership.is_trusted(owner) and owner != os.geteuid()
            if owners is not None and owner not in owners and not is_shared:
                what = f"this file is user {owner}'s, and another user's file leads to it"
                raise UsageError(what, where=str(path), fix="copy the file that names it, if you trust its owner")
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        what, fix = f"cannot be read: {error.strerror}", ""
        if isinstance(error, PermissionError):
            fix = f"its owner can open it: chmod a+r {path}, and a+x for the directories above"
        elif isinstance(error, FileNotFoundError | files.UnusableFileError) and path.is_fifo():
            # Also one of a shell's `<(...)`, which has no name.
            what, fix = "a pipe is no file to read", "put a file in its place"
        elif isinstance(error, FileNotFoundError):
            what = "no such file"
        raise UsageError(what, where=str(path), fix=fix) from None
    return replace(document_of(raw, str(path)), owner=owner)


def typed(document: Document, kind: type[T], *, at: str = "", apart: Collection[str] = ()) -> T:
    """A document as the struct ``kind``.

    Args:
        at: the key of what is converted, an empty mapping where it is not given; empty for the whole document.
        apart: keys of the document that are converted by themselves.

    Raises:
        UsageError: it does not fit; says file:line and key.
    """
    value = document.value.get(at, {}) if at else document.value
    if apart and isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in apart}
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        if not document.marks:
            raise UsageError("the file is empty", where=document.name) from None
        raise _explain(str(error), kind, document, (at,) if at else (), apart, value) from None


def _merged(base: Any, over: Any, path: tuple[str | int, ...], marks: Marks, over_marks: Marks) -> Any:
    """``over`` laid over ``base``; ``marks``, the base's, come to hold where every value of the result stands."""
    if isinstance(base, dict) and isinstance(over, dict):
        marks.update({path: over_marks[path]} if path in over_marks else {})
        laid = {key: _merged(base.get(key), value, (*path, key), marks, over_marks) for key, value in over.items()}
        return base | laid
    for old in [mark for mark in marks if mark[: len(path)] == path]:
        del marks[old]
    marks.update({mark: where for mark, where in over_marks.items() if mark[: len(path)] == path})
    return over


def document_of(raw: bytes, name: str) -> Document:
    """One YAML document from bytes; ``name`` stands for the file in errors. Raises UsageError: it is no YAML, or holds
    what has no place in such a file.
    """
    if len(raw) > MAX_BYTES:
        raise UsageError(f"larger than {MAX_BYTES} bytes", where=name)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(f"not UTF-8: byte 0x{raw[error.start]:02x}", where=f"{name}:{line}") from None
    try:
        loader = _Loader(text)
        try:
            _refuse_references(text, name)
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except RecursionError:
        raise UsageError(f"nested deeper than {MAX_DEPTH} levels", where=name) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"not valid YAML: {error.problem or error.context}", where=f"{name}:{line}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"not valid YAML: {error}", where=name) from None
    marks: Marks = {}
    if node is None:  # nothing but comments
        return Document({}, marks, name, text)
    return Document(_build(node, (), marks, name), marks, name, text)


def _refuse_references(text: str, name: str) -> None:
    """Refuse anchors, aliases and tags while scanning, so that no alias is ever expanded."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        where = f"{name}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError("anchors and aliases are not allowed", where=where, fix="write the value out")
        tag = getattr(event, "tag", None)
        if tag:
            raise UsageError(f"the tag {tag} is not allowed", where=where, fix="leave the tag out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise UsageError(f"nested deeper than {MAX_DEPTH} levels", where=where)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _build(node: yaml.Node, path: tuple[str | int, ...], marks: Marks, name: str) -> Any:
    marks[path] = f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, marks[path])
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, index), marks, name) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    built: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or not isinstance(_scalar(key_node, where), str):
            raise UsageError("a key must be a plain string", where=where)
        key = key_node.value
        if len(key) > MAX_KEY:
            raise UsageError(f"a key of {len(key)} characters, more than {MAX_KEY}", where=where)
        if key in built:
            raise UsageError(f"the key {key!r} stands twice", where=where, fix="keep one of them")
        here = (*path, key)
        built[key] = _build(value_node, here, marks, name)
        marks[here] = where
    return built


def _scalar(node: yaml.ScalarNode, where: str) -> Any:
    text: str = node.value
    if node.style:  # quoted, literal or folded: always a string
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > 40:
        if _INT.match(text):
            raise UsageError("a number of more than 40 digits", where=where)
        return text
    if _INT.match(text):
        return int(text)
    if _HEX_OR_OCT.match(text):
        return int(text, 0)
    return float(text) if _FLOAT.match(text) else text


# Of msgspec's messages; compiled where there is one.
_UNKNOWN = r"Object contains unknown field `(?P<field>[^`]*)`"
_PATH = r" - at `(?:key in )?\$(?P<path>[^`]*)`\Z"
_STEP = r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]"


def _explain(
    message: str, kind: Any, document: Document, below: tuple[str, ...], apart: Collection[str], value: Any
) -> UsageError:
    """Turn msgspec's message into what, file:line, key, and the most similar valid name."""
    match = re.search(_PATH, message)
    what, fix = message[: match.start()] if match else message, ""
    steps = re.findall(_STEP, match["path"]) if match else []
    path: tuple[str | int, ...] = below
    for key, index in steps:
        if index == "...":  # some value of a mapping: msgspec does not say which
            value, name = _narrowed(value, path[len(below) :], kind, message)
            path = (*path, name)
        else:
            path = (*path, key or int(index))
    node = _type_at(kind, [key or index for key, index in steps])
    unknown = re.match(_UNKNOWN, message)
    if unknown:
        fields = node.fields if isinstance(node, msgspec.inspect.StructType) else ()
        names = sorted((*(field.encode_name for field in fields), *(() if path else apart)))
        path = (*path, unknown["field"])
        what = f"unknown key {unknown['field']!r}"
        fix = instead(unknown["field"], names, f"known keys: {', '.join(names)}")
    elif what.startswith("Invalid enum value "):
        fix = f"one of {', '.join(map(str, node.values if isinstance(node, msgspec.inspect.LiteralType) else ()))}"
    marks = document.marks
    where = next((marks[path[:cut]] for cut in range(len(path), -1, -1) if path[:cut] in marks), f"{document.name}:1")
    dotted = ".".join(map(str, path))
    return UsageError(what, where=where + (f": {dotted}" if dotted else ""), fix=fix)


def _narrowed(value: Any, path: tuple[str | int, ...], kind: Any, message: str) -> tuple[Any, str]:
    """The value with the mapping at this path reduced to its first entry of which msgspec says the same; its key."""

    def only(key: str, part: Any, steps: tuple[str | int, ...]) -> Any:
        if not steps:
            return {key: part[key]}
        if isinstance(part, dict):
            return part | {steps[0]: only(key, part[steps[0]], steps[1:])}
        return [only(key, each, steps[1:]) if place == steps[0] else each for place, each in enumerate(part)]

    mapping = value
    for step in path:
        mapping = mapping[step]
    for key in mapping:
        narrowed = only(key, value, path)
        try:
            msgspec.convert(narrowed, kind, strict=True)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return narrowed, key
    return value, "..."


def _type_at(kind: Any, path: list[str]) -> Any:
    """What msgspec's path leads to; a step into a mapping or list may be of any name."""
    node: Any = msgspec.inspect.type_info(kind)
    for step in (*path, None):
        if isinstance(node, msgspec.inspect.UnionType):
            node = next((t for t in node.types if not isinstance(t, msgspec.inspect.NoneType)), node)
        if step is not None and isinstance(node, msgspec.inspect.StructType):
            node = next((field.type for field in node.fields if field.encode_name == step), None)
        elif step is not None and isinstance(node, msgspec.inspect.DictType):
            node = node.value_type
        elif step is not None and isinstance(node, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            node = node.item_type
    return node
