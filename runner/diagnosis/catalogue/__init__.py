"""The catalogue of failures: a module for each place where they are looked for, each with ``FAILURES``.

Of the rows of one source the first that matches counts: the specific ones stand before the general one.
"""

from __future__ import annotations

from runner.diagnosis.catalogue import batch_script, container, launcher, network, program, scheduler, task_starter
from runner.diagnosis.failure import Failure, Source

_MODULES = (scheduler, batch_script, launcher, program, task_starter, container, network)

FAILURES: tuple[Failure, ...] = tuple(failure for module in _MODULES for failure in module.FAILURES)


def find(source: Source, text: str, context: str = "") -> Failure | None:
    """The failure that this text, of this source and in this context, shows; None where it shows none."""
    return next((row for row in FAILURES if row.source == source and row.matches(text, context)), None)


def classify(source: Source, text: str, context: str = "") -> Failure:
    """As ``find``, for a source whose last row matches everything.

    Raises:
        LookupError: the source has no such row.
    """
    failure = find(source, text, context)
    if failure is None:
        raise LookupError(f"no failure of source {source!r} matches {text!r}")
    return failure
