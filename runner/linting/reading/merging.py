"""What is known of a value that is made from two others. Pure."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from runner.linting import names
from runner.linting.trace import ITSELF, Value, text_of, union


def joined(one: Value, other: Value) -> Value:
    """What is known of a value that is one of two."""
    tags = (one.tags | other.tags) - {"all_keys"} | (one.tags & other.tags & {"all_keys"})
    items: tuple[tuple[Any, Value], ...] = ()
    if one.items and [key for key, _ in one.items] == [key for key, _ in other.items]:
        items = tuple((key, joined(value, dict(other.items)[key])) for key, value in one.items)
    elif "all_keys" in tags:
        items = tuple({**dict(one.items), **dict(other.items)}.items())
    elif not one.items or not other.items:
        items = one.items or other.items
    return Value(
        tags,
        one.path or other.path,
        one.constant if one.constant == other.constant else ...,
        one.reference if one.reference is not None else other.reference,
        items,
    )


def element_of(several: Value) -> Value:
    """What is known of each element of a list, while a loop goes over it."""
    names_alone = several.items and all(isinstance(value.constant, str) for _, value in several.items)
    tags = several.tags - ITSELF
    return Value(tags | {"one_of"}, items=several.items) if names_alone else Value(tags)


def dictionary(pairs: list[tuple[Any, Value]]) -> Value:
    """What is known of a dictionary; the key None stands for another one that is spread into it."""
    items: dict[Any, Value] = {}
    complete = True
    for key, value in pairs:
        if key is None:
            items.update(value.items)
            complete &= value.has("all_keys")
        elif isinstance(key, str):
            items[key] = value
        else:
            complete = False
    tags = union(value for _, value in pairs).tags
    return Value(tags | ({"all_keys"} if complete else frozenset()), items=tuple(items.items()))


def combined(operator: ast.operator, left: Value, right: Value) -> Value:
    """What is known of ``left operator right``."""
    if isinstance(left.constant, str) or isinstance(right.constant, str):
        if isinstance(operator, ast.Mod):
            return text_of(replace(right, tags=right.tags | left.tags))
        if isinstance(left.constant, str) and left.constant.lower().endswith(("cuda:", "gpu:")):
            return Value(right.tags)
        return text_of(union((left, right)))
    tags = (left.tags | right.tags) - ITSELF
    by_rank = left.has(names.EXACT) or (left.has(names.RANK) and right.has(names.LOCAL_SIZE))
    is_local = right.has(names.LOCAL_RANK) and right.has(names.EXACT)
    if isinstance(operator, ast.Add) and is_local and left.constant is ...:
        return Value(frozenset((names.RANK, names.EXACT)))  # the node's first rank and the local rank
    if isinstance(operator, ast.Mod) and by_rank and not right.has(names.SIZE):
        return Value(frozenset((names.LOCAL_RANK, names.EXACT)))  # the rank by the GPUs of a node
    if isinstance(operator, ast.Div | ast.FloorDiv) and right.has(names.SIZE):
        tags |= {"over_size"}
        if left.has("over_size") or left.has(names.SIZE):
            tags -= {"over_size"}
    if isinstance(operator, ast.Mult) and left.has("over_size") and right.has(names.SIZE):
        tags -= {"over_size"}
    return Value(tags)
