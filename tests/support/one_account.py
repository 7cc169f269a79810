"""Two test runs with one account: the first leaves its reports in a file, the second counts them in at its end.

So `make test` ends with one line of pytest's own, whatever it runs side by side.
"""

from __future__ import annotations

import json
from pathlib import Path

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
    for category, reports in json.loads(path.read_text("utf-8")).items():
        reporter.stats.setdefault(category, []).extend(read(config=reporter.config, data=each) for each in reports)


def failed(path: Path) -> bool:
    """Whether a test of the earlier run has failed."""
    left = json.loads(path.read_text("utf-8"))
    return bool(left["failed"] or left["error"])
