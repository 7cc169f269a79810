"""The command line within a unit test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from runner.cli import run
from runner.core import paths, strict_yaml
from runner.core.errors import Exit
from runner.jobs import creation, submission
from runner.jobs.directory import Run
from runner.model.step import LIBRARY
from tests.support.commands import Call, Output


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """What this process writes need not survive a power failure; that it is synced is seen in other processes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda _file: None)
        yield


# A document is never changed: the same bytes under the same name give the same one, also while tests are collected.
vars(strict_yaml)["document_of"] = cache(strict_yaml.document_of)


@pytest.fixture(scope="session", autouse=True)
def _of_jobs_from_this_process_the_launcher_is_compiled_once() -> Iterator[None]:
    """And this checkout's commit is asked for once. Jobs from other processes show what happens without that."""
    copy, library = creation.copy_program, paths.share("recipes") / "lib"
    compiled = sorted(library.rglob("__pycache__"))

    def copied(run: Run, of: Path, recipe: Path | None) -> None:
        copy(run, of, recipe)
        for each in compiled if of == library else ():
            (run.path / LIBRARY / each.relative_to(library)).symlink_to(each)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(creation, "copy_program", copied)
        monkeypatch.setattr(submission, "_source", cache(submission._source))
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
