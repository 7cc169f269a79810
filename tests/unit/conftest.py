"""The command line within a unit test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache

import pytest

from runner.cli import run
from runner.core import strict_yaml
from runner.core.errors import Exit
from tests.support.commands import Call, Output


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """What this process writes need not survive a power failure; that it is synced is seen in other processes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda _file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _a_file_of_yaml_is_parsed_once() -> Iterator[None]:
    """A document is never changed: the same bytes under the same name give the same one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(strict_yaml, "document_of", cache(strict_yaml.document_of))
        yield


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line in this process, which must end with ``code``; returns what it printed."""

    def called(*words: str, code: int = Exit.GOOD) -> Output:
        capfd.readouterr()
        ended = run(list(words))
        printed = Output(*capfd.readouterr())
        assert ended == code, printed.err
        return printed

    return called


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
