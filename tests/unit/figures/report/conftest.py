"""A study and its report, made once: no test changes them."""

from __future__ import annotations

import pytest

from runner.figures.report.gather import study_report
from runner.model.report import Report
from runner.model.study import StudyFacts
from tests.support.reports import whole_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFacts:
    """Of 1 to 16 GPUs on two nodes, of which the second is slow; a launch on 32 GPUs was never started."""
    return whole_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def report(study: StudyFacts) -> Report:
    """Of that study."""
    return study_report(study)
