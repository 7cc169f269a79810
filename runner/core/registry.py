"""Backends by name: each is a module, of a package here or of another distribution, imported when it is looked up.

A built-in one is the module of that name in the package (``podman-hpc``: ``podman_hpc``); nothing lists them. Another
distribution offers one by an entry point, whose name is the backend's and whose value is the module. Entry points are
read only for a name that no built-in has (50 ms), and to list every backend there is.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from runner.core.errors import UsageError
from runner.core.text import instead

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Facts(Protocol):
    """What is known of a backend."""

    @property
    def functions(self) -> tuple[str, ...]:
        """What its module must have besides."""


T = TypeVar("T", bound=Facts)

ATTRIBUTE = "FACTS"  # of each backend's module: what is known of it
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")


def later(module: str, name: str) -> Callable[..., Any]:
    """What a module has under a name, imported when it is called."""

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **named)

    return call


class UnknownNameError(UsageError, KeyError):
    """No backend has this name."""

    __str__ = UsageError.__str__


class Registry(Mapping[str, T], Generic[T]):
    """The facts of each backend of one kind, by its name.

    Args:
        kind: ``runtime``, for messages. package: of the built-in ones. group: of entry points.
        facts: the type of what a module has as FACTS.
        where: the option or key that names one, for messages.
        gone: name -> what to do instead, of backends that were here.
    """

    def __init__(
        self, kind: str, package: str, group: str, facts: type[T], where: str, gone: Mapping[str, str] | None = None
    ) -> None:
        self._kind, self._package, self._group, self._facts, self._where = kind, package, group, facts, where
        self._gone = gone or {}
        self._modules: dict[str, ModuleType] = {}
        self._built_in: tuple[str, ...] = ()

    def module(self, name: str) -> ModuleType:
        """The module of the backend of that name. Raises UnknownNameError: there is none; names the nearest.
        UsageError: another distribution's cannot be used.
        """
        if name not in self._modules:
            built_in = self._built_in_module(name) if _NAME.match(name) else None
            self._modules[name] = built_in or self._offered_module(name)
        return self._modules[name]

    def __getitem__(self, name: str) -> T:
        facts: T = getattr(self.module(name), ATTRIBUTE)
        return facts

    def __iter__(self) -> Iterator[str]:
        """The built-in ones, and those of other distributions that were looked up, the preferred ones first."""
        if not self._built_in:
            package = importlib.import_module(self._package)
            files = (file for directory in package.__path__ for file in Path(directory).iterdir())
            names = {file.name.removesuffix(".py").replace("_", "-") for file in files}
            self._built_in = tuple(filter(self._built_in_module, filter(_NAME.match, names)))
        known = {*self._built_in, *self._modules}
        return iter(sorted(known, key=lambda name: (getattr(self[name], "preference", 0), name)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def every(self) -> tuple[str, ...]:
        """The names as they are iterated, with all that other distributions offer and that can be used."""
        for entry in self._entry_points:
            with suppress(UsageError):  # reported where it is asked for
                self.module(entry.name)
        return tuple(self)

    def _built_in_module(self, name: str) -> ModuleType | None:
        """The built-in backend of that name; None where no module has it, or one that is no backend."""
        full = f"{self._package}.{name.replace('-', '_')}"
        try:
            module = importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name == full:
                return None
            raise
        return module if hasattr(module, ATTRIBUTE) else None

    def _offered_module(self, name: str) -> ModuleType:
        """The backend of that name of another distribution."""
        offered = [entry for entry in self._entry_points if entry.name == name]
        if len(offered) == 1:
            return self._loaded(offered[0])
        if offered:
            raise UsageError(
                f"several packages offer a {self._kind} {name!r}: {', '.join(sorted(map(_distribution, offered)))}",
                where=self._where,
                fix="uninstall all but one of them",
            )
        known = self.every()
        raise UnknownNameError(
            f"no {self._kind} named {name!r}",
            where=self._where,
            fix=self._gone.get(name) or instead(name, known, f"{self._kind}s: {', '.join(known)}"),
        )

    @cached_property
    def _entry_points(self) -> tuple[EntryPoint, ...]:
        """Asked for once: each time, the metadata of every installed distribution are read."""
        from importlib.metadata import entry_points

        return tuple(entry_points(group=self._group))

    def _loaded(self, entry: EntryPoint) -> ModuleType:
        try:
            module: Any = entry.load()
            why = f"{entry.value} is no module with {ATTRIBUTE}, a {self._facts.__name__}"
        except (Exception, SystemExit) as error:  # another's code: not KeyboardInterrupt, which is the user's
            module, why = None, f"{type(error).__name__}: {error}"
        facts = getattr(module, ATTRIBUTE, None)
        if isinstance(module, ModuleType) and isinstance(facts, self._facts):
            missing = [name for name in facts.functions if not callable(getattr(module, name, None))]
            if not missing:
                return module
            why = f"{entry.value} has no function {', '.join(missing)}"
        raise UsageError(
            f"the {self._kind} {entry.name!r} of the package {_distribution(entry)} cannot be used: {why}",
            where=self._where,
            fix="install a version of that package that fits, or uninstall it",
        )


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
