"""What is known of an expression: one function for each kind."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import reduce

from runner.linting import names
from runner.linting.reading.assignments import assign
from runner.linting.reading.calls import call
from runner.linting.reading.conditions import NOT_ROOT, ROOT, flag, guards_of
from runner.linting.reading.functions import call_function
from runner.linting.reading.imports import imported, refer
from runner.linting.reading.merging import combined, dictionary, element_of, joined
from runner.linting.reading.outside import variables
from runner.linting.reading.reader import Evaluate, Reader
from runner.linting.reading.scope import Class, Frame, Function, Module
from runner.linting.reading.syntax import dotted
from runner.linting.trace import ITSELF, NOTHING, SCALARS, Value, text_of, union

_BUILTINS = frozenset(
    ("print", "open", "range", "enumerate", "zip", "len", "int", "float", "str", "min", "max", "getattr", "dict")
)


def _constant(reader: Reader, node: ast.Constant, _frame: Frame) -> Value:
    if isinstance(node.value, str):
        if len(node.value) < 200:
            reader.trace.texts.add(node.value)
        if node.value.lower().startswith(("cuda:", "/gpu:", "gpu:", "/device:gpu:")) and node.value[-1:].isdigit():
            return Value(frozenset(("gpu0",)), constant=node.value)
    return Value(constant=node.value)


def _name(_reader: Reader, node: ast.Name, frame: Frame) -> Value:
    looked: Frame | None = frame
    while looked is not None:
        if node.id in looked.values:
            return looked.values[node.id]
        looked = looked.above
    if node.id in frame.module.values:
        return frame.module.values[node.id]
    if node.id in _BUILTINS:
        return Value(path=f"builtins.{node.id}")
    return Value(names.meaning(node.id))


def _attribute(reader: Reader, node: ast.Attribute, frame: Frame) -> Value:
    path = dotted(node)
    if path and path in frame.values:
        return frame.values[path]
    base = reader.value(node.value, frame)
    if base.path or isinstance(base.reference, Module):
        return _of_a_module(reader, base, node.attr)
    if isinstance(base.reference, Class):
        method = base.reference.method(node.attr)
        if method is not None and not base.numbered("instance"):
            return Value(reference=method)
        if method is not None and method.is_property:
            return call_function(reader, method, (), (), base)
    if node.attr in reader.attributes and not base.has("wrapped_model"):
        return reader.attributes[node.attr]
    return _of_its_owner(base, node.attr)


def _of_a_module(reader: Reader, base: Value, name: str) -> Value:
    """A name of a module: of the source, or of what it imports."""
    if isinstance(base.reference, Module):
        inner = base.reference.values.get(name)
        refer(reader, inner)
        if inner is not None:
            return inner
    return imported(reader, f"{base.path}.{name}")


def _of_its_owner(base: Value, name: str) -> Value:
    """What an attribute has from the value that it belongs to, where nothing else is known of it."""
    tags = base.tags - SCALARS
    if name == "module" and base.has("wrapped_model"):
        inner = frozenset(f"raw:{tag.partition(':')[2]}" for tag in base.numbered("model"))
        return Value(tags - {"wrapped_model"} | inner)
    if name in ("state_dict", "parameters", "module", "sampler", "dataset"):
        return replace(base, tags=tags, constant=..., items=())
    return Value(tags | names.meaning(name))


def _subscript(reader: Reader, node: ast.Subscript, frame: Frame) -> Value:
    base, key = reader.value(node.value, frame), reader.value(node.slice, frame)
    if base.path == "os.environ":
        return variables(reader, key)
    for held, value in base.items:
        if key.constant is not ... and held == key.constant and type(held) is type(key.constant):
            return value
    if key.has("one_of") and base.items:
        named: dict[object, Value] = dict(base.items)
        chosen = [named[each.constant] for _, each in key.items if each.constant in named]
        if chosen:
            return reduce(joined, chosen)
    if isinstance(key.constant, str):
        if key.constant in reader.attributes:
            return reader.attributes[key.constant]
        return Value((base.tags - SCALARS) | names.meaning(key.constant))
    fixed = isinstance(key.constant, int)
    return Value((base.tags | key.tags) - ITSELF | ({"fixed"} if fixed else frozenset()))


def _tuple(reader: Reader, node: ast.Tuple | ast.List, frame: Frame) -> Value:
    values = [reader.value(each, frame) for each in node.elts]
    if not values:
        return Value(constant=())
    return replace(union(values), items=tuple(enumerate(values)) if len(values) <= 16 else ())


def _dict(reader: Reader, node: ast.Dict, frame: Frame) -> Value:
    keys = [reader.value(key, frame) if key else NOTHING for key in node.keys]
    values = [reader.value(each, frame) for each in node.values]
    return dictionary(
        [
            (None if key is None else known.constant, value)
            for key, known, value in zip(node.keys, keys, values, strict=True)
        ]
    )


def _joined_text(reader: Reader, node: ast.JoinedStr, frame: Frame) -> Value:
    head = node.values[0].value if node.values and isinstance(node.values[0], ast.Constant) else ""
    inner = union(reader.value(each.value, frame) for each in node.values if isinstance(each, ast.FormattedValue))
    for each in node.values:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            reader.trace.texts.add(each.value[:200])
    if isinstance(head, str) and head.lower().endswith(("cuda:", "gpu:")):
        return Value(inner.tags)
    before = node.values[-2] if len(node.values) == 3 else None
    if isinstance(before, ast.Constant) and before.value == ":":
        return Value(inner.tags)  # a device: f"{kind}:{number}"
    return text_of(inner)


def _operation(reader: Reader, node: ast.BinOp, frame: Frame) -> Value:
    left, right = reader.value(node.left, frame), reader.value(node.right, frame)
    return combined(node.op, left, right)


def _compare(reader: Reader, node: ast.Compare, frame: Frame) -> Value:
    for each in (node.left, *node.comparators):
        reader.value(each, frame)
    return flag(reader, node, frame)


def _bool_operation(reader: Reader, node: ast.BoolOp, frame: Frame) -> Value:
    values = []
    with reader.guarded(""):
        for each in node.values:
            values.append(reader.value(each, frame))
            inside, outside = guards_of(reader, each, frame)
            guard = inside if isinstance(node.op, ast.And) else outside
            if guard:
                reader.guards = (*reader.guards, guard)
    whole = flag(reader, node, frame)
    return whole if whole.tags else union(values)


def _unary(reader: Reader, node: ast.UnaryOp, frame: Frame) -> Value:
    value = reader.value(node.operand, frame)
    if isinstance(node.op, ast.Not):
        return flag(reader, node, frame)
    if isinstance(value.constant, int | float) and isinstance(node.op, ast.USub):
        return Value(constant=-value.constant)
    return Value(value.tags)


def _if_expression(reader: Reader, node: ast.IfExp, frame: Frame) -> Value:
    reader.value(node.test, frame)
    inside, outside = guards_of(reader, node.test, frame)
    with reader.guarded(inside):
        then = reader.value(node.body, frame)
    with reader.guarded(outside):
        other = reader.value(node.orelse, frame)
    whole = replace(joined(then, other), constant=...)
    empty = (None, False, 0, "")
    if (inside == ROOT and other.constant in empty) or (inside == NOT_ROOT and then.constant in empty):
        return replace(whole, tags=whole.tags | {"root_only"})
    if inside == ROOT and isinstance(node.orelse, ast.List | ast.Tuple) and not node.orelse.elts:
        return replace(whole, tags=whole.tags | {"root_only"})
    return whole


def _named(reader: Reader, node: ast.NamedExpr, frame: Frame) -> Value:
    value = reader.value(node.value, frame)
    assign(reader, node.target, value, frame)
    return value


def _lambda(reader: Reader, node: ast.Lambda, frame: Frame) -> Value:
    inner = Frame(frame.module, {}, frame, frame.function)
    for argument in (*node.args.args, *node.args.kwonlyargs):
        inner.values[argument.arg] = NOTHING
    return Value(reader.value(node.body, inner).tags, reference=Function(node, frame.module, None, frame))


def _comprehension(
    reader: Reader, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
) -> Value:
    inner = Frame(frame.module, {}, frame, frame.function, frame.returned)
    over: list[Value] = []
    with reader.guarded(""):
        for each in node.generators:
            value = reader.value(each.iter, inner)
            over.append(value)
            assign(reader, each.target, element_of(value), inner)
            over += [reader.value(test, inner) for test in each.ifs]
        if len(over) == 1 and element_of(over[0]).has("one_of"):
            return _by_name(reader, node, over[0], inner)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return union([*over, *(reader.value(each, inner) for each in results)])


def _by_name(
    reader: Reader, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, over: Value, frame: Frame
) -> Value:
    """What a comprehension over names makes of each of them."""
    made: list[tuple[object, Value]] = []
    for place, name in over.items:
        assign(reader, node.generators[0].target, name, frame)
        if isinstance(node, ast.DictComp):
            made.append((reader.value(node.key, frame).constant, reader.value(node.value, frame)))
        else:
            made.append((place, reader.value(node.elt, frame)))
    if isinstance(node, ast.DictComp):
        return dictionary(made)
    return replace(union(value for _, value in made), items=tuple(made))


def _starred(reader: Reader, node: ast.Starred, frame: Frame) -> Value:
    return replace(reader.value(node.value, frame), items=())


def _await(reader: Reader, node: ast.Await, frame: Frame) -> Value:
    return reader.value(node.value, frame)


# By the name of the kind in `ast`; of any other kind it is what is known of its parts.
EXPRESSIONS: dict[str, Evaluate] = {
    "Call": call,
    "Constant": _constant,
    "Name": _name,
    "Attribute": _attribute,
    "Subscript": _subscript,
    "Tuple": _tuple,
    "List": _tuple,
    "Dict": _dict,
    "JoinedStr": _joined_text,
    "BinOp": _operation,
    "Compare": _compare,
    "BoolOp": _bool_operation,
    "UnaryOp": _unary,
    "IfExp": _if_expression,
    "NamedExpr": _named,
    "Lambda": _lambda,
    "ListComp": _comprehension,
    "SetComp": _comprehension,
    "GeneratorExp": _comprehension,
    "DictComp": _comprehension,
    "Starred": _starred,
    "Await": _await,
}
