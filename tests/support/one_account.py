"""Two test runs with one account: the first leaves its reports in a file, the second counts them in at its end.

So `make test` ends with one line of pytest's own, whatever it runs side by side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")


def leave(path: Path, reporter: pytest.TerminalReporter) -> None:
    """Write the reports of this run; which process made each is left out."""
    serialise = reporter.config.hook.pytest_report_to_serializable
    reports = {
        category: [
            {**serialise(config=reporter.config, report=each), "node": None}
            for each in reporter.stats.get(category, [])
        ]
        for category in COUNTED
    }
    path.write_text(json.dumps(reports), "utf-8")


def count_in(path: Path, reporter: pytest.TerminalReporter) -> None:
    """Add the reports that an earlier run has left to those of this one."""
    read = reporter.config.hook.pytest_report_from_serializable
    for category, reports in _left(path).items():
        for each in reports:
            report = read(config=reporter.config, data=each)
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)  # of a skipped test; JSON knows no tuples
            reporter.stats.setdefault(category, []).append(report)


def failed(path: Path) -> bool:
    """Whether a test of the earlier run has failed."""
    left = _left(path)
    return bool(left["failed"] or left["error"])


def ran(path: Path) -> bool:
    """Whether the earlier run had a test at all."""
    return any(_left(path).values())


def _left(path: Path) -> dict[str, list[dict[str, Any]]]:
    left: dict[str, list[dict[str, Any]]] = json.loads(path.read_text("utf-8"))
    return left
