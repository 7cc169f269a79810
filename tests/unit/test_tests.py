"""How the tests are laid out: shared parts in tests/support, and no test module that another one needs."""

import ast
import inspect
import re
from pathlib import Path

from runner.core import errors

TESTS = Path(__file__).resolve().parents[1]
SUITES = ("unit", "golden", "integration", "long")
MODULES = sorted(path for suite in SUITES for path in (TESTS / suite).rglob("*.py"))


IMPORTS = re.compile(
    rf"^ *(?:from \.|from tests import|(?:from|import) tests\.(?:{'|'.join(SUITES)})\b).*", re.MULTILINE
)


def test_nothing_imports_a_test_module() -> None:
    """What several test modules use belongs in tests/support; no import is relative."""
    wrong = [
        f"{path.relative_to(TESTS)}: {line}"
        for path in (*MODULES, *(TESTS / "support").rglob("*.py"))
        for line in IMPORTS.findall(path.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_suite_holds_test_modules_only() -> None:
    others = {path for path in MODULES if not path.name.startswith("test_")}
    assert {path.name for path in others} <= {"__init__.py", "conftest.py"}


ERRORS = frozenset(
    name for name, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.RunnerError)
)


def says_nothing(item: ast.withitem, function: ast.AST) -> bool:
    """Whether a ``with pytest.raises(SomeError)`` takes any message.

    Good are a ``match`` that not every message has, and ``as caught`` where what was caught is looked at.
    """
    call = item.context_expr
    if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises"):
        return False
    patterns = [word.value for word in call.keywords if word.arg == "match"]
    if patterns:
        return any(isinstance(each, ast.Constant) and re.match(str(each.value), "") is not None for each in patterns)
    if ast.unparse(call.args[0]).rpartition(".")[2] not in ERRORS:
        return False
    caught = ast.unparse(item.optional_vars) if item.optional_vars else ""
    return not caught or f"{caught}.value" not in ast.unparse(function)


def test_whoever_expects_an_error_says_what_it_must_say() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}:{item.context_expr.lineno}: {ast.unparse(item.context_expr)}"
        for path in MODULES
        if "raises(" in (text := path.read_text("utf-8"))
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.With)
        for item in node.items
        if says_nothing(item, function)
    ]
    assert not wrong, "\n".join(wrong)
