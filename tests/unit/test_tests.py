"""How the tests are laid out: shared parts in tests/support, and no test module that another one needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SUITES = ("unit", "golden", "integration", "long")
MODULES = sorted(path for suite in SUITES for path in (TESTS / suite).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Dotted names of all modules that a file may import; of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)


def test_nothing_imports_a_test_module() -> None:
    """What several test modules use belongs in tests/support."""
    wrong = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in (*MODULES, *(TESTS / "support").rglob("*.py"))
        for name in imported(path)
        if any(f"{name}.".startswith(f"tests.{suite}.") for suite in SUITES)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_suite_holds_test_modules_only() -> None:
    others = {path for path in MODULES if not path.name.startswith("test_")}
    assert {path.name for path in others} <= {"__init__.py", "conftest.py"}
