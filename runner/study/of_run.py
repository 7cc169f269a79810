"""What the study of a run says of its figure, for who looks at one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.jobs.directory import Run, Studies


def studies_of(run: Run) -> Studies | None:
    """As ``seen`` of ``Run.of_study``, after a look at all runs of its study; None of most runs, which are of none."""
    if run.launched_as is None:
        return None
    from runner.study.readers import of_their_studies

    return of_their_studies([run], {})
