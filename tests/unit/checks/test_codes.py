"""Every code that a check can show a person is explained on the page of failures, and named by a test."""

from __future__ import annotations

import ast
from pathlib import Path

from runner.checks.registry import codes
from runner.environments.directory import IN_HOME
from tests.support.cases import for_each

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/failures.md").read_text()
TESTS = "".join(path.read_text() for path in (ROOT / "tests/unit").rglob("*.py") if path != Path(__file__).resolve())


def written_codes() -> set[str]:
    """The codes that stand as words in the code that makes findings, of those that only warn as well."""
    texts = (path.read_text("utf-8") for path in (ROOT / "runner").rglob("*.py"))
    calls = (
        node
        for text in texts
        # Those of ``recipe check`` are others, and have no codes.
        if "Finding(" in text and "from runner.model.plan import" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    )
    codes = {call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    return {code for code in codes if isinstance(code, str)}


ALL = sorted(codes() | {IN_HOME} | written_codes())


def test_the_codes_are_found_where_they_are_written() -> None:
    assert {"queue-unfit", "mig-slices", "nodes-down"} <= written_codes()


@for_each(ALL)
def test_the_page_of_failures_has_each_code_and_a_test_names_it(code: str) -> None:
    assert f"`[{code}]`" in PAGE
    assert f'"{code}"' in TESTS
