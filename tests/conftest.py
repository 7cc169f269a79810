"""Options of the test run. In continuous integration (``CI`` set) no selected test may skip."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator

import pytest

# Started in the background by a shell, this process ignores SIGINT, and so would every child that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden scripts anew; read the diff")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The wall time of all of ``make test``, above pytest's own last line."""
    began = os.environ.get("MAKE_TEST_BEGAN")
    if began:
        terminalreporter.write_line(f"wall time of make test so far: {time.time() - int(began):.0f} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in continuous integration: {report.longrepr}"
    return report
