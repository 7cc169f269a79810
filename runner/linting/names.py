"""What an expression of a script stands for: its names, followed back to where they get their values.

astroid says which assignments of a name a place can see. Nothing is run, imported, or inferred from installed packages:
a value that comes from elsewhere has the name that it was imported by. Attributes are known by their names alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from astroid import nodes
from astroid.exceptions import NoDefault

from runner.core.errors import UsageError
from runner.linting.frameworks import canonical, matches, meaning, variable
from runner.linting.source import Source, read_module
from runner.linting.values import NOTHING, SCALARS, Call, Value, combined, either, result_of, tagged, text_of, union

# What holds of the rank at a place. A condition on the local rank says nothing of the ranks where it is false: they are
# on every node.
_OPPOSITE = {"root": "not_root", "not_root": "root", "local_root": "", "": ""}
_MOST_STEPS, _MOST_DEPTH, _MOST_CALLS, _MOST_MODULES, _MOST_CONDITIONS = 200_000, 300, 8, 40, 50
_EXITS = ("sys.exit(", "exit(", "quit(", "os._exit(")
_INNER = (nodes.FunctionDef, nodes.ClassDef, nodes.Lambda)


class Resolver:
    """The names of a script and of the modules beside it that it imports.

    Attributes:
        sources: the modules that were read, the script first. nodes: all of them, in order.
        imports: dotted names of what is imported. unread: modules beside the script that could not be read.
        named: functions and classes of modules beside the script that are named.
        is_too_large: it was not read to its end.
    """

    def __init__(self, script: Source, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[nodes.Module, Source] = {}
        self.nodes: list[nodes.NodeNG] = []
        self.imports: set[str] = set()
        self.unread: list[str] = []
        self.named: set[nodes.NodeNG] = set()
        self.is_too_large = False
        self._steps = 0
        self._modules: dict[str, Source | None] = {}
        # By name: what sets an attribute or text key, of whatever; what adds to a list or dictionary; calls.
        self._attributes: dict[str, list[nodes.NodeNG]] = defaultdict(list)
        self._changes: dict[str, list[nodes.NodeNG]] = defaultdict(list)
        self._calls: dict[str, list[nodes.Call]] = defaultdict(list)
        self._conditions: dict[nodes.NodeNG, tuple[str, str]] = {}
        self._values: dict[nodes.NodeNG, Value] = {}
        self._numbers: dict[nodes.NodeNG, int] = {}
        # Depths: of what is being looked for, of the outermost of them that a value needs, and the lowest of those.
        self._open: dict[nodes.NodeNG, int] = {}
        self._passing: dict[nodes.NodeNG, int] = {}
        self._lowest = _MOST_STEPS
        self._load(script)
        self.nodes = [
            node
            for source in self.sources.values()
            for node in source.tree.nodes_of_class(nodes.NodeNG)
            if self._spend()
        ]

    def _load(self, source: Source) -> None:
        """Index a module, and those beside the script that it imports."""
        self.sources[source.tree] = source
        wanted: list[str] = []
        for node in source.tree.nodes_of_class(nodes.NodeNG):
            match node:
                case nodes.AssignAttr():
                    self._attributes[node.attrname].append(node)
                case nodes.Subscript(parent=nodes.Assign(targets=[target])) if target is node:
                    self._changes[dotted(node.value)].append(node)
                    if isinstance(node.slice, nodes.Const):
                        self._attributes[str(node.slice.value)].append(node)
                case nodes.Call():
                    self._calls[dotted(node.func).rpartition(".")[2]].append(node)
                    if isinstance(node.func, nodes.Attribute) and matches("adds", node.func.attrname):
                        self._changes[dotted(node.func.expr)].append(node)
                case nodes.Import() | nodes.ImportFrom():
                    wanted += self.imported(node)
        self.imports.update(wanted)
        for name in wanted:
            self.module(name)
        for star in (each for each in source.tree.body if isinstance(each, nodes.ImportFrom)):
            if star.names[0][0] == "*" and (module := self.module(self._absolute(star))) is not None:
                for name in module.locals:
                    source.tree.locals.setdefault(name, [star])

    def imported(self, node: nodes.Import | nodes.ImportFrom) -> list[str]:
        """The dotted names that a statement imports, and the module that they are from."""
        if isinstance(node, nodes.Import):
            return [name for name, _ in node.names]
        base = self._absolute(node)
        return [base, *(f"{base}.{name}".strip(".") for name, _ in node.names)]

    def module(self, name: str) -> nodes.Module | None:
        """The module of that dotted name beside the script; None where no file has it, or it cannot be read."""
        if name and name not in self._modules:
            self._modules[name] = None
            base = self.folder.joinpath(*name.split("."))
            try:
                path = next(filter(Path.is_file, (base.with_name(f"{base.name}.py"), base / "__init__.py")), None)
                if path and len(self.sources) > _MOST_MODULES:
                    raise UsageError("too many modules")
                if path:
                    self._modules[name] = read_module(path, str(path.relative_to(self.folder)))
            except (UsageError, OSError):
                self.unread.append(name)
        source = self._modules.get(name)
        if source is not None and source.tree not in self.sources:
            self._load(source)
        return source.tree if source else None

    def _absolute(self, node: nodes.ImportFrom) -> str:
        here = self.sources[node.root()].name.removesuffix(".py").split("/")[: -node.level] if node.level else []
        return ".".join(part for part in (*here, node.modname) if part)

    def _spend(self, steps: int = 1) -> bool:
        """Whether there is time left for more."""
        self._steps += steps
        self.is_too_large = self._steps > _MOST_STEPS
        return not self.is_too_large

    def value(self, node: nodes.NodeNG | None) -> Value:
        """What is known of an expression.

        A name may come from itself: it is nothing while it is looked for, and what was found of others by this is
        looked for anew when it is known.
        """
        if node is None or len(self._open) > _MOST_DEPTH or not self._spend():
            return NOTHING
        if node in self._values:
            self._lowest = min(self._lowest, self._open.get(node, self._passing.get(node, _MOST_STEPS)))
            return self._values[node]
        depth, outer = len(self._open), self._lowest
        self._open[node], self._values[node], self._lowest = depth, NOTHING, _MOST_STEPS
        value = self._values[node] = self._value(node)
        del self._open[node]
        if self._lowest < depth:
            self._passing[node] = self._lowest
        else:
            for each in [each for each, head in self._passing.items() if head >= depth]:
                del self._values[each], self._passing[each]
        self._lowest = min(outer, self._lowest)
        return value

    def _union(self, values: Iterable[Any]) -> Value:
        return union([self.value(each) for each in values])

    def _value(self, node: nodes.NodeNG) -> Value:
        match node:
            case nodes.Const():
                text = node.value.lower() if isinstance(node.value, str) else ""
                fixed = text.startswith(("cuda:", "/gpu:", "gpu:", "/device:gpu:")) and text[-1].isdigit()
                return Value(frozenset(("fixed",) if fixed else ()), constants=frozenset((node.value,)))
            case nodes.Name():
                return self._name(node)
            case nodes.Attribute():
                return self._attribute(node)
            case nodes.Subscript():
                return self._subscript(node)
            case nodes.Call():
                return self._result(node)
            case nodes.Tuple(elts=[]) | nodes.List(elts=[]):
                return Value(constants=frozenset(((),)))
            case nodes.Tuple() | nodes.List() if len(node.elts) <= 16:
                values = [self.value(each) for each in node.elts]  # an item has items of its own, and none below them
                flat = (replace(each, items=tuple(replace(item, items=()) for item in each.items)) for each in values)
                return replace(union(values), items=tuple(flat))
            case nodes.JoinedStr():
                parts = [each.value if isinstance(each, nodes.Const) else "" for each in node.values]
                inner = self._union(node.values)
                return inner if len(parts) == 3 and parts[1] == ":" else text_of(inner, *parts[:1])
            case nodes.BinOp():
                return combined(node.op, self.value(node.left), self.value(node.right))
            case nodes.Compare() | nodes.BoolOp() | nodes.UnaryOp(op="not"):
                inside, _ = self.condition(node)
                if inside or not isinstance(node, nodes.BoolOp):
                    return tagged(*filter(None, (inside,)))
            case nodes.IfExp():
                inside, _ = self.condition(node.test)
                then, other = self.value(node.body), self.value(node.orelse)
                missing = other if inside == "root" else then if inside == "not_root" else NOTHING
                only = {"root_only"} if missing.constant in (None, False, 0, "", ()) else frozenset()
                literals = then.constants | other.constants if then.constants and other.constants else frozenset()
                return replace(either((then, other)), tags=then.tags | other.tags | only, constants=literals)
            case nodes.Lambda():
                return Value(self.value(node.body).tags, reference=node)
            case nodes.FormattedValue() | nodes.NamedExpr() | nodes.Await():
                return self.value(node.value)
        return self._union(node.get_children())

    def _name(self, node: nodes.Name) -> Value:
        name = node.name
        scope, definitions = node.lookup(name)
        spent = self._spend(len(scope.locals.get(name, ())) // 10)
        if spent and getattr(scope, "name", "") != "builtins" and not name.startswith("__"):
            return self._with_changes(self._any(definitions, name), node)
        return Value(path=f"builtins.{name}") if matches("builtin", name) else Value(meaning(name))

    def _any(self, definitions: list[nodes.NodeNG], name: str) -> Value:
        """What a name is that has one of these definitions."""
        values = [self._assigned(each, name) for each in definitions]
        imported = [value for value in values if value.path]  # not what stands in for a package that is missing
        value = either(imported or values)
        set_at = ["root" in self.guards_at(each.statement()) for each in definitions]
        unset = [each.constant in (None, False) for each, root in zip(values, set_at, strict=True) if not root]
        only = any(set_at) and all(unset) and not value.has("root")
        return replace(value, tags=value.tags | {"root_only"}) if only else value

    def _with_changes(self, value: Value, node: nodes.NodeNG) -> Value:
        """A list, or its like, with what is added to it in the same function."""
        for change in self._changes.get(dotted(node), ()):
            if self._spend() and change.frame() is node.frame():
                given = [change.parent.value] if isinstance(change, nodes.Subscript) else change.args
                value = replace(value, tags=value.tags | (self._union(given).tags - {"root"}))
        return value

    def _name_of_module(self, module: nodes.Module | None, base: str, name: str) -> Value:
        """A name of a module: of the source, or of what is imported."""
        if module is not None and name in module.locals:
            value = self._any(module.locals[name], name)
            if isinstance(value.reference, nodes.FunctionDef | nodes.ClassDef):
                self.named.add(value.reference)
            return value
        path = f"{base}.{name}".strip(".")
        return Value(path=path, reference=self.module(path))

    def _assigned(self, target: nodes.NodeNG, name: str) -> Value:
        """What a definition gives a name, an attribute or a key."""
        match target:
            case nodes.Import():
                heads = {alias or each.partition(".")[0]: each if alias else each.partition(".")[0]
                         for each, alias in target.names}  # fmt: skip
                return Value(path=heads[name], reference=self.module(heads[name]))
            case nodes.ImportFrom():
                base = self._absolute(target)
                module = self.module(base)
                return self._name_of_module(None if module is target.root() else module, base, target.real_name(name))
            case nodes.FunctionDef() | nodes.ClassDef():
                return Value(reference=target)
            case nodes.Arguments():  # *arguments, **keywords
                return self._parameter(target.parent, name)
        places, node = [], target
        while isinstance(node.parent, nodes.Tuple | nodes.List):
            places.append(node.parent.elts.index(node))
            node = node.parent
        value = self._held(node, name)
        for place in reversed(places):
            value = value.items[place] if place < len(value.items) else Value(value.tags)
        return Value(meaning(name)) if value == NOTHING else value

    def _held(self, node: nodes.NodeNG, name: str) -> Value:
        """What a target, or a tuple of targets, takes."""
        holder = node.parent
        match holder:
            case nodes.Assign() | nodes.AnnAssign() | nodes.NamedExpr():
                return self.value(holder.value)
            case nodes.AugAssign():
                before = [each for each in holder.scope().locals.get(name, ()) if each.lineno < holder.lineno]
                old = self._assigned(before[-1], name) if before else NOTHING
                return combined(holder.op.rstrip("="), old, self.value(holder.value))
            case nodes.For() | nodes.Comprehension():  # each element, while a loop goes over them
                over = self.value(holder.iter)
                return replace(union((over,)), constants=frozenset().union(*(each.constants for each in over.items)))
            case nodes.With():
                return next((self.value(each) for each, target in holder.items if target is node), NOTHING)
            case nodes.Arguments():
                return self._parameter(holder.parent, name)
        return NOTHING

    def _parameter(self, function: Any, name: str) -> Value:
        """What a parameter is given, by any call."""
        positional = (*(function.args.posonlyargs or ()), *(function.args.args or ()))
        owner, parameters = class_of(function), [each.name for each in positional]
        if owner is not None and [name] == parameters[:1]:
            return Value(frozenset(("instance",)), reference=owner)
        values = []
        called = owner.name if owner is not None and function.name == "__init__" else getattr(function, "name", "")
        for node in self._calls.get(called, ())[:_MOST_CALLS]:
            if self.callee(node).function is function:
                places = parameters[0 if owner is None else 1 :]
                values.append(_given(function.args, name, places, self.call(node)))
        for node in self._calls.get("spawn", ()):  # mp.spawn(function, args=(...)): the first parameter is the rank
            if node.args and self.value(node.args[0]).reference is function:
                arguments = (tagged("rank", "local_rank", "exact"), *self.call(node).argument(1, "args").items)
                values.append(_given(function.args, name, parameters, Call("spawn", node, arguments=arguments)))
        value = either(values)
        if value != NOTHING or meaning(name):
            return value
        try:
            return self.value(function.args.default_value(name))
        except NoDefault:
            return NOTHING

    def _attribute(self, node: nodes.Attribute) -> Value:
        base, name = self.value(node.expr), node.attrname
        if base.path or isinstance(base.reference, nodes.Module):
            return self._name_of_module(base.reference, base.path, name)
        if isinstance(base.reference, nodes.ClassDef):
            method = self._method(base.reference, name)
            if method is not None:
                is_property = base.has("instance") and decorators(method) & {"property", "cached_property"}
                return self._returned(method) if is_property else Value(reference=method)
        setting = [each for each in self._attributes.get(name, ()) if self._spend() and not each.parent.parent_of(node)]
        if setting and not base.things("ddp"):
            return self._with_changes(self._any(setting, name), node)
        if name == "module":
            return Value(base.tags - SCALARS - base.things("ddp"))
        return Value(base.tags - SCALARS | meaning(name))

    def _subscript(self, node: nodes.Subscript) -> Value:
        base, key = self.value(node.value), self.value(node.slice)
        place = key.constant
        if base.path == "os.environ":
            return self._variables(key)
        if isinstance(place, str):
            value = self._any(self._attributes.get(place, []), place)
            return value if value != NOTHING else Value(base.tags - SCALARS | meaning(place))
        if isinstance(place, int) and -len(base.items) <= place < len(base.items):
            return base.items[place]
        fixed = {"fixed"} if isinstance(place, int) else frozenset()
        return Value(union((base, key)).tags | base.things("object") | fixed)

    def _variables(self, key: Value, default: Value = NOTHING) -> Value:
        """An environment variable, or one of several that mean the same: launchers' or the script's own."""
        meant = {variable(each) for each in key.constants}
        if len(meant) == 1 and meant != {""}:
            return tagged(*meant, "exact")
        value = self._any(self._attributes.get(key.constant, []), "") if key.constants else NOTHING
        return Value(default.tags) if value == NOTHING else value

    def call(self, node: nodes.Call) -> Call:
        """A call with what it is given."""
        pairs = [pair for each in node.keywords for pair in self._keywords(each)]
        keywords = tuple((name, self.value(value)) for name, value in pairs)
        return replace(self.callee(node), arguments=tuple(map(self.value, node.args)), keywords=keywords)

    def _keywords(self, keyword: nodes.Keyword) -> list[tuple[str, nodes.NodeNG]]:
        """What is given by name; of ``**options`` the keys of a literal dictionary that nothing changes."""
        value = keyword.value
        if keyword.arg is None and isinstance(value, nodes.Name) and not self._changes.get(value.name):
            definitions = value.lookup(value.name)[1]
            value = getattr(definitions[0].parent, "value", value) if len(definitions) == 1 else value
        if isinstance(value, nodes.Call) and dotted(value.func) == "dict" and not value.args and keyword.arg is None:
            return [(each.arg or "", each.value) for each in value.keywords]
        if isinstance(value, nodes.Dict) and keyword.arg is None:
            return [(getattr(key, "value", ""), value) for key, value in value.items]
        return [(keyword.arg or "", keyword.value)]

    def callee(self, node: nodes.Call) -> Call:
        """A call, without what it is given."""
        value = self.value(node.func)
        reference, number = value.reference, self._numbers.setdefault(node, len(self._numbers) + 1)
        is_attribute = isinstance(node.func, nodes.Attribute)
        receiver = self.value(node.func.expr) if is_attribute else value
        if value.path:
            return Call(canonical(value.path), node, number)
        if isinstance(reference, nodes.FunctionDef | nodes.Lambda):
            return Call(f"local {getattr(reference, 'name', 'lambda')}", node, number, receiver, reference)
        if isinstance(reference, nodes.ClassDef) and not value.has("instance"):
            return Call(f"new {reference.name}", node, number, NOTHING, self._method(reference, "__init__"), reference)
        if isinstance(reference, nodes.ClassDef):
            return Call(".forward", node, number, value, self._method(reference, "__call__", "forward", "call"))
        name = f".{node.func.attrname}" if is_attribute else f"?{getattr(node.func, 'name', '')}"
        return Call(name, node, number, receiver)

    def _method(self, kind: nodes.ClassDef, *names: str) -> Any:
        """The first method of these names, of a class or of its bases in the source."""
        kinds = [each for each in self.ancestors(kind) if isinstance(each, nodes.ClassDef)]
        every = (each for name in names for kind in kinds for each in kind.locals.get(name, ()))
        return next((each for each in every if isinstance(each, nodes.FunctionDef)), None)

    def ancestors(self, kind: nodes.ClassDef) -> list[nodes.ClassDef | str]:
        """A class and what it inherits from: classes of the source, and names of others."""
        kinds: list[nodes.ClassDef | str] = [kind]
        for each in kinds:
            if isinstance(each, nodes.ClassDef) and len(kinds) < 50:
                bases = [self.value(base) for base in each.bases]
                kinds += [base.path or base.reference for base in bases if base.reference not in kinds]
        return [each for each in kinds if each]

    def _result(self, node: nodes.Call) -> Value:
        call = self.callee(node)
        if call.function is not None and call.kind is None:
            literals = frozenset[Any]().union(*(self.value(each).constants for each in node.args))
            variables = frozenset(filter(variable, literals))  # of a launcher, for a function that reads one of them
            return self._variables(Value(constants=variables)) if variables else self._returned(call.function)
        call = self.call(node)
        if call.kind is not None:
            return self._instance(call)
        first, second = call.argument(0), call.argument(1)
        if call.means("environment"):
            return self._variables(first, second)
        if call.name == "builtins.getattr" and len(call.arguments) > 1 and not first.path:
            return Value(meaning(str(second.constant)))
        return result_of(call)

    def _returned(self, function: Any) -> Value:
        """What a function returns, or yields."""
        returns = function.nodes_of_class((nodes.Return, nodes.Yield), skip_klass=_INNER)
        return either([self.value(each.value) for each in returns])

    def _instance(self, call: Call) -> Value:
        """An instance, with what it was given and what its class asks for."""
        kind, number, given = call.kind, call.number, union(call.values)
        paths = [canonical(self.value(each.func).path) for each in kind.nodes_of_class(nodes.Call)]
        uses = [each for each in kind.nodes_of_class((nodes.Name, nodes.Attribute)) if _is_rank_in_use(each)]
        asks = self._union(uses).tags | {tag for tag in ("rank", "size") for path in paths if matches(tag, path)}
        asks |= given.tags if call.function is None else frozenset()
        tags = given.things() | (asks & {"rank", "size"})
        bases = [canonical(each) for each in self.ancestors(kind) if isinstance(each, str)]
        if any(word in base for base in bases for word in ("Module", "Model", "keras.layers")):
            tags |= {f"model:{number}"}
        if any("Sampler" in name for name in (*bases, kind.name)):
            tags |= {f"sampler:{number}" if "rank" in tags else f"plainsampler:{number}"}
        if any(base.endswith("DataLoader") for base in bases):
            tags |= {f"loader:{number}"}
        return Value(tags | {"instance"}, reference=kind)

    def condition(self, node: Any) -> tuple[str, str]:
        """What holds of the rank where a condition is true, and where it is false."""
        holds = self._conditions.get(node) or (self._condition(node) if self._spend() else ("", ""))
        if not self._open:  # while a value is being looked for, what is found may not hold
            self._conditions[node] = holds
        return holds

    def _condition(self, node: Any) -> tuple[str, str]:
        match node:
            case nodes.UnaryOp(op="not"):
                inside, outside = self.condition(node.operand)
                return outside, inside
            case nodes.BoolOp():
                parts = [self.condition(each) for each in node.values]
                then, other = [each for each, _ in parts if each], [each for _, each in parts if each]
                if node.op == "and":
                    return (then[0] if then else ""), (other[0] if len(then) == len(parts) and other else "")
                # Meant for the root where one of them names it: `not distributed or rank == 0`.
                return next((each for each in ("root", "local_root") if each in then), ""), (other[0] if other else "")
            case nodes.Compare(ops=[(operator, right)]):
                return _comparison(self.value(node.left), operator, self.value(right))
            case nodes.Compare():
                return "", ""
        value = self.value(node)
        flag = next((each for each in _OPPOSITE if value.has(each)), "root" if value.has("root_only") else "")
        if not flag and value.has("exact") and value.has("rank", "local_rank"):  # `if rank:`
            guard = "root" if value.has("rank") else "local_root"
            return _OPPOSITE[guard], guard
        return flag, _OPPOSITE[flag]

    def guards_at(self, node: Any) -> frozenset[str]:
        """What holds of the rank that comes to a place in its function."""
        around = around_in_function(node)
        pairs = zip([node, *around], around, strict=False)
        return frozenset(guard for child, parent in pairs for guard in self._guards(child, parent) if guard)

    def _guards(self, child: Any, parent: Any) -> Iterator[str]:
        """What holds of the rank in a part of a statement or expression, and not around it."""
        if isinstance(parent, nodes.If | nodes.IfExp) and child is not parent.test:
            inside = child in parent.body if isinstance(parent, nodes.If) else child is parent.body
            yield self.condition(parent.test)[0 if inside else 1]
        elif isinstance(parent, nodes.BoolOp):  # `rank == 0 and save()`
            for each in parent.values[: min(parent.values.index(child), _MOST_CONDITIONS)]:
                yield self.condition(each)[1 if parent.op == "or" else 0]
        for name in ("body", "orelse", "finalbody") if child.is_statement else ():
            block = getattr(parent, name, None)
            for each in block[: block.index(child)] if isinstance(block, list) and child in block else ():
                # one that ends its block for some ranks
                if isinstance(each, nodes.If) and self._spend() and (_leaves(each.body) or _leaves(each.orelse)):
                    yield self.condition(each.test)[1 if _leaves(each.body) else 0]


def _comparison(left: Value, operator: str, right: Value) -> tuple[str, str]:
    """What a comparison says of the rank, as ``Resolver.condition``."""
    if left.constants and not right.constants:
        left, right, operator = right, left, {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(operator, operator)
    if left.has("root_only") and right.constant is None:
        return ("root", "") if operator in ("is not", "!=") else ("", "root")
    if not left.has("rank", "local_rank") or not left.has("exact"):
        return ("root", "not_root") if left.has("root") and right.constant is True else ("", "")
    guard = "root" if left.has("rank") else "local_root"
    is_zero = type(right.constant) is int and right.constant == (1 if operator in ("<", ">=") else 0)
    is_named = left.has("rank") and not right.constants and operator in ("==", "!=")  # rank == root_rank
    has_zero = operator in ("in", "not in") and any(each.constant == 0 for each in right.items)
    if operator in ("==", "is", "<=", "<", "in") and (is_zero or is_named or has_zero):
        return guard, _OPPOSITE[guard]
    if operator in ("!=", "is not", ">", ">=", "not in") and (is_zero or is_named or has_zero):
        return _OPPOSITE[guard], guard
    another = operator == "==" and isinstance(right.constant, int)
    return (guard, "") if another else ("", "")


def _given(parameters: nodes.Arguments, name: str, places: list[str], call: Call) -> Value:
    """What a call gives a parameter; ``places``: the names of those that take what has no name."""
    rest, keywords = call.arguments[len(places) :], dict(call.keywords)
    if name == parameters.vararg:
        return replace(union(rest), items=rest)
    if name == parameters.kwarg:
        known = {*places, *(each.name for each in parameters.kwonlyargs)}
        return union(value for key, value in keywords.items() if key not in known)
    return call.argument(places.index(name) if name in places else None, name)


def around_in_function(node: Any) -> list[Any]:
    """What is around a place, up to its function or module."""
    around = []
    while node.parent is not None and not isinstance(node, nodes.FunctionDef):
        node = node.parent
        around.append(node)
    return around


def _leaves(body: list[Any]) -> bool:
    """Whether a block always ends what is around it."""
    last = body[-1] if body else None
    if isinstance(last, nodes.Expr):
        return bool(last.value.as_string().startswith(_EXITS))
    return isinstance(last, nodes.Return | nodes.Continue | nodes.Break | nodes.Raise)


def dotted(node: nodes.NodeNG) -> str:
    """``a.b`` of ``a.b`` and of ``a.b(...)``; empty for what does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, nodes.Attribute | nodes.Call):
        parts += [node.attrname] if isinstance(node, nodes.Attribute) else []
        node = node.expr if isinstance(node, nodes.Attribute) else node.func
    return ".".join([node.name, *parts[::-1]]) if isinstance(node, nodes.Name) else ""


def _is_rank_in_use(node: Any) -> bool:
    """Whether this reads something that is called a rank or a size, for more than to keep it."""
    name = node.attrname if isinstance(node, nodes.Attribute) else node.name
    return bool(meaning(name)) and not isinstance(node.parent, nodes.Assign | nodes.Tuple)


def class_of(function: Any) -> nodes.ClassDef | None:
    """The class of a method that takes an instance."""
    owner = function.parent.frame()
    is_method = isinstance(owner, nodes.ClassDef) and isinstance(function, nodes.FunctionDef)
    return owner if is_method and "staticmethod" not in decorators(function) else None


def decorators(function: Any) -> set[str]:
    """The last parts of the names of what decorates a function, or a module (nothing)."""
    every = getattr(getattr(function, "decorators", None), "nodes", ())
    return {dotted(each).rpartition(".")[2] for each in every}
