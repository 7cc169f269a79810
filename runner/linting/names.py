"""What an expression of a script stands for: its names, followed back to where they get their values.

astroid says which assignments of a name a place can see. Nothing is run, imported, or inferred from installed packages:
a value that comes from elsewhere has the name that it was imported by. Attributes are known by their names alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from astroid import nodes
from astroid.exceptions import NoDefault

from runner.core.errors import UsageError
from runner.linting import conditions, values
from runner.linting.frameworks import canonical, matches, meaning, variable
from runner.linting.source import Source, read_module
from runner.linting.values import NOTHING, Call, Value, either, union

_MOST_STEPS, _MOST_DEPTH, _MOST_CALLS, _MOST_MODULES = 200_000, 300, 8, 40
_INNER = (nodes.FunctionDef, nodes.ClassDef, nodes.Lambda)
_ABSENT = (None, False, 0, "", ())


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
        self.imports: set[str] = set()
        self.unread: list[str] = []
        self.named: set[nodes.NodeNG] = set()
        self._steps = self._depth = 0
        self._modules: dict[str, Source | None] = {}
        # By name: what sets an attribute or text key, of whatever; what sets an item of it; calls.
        self._attributes: dict[str, list[nodes.NodeNG]] = defaultdict(list)
        self._items: dict[str, list[nodes.NodeNG]] = defaultdict(list)
        self._calls: dict[str, list[nodes.Call]] = defaultdict(list)
        self._values: dict[nodes.NodeNG, Value] = {}
        self._load(script)
        self.nodes = [node for source in self.sources.values() for node in source.tree.nodes_of_class(nodes.NodeNG)]

    def _load(self, source: Source) -> None:
        """Index a module, and those beside the script that it imports."""
        self.sources[source.tree] = source
        wanted: list[str] = []
        for node in source.tree.nodes_of_class(nodes.NodeNG):
            match node:
                case nodes.AssignAttr():
                    self._attributes[node.attrname].append(node)
                case nodes.Subscript(parent=nodes.Assign(targets=[target])) if target is node:
                    self._attributes[str(getattr(node.slice, "value", ""))].append(node)
                    self._items[dotted(node.value)].append(node)
                case nodes.Call():
                    self._calls[dotted(node.func).rpartition(".")[2]].append(node)
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

    @property
    def is_too_large(self) -> bool:
        return self._steps > _MOST_STEPS

    def value(self, node: nodes.NodeNG | None) -> Value:
        """What is known of an expression; nothing of one that comes from itself, while it is looked for."""
        self._steps += 1
        if node is None or self._depth > _MOST_DEPTH or self.is_too_large:
            return NOTHING
        if node not in self._values:
            self._values[node] = NOTHING
            self._depth += 1
            self._values[node] = self._value(node)
            self._depth -= 1
        return self._values[node]

    def _value(self, node: nodes.NodeNG) -> Value:
        match node:
            case nodes.Const():
                return Value(constants=frozenset((node.value,)))
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
                items = tuple(map(self.value, node.elts))
                return Value(union(items).tags, items=items)
            case nodes.JoinedStr():
                texts = [each.value if isinstance(each, nodes.Const) else "" for each in node.values]
                inner = union(map(self.value, node.values))
                return inner if len(texts) == 3 and texts[1] == ":" else values.text_of(inner, *texts[:1])
            case nodes.BinOp():
                return values.combined(node.op, self.value(node.left), self.value(node.right))
            case nodes.UnaryOp(op="not"):
                return Value(conditions.negated(conditions.truth(self.value(node.operand))))
            case nodes.Compare(ops=[(operator, right)]):
                return Value(conditions.comparison(self.value(node.left), operator, self.value(right)))
            case nodes.BoolOp():
                parts = [self.value(each) for each in node.values]
                said = conditions.joined(node.op, map(conditions.truth, parts))
                return Value(union(parts).tags - values.CONDITIONS | said)
            case nodes.IfExp():
                return self._one_of([(each, self.value(each)) for each in (node.body, node.orelse)])
            case nodes.NamedExpr() | nodes.Await():
                return self.value(node.value)
        return union(map(self.value, node.get_children()))

    def _one_of(self, choices: list[tuple[nodes.NodeNG, Value]]) -> Value:
        """One of several values, each with the place where it is chosen."""
        value = either(each for _, each in choices)
        elsewhere = [each for place, each in choices if "root" not in conditions.guards_at(place, self.value)]
        only = len(elsewhere) < len(choices) and all(each.constant in _ABSENT for each in elsewhere)
        tags = value.tags | {"root_only"} if only and not value.has("root") else value.tags
        return replace(value, tags=tags)

    def _name(self, node: nodes.Name) -> Value:
        name = node.name
        scope, definitions = node.lookup(name)
        self._steps += len(scope.locals.get(name, ())) // 10
        if getattr(scope, "name", "") != "builtins" and not name.startswith("__"):
            items = [each for each in self._items[name] if each.frame() is node.frame()]
            return self._any([*definitions, *items], name)
        if matches("builtin", name):
            return Value(what=f"builtins.{name}")
        return Value(meaning(name))

    def _any(self, definitions: list[nodes.NodeNG], name: str) -> Value:
        """What a name is that has one of these definitions."""
        return self._one_of([(each.statement(), self._assigned(each, name)) for each in definitions])

    def _name_of_module(self, module: nodes.Module | None, base: str, name: str) -> Value:
        """A name of a module: of the source, or of what is imported."""
        if module is not None and name in module.locals:
            value = self._any(module.locals[name], name)
            if isinstance(value.what, nodes.FunctionDef | nodes.ClassDef):
                self.named.add(value.what)
            return value
        path = f"{base}.{name}".strip(".")
        return Value(what=self.module(path) or path)

    def _assigned(self, target: nodes.NodeNG, name: str) -> Value:
        """What a definition gives a name, an attribute or a key."""
        match target:
            case nodes.Import():
                heads = {alias or each.partition(".")[0]: each if alias else each.partition(".")[0]
                         for each, alias in target.names}  # fmt: skip
                return Value(what=self.module(heads[name]) or heads[name])
            case nodes.ImportFrom():
                base = self._absolute(target)
                module = self.module(base)
                return self._name_of_module(None if module is target.root() else module, base, target.real_name(name))
            case nodes.FunctionDef() | nodes.ClassDef():
                return Value(what=target)
            case nodes.Arguments():  # *arguments, **keywords
                return self._parameter(target.parent, name)
        return self._taken(target, name) or Value(meaning(name))

    def _taken(self, target: nodes.NodeNG, name: str) -> Value:
        """What a target, or a tuple of targets, takes."""
        holder = target.parent
        match holder:
            case nodes.Tuple() | nodes.List():
                whole, place = self._taken(holder, name), holder.elts.index(target)
                return whole.items[place] if place < len(whole.items) else Value(whole.tags)
            case nodes.Assign() | nodes.AnnAssign() | nodes.NamedExpr():
                return self.value(holder.value)
            case nodes.AugAssign():
                before = [each for each in holder.scope().locals.get(name, ()) if each.lineno < holder.lineno]
                old = self._assigned(before[-1], name) if before else NOTHING
                return values.combined(holder.op.rstrip("="), old, self.value(holder.value))
            case nodes.For() | nodes.Comprehension():  # each element, while a loop goes over them
                over = self.value(holder.iter)
                return Value(over.tags, constants=either(over.items).constants)
            case nodes.With():
                return either(self.value(each) for each, variables in holder.items if variables is target)
            case nodes.Arguments():
                return self._parameter(holder.parent, name)
        return NOTHING

    def _parameter(self, function: Any, name: str) -> Value:
        """What a parameter is given, by any call."""
        owner, places = class_of(function), [each.name for each in (*function.args.posonlyargs, *function.args.args)]
        if owner is not None and places and name == places.pop(0):
            return Value(frozenset(("instance",)), owner)
        called = owner.name if owner is not None and function.name == "__init__" else getattr(function, "name", "")
        calls = [call for call in map(self.call, self._calls[called][:_MOST_CALLS]) if call.function is function]
        for node in self._calls.get("spawn", ()):  # mp.spawn(function, args=(...)): the first parameter is the rank
            if node.args and self.value(node.args[0]).what is function:
                given = (values.tagged("rank", "local_rank", "exact"), *self.call(node).argument(1, "args").items)
                calls.append(Call("spawn", node, arguments=given))
        value = either([_given(function.args, name, places, call) for call in calls])
        if value or meaning(name):
            return value
        try:
            return self.value(function.args.default_value(name))
        except NoDefault:
            return NOTHING

    def _attribute(self, node: nodes.Attribute) -> Value:
        base, name = self.value(node.expr), node.attrname
        if base.path or isinstance(base.what, nodes.Module):
            module = None if base.path else base.what
            return self._name_of_module(module, base.path or self.sources[base.what].module, name)
        if isinstance(base.what, nodes.ClassDef):
            method = self._method(base.what, name)
            if method is not None:
                is_property = base.has("instance") and decorators(method) & {"property", "cached_property"}
                return self._returned(method) if is_property else Value(what=method)
        setting = [each for each in self._attributes.get(name, ()) if not each.parent.parent_of(node)]
        self._steps += len(setting)
        if setting and not base.things("ddp"):
            return self._any(setting, name)
        if name == "module":
            return Value(base.tags - values.SCALARS - base.things("ddp"))
        return Value(base.tags - values.SCALARS | meaning(name))

    def _subscript(self, node: nodes.Subscript) -> Value:
        base, key = self.value(node.value), self.value(node.slice)
        place = key.constant
        if base.path == "os.environ":
            return self._variables(key)
        if isinstance(place, str):
            value = self._any(self._attributes.get(place, []), place)
            return value or Value(base.tags - values.SCALARS | meaning(place))
        if isinstance(place, int) and -len(base.items) <= place < len(base.items):
            return base.items[place]
        fixed = {"fixed"} if isinstance(place, int) else frozenset()
        return Value(union((base, key)).tags | base.things("object") | fixed)

    def _variables(self, key: Value, default: Value = NOTHING) -> Value:
        """An environment variable, or one of several that mean the same: launchers' or the script's own."""
        meant = {variable(each) for each in key.constants}
        if len(meant) == 1 and meant != {""}:
            return values.tagged(*meant, "exact")
        value = self._any(self._attributes.get(key.constant, []), "") if key.constants else NOTHING
        return value or Value(default.tags)

    def call(self, node: nodes.Call) -> Call:
        """A call with what it is given."""
        value, is_method = self.value(node.func), isinstance(node.func, nodes.Attribute)
        what, receiver = value.what, self.value(node.func.expr) if is_method else value
        name = f".{node.func.attrname}" if is_method else f"?{getattr(node.func, 'name', '')}"
        function: Any = None
        kind: Any = None
        if value.path:
            name, receiver = canonical(value.path), NOTHING
        elif isinstance(what, nodes.FunctionDef):
            name, function = f"local {what.name}", what
        elif isinstance(what, nodes.ClassDef) and value.has("instance"):
            name, receiver, function = ".forward", value, self._method(what, "__call__", "forward", "call")
        elif isinstance(what, nodes.ClassDef):
            name, receiver, function, kind = f"new {what.name}", NOTHING, self._method(what, "__init__"), what
        keywords = {key: self.value(each) for keyword in node.keywords for key, each in _keywords(keyword)}
        return Call(name, node, receiver, function, kind, tuple(map(self.value, node.args)), keywords)

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
                bases = [self.value(base).what for base in each.bases]
                kinds += [base for base in bases if isinstance(base, str | nodes.ClassDef) and base not in kinds]
        return kinds

    def _result(self, node: nodes.Call) -> Value:
        call = self.call(node)
        if call.kind is not None:
            return self._instance(call)
        first, second = call.argument(0), call.argument(1)
        if call.function is not None:
            variables = frozenset(filter(variable, first.constants))  # of a launcher, for a function that reads it
            return self._variables(Value(constants=variables)) if variables else self._returned(call.function)
        if call.means("environment"):
            return self._variables(first, second)
        if call.name == "builtins.getattr" and not first.path:
            return Value(meaning(str(second.constant)))
        return values.result_of(call)

    def _returned(self, function: Any) -> Value:
        """What a function returns, or yields."""
        returns = function.nodes_of_class((nodes.Return, nodes.Yield), skip_klass=_INNER)
        return either([self.value(each.value) for each in returns])

    def _instance(self, call: Call) -> Value:
        """An instance, with what it was given, and whether its class asks for the rank for more than to keep it."""
        kind, given = call.kind, union(call.values)
        named = kind.nodes_of_class((nodes.Name, nodes.Attribute))
        used = (each.as_string() for each in named if not isinstance(each.parent, nodes.Assign | nodes.Tuple))
        asks = frozenset[str]().union(*(meaning(each.rpartition(".")[2]) for each in used))
        tags = given.things() | ((given.tags | asks if call.function is None else asks) & {"rank", "size"})
        bases = [canonical(each) for each in self.ancestors(kind) if isinstance(each, str)]
        if any(word in base for base in bases for word in ("Module", "Model", "keras.layers")):
            tags |= {call.thing("model")}
        if any("Sampler" in name for name in (*bases, kind.name)):
            tags |= {call.thing("sampler" if "rank" in tags else "plainsampler")}
        if any(base.endswith("DataLoader") for base in bases):
            tags |= {call.thing("loader")}
        return Value(tags | {"instance"}, kind)


def _given(parameters: nodes.Arguments, name: str, places: list[str], call: Call) -> Value:
    """What a call gives a parameter; ``places``: the names of those that take what has no name."""
    rest = call.arguments[len(places) :]
    if name == parameters.vararg:
        return replace(union(rest), items=rest)
    if name == parameters.kwarg:
        known = {*places, *(each.name for each in parameters.kwonlyargs)}
        return union(value for key, value in call.keywords.items() if key not in known)
    return call.argument(places.index(name) if name in places else None, name)


def _keywords(keyword: nodes.Keyword) -> list[tuple[str, nodes.NodeNG]]:
    """What is given by name; of ``**options`` the keys of a literal dictionary that is used for nothing else."""
    value = keyword.value
    if keyword.arg is None and isinstance(value, nodes.Name):
        scope, definitions = value.lookup(value.name)
        uses = [each.parent for each in scope.nodes_of_class(nodes.Name) if each.name == value.name]
        if len(definitions) == 1 and all(isinstance(each, nodes.Keyword) for each in uses):
            value = getattr(definitions[0].parent, "value", value)
    if keyword.arg is None and isinstance(value, nodes.Dict):
        return [(getattr(key, "value", ""), each) for key, each in value.items]
    if keyword.arg is None and isinstance(value, nodes.Call) and dotted(value.func) == "dict" and not value.args:
        return [(each.arg or "", each.value) for each in value.keywords]
    return [(keyword.arg or "", keyword.value)]


def dotted(node: nodes.NodeNG) -> str:
    """``a.b`` of ``a.b`` and of ``a.b(...)``; empty for what does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, nodes.Attribute | nodes.Call):
        parts += [node.attrname] if isinstance(node, nodes.Attribute) else []
        node = node.expr if isinstance(node, nodes.Attribute) else node.func
    return ".".join([node.name, *parts[::-1]]) if isinstance(node, nodes.Name) else ""


def class_of(function: Any) -> nodes.ClassDef | None:
    """The class of a method that takes an instance."""
    owner = function.parent.frame()
    is_method = isinstance(owner, nodes.ClassDef) and isinstance(function, nodes.FunctionDef)
    return owner if is_method and "staticmethod" not in decorators(function) else None


def decorators(function: Any) -> set[str]:
    """The last parts of the names of what decorates a function, or a module (nothing)."""
    every = getattr(getattr(function, "decorators", None), "nodes", ())
    return {dotted(each).rpartition(".")[2] for each in every}
