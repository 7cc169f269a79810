"""Jobs from Python.

The same stages as the command line's, and the same objects as its JSON. Nothing is printed; what goes wrong is raised
as an error of ``runner.core.errors``, whose ``code`` is the command line's exit code.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from runner.core.errors import RefusedError, UsageError
from runner.jobs import directory as run_directories
from runner.jobs.facts import run_facts
from runner.model.output import Cancellation, Preparation, RunFacts, shown_plan
from runner.model.plan import Finding
from runner.model.verdict import Verdict
from runner.preparation.options import Options, program_of, values_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CheckRefusedError(RefusedError):
    """A check refuses the job: nothing was submitted.

    Attributes:
        findings: of all checks; each has ``code``, ``what`` and ``fix``.
    """

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        first = next(each for each in findings if each.severity == "refuse" and not each.forced)
        super().__init__(f"{first.what} [{first.code}]", fix=first.fix)


class Run:
    """A run: queued, running or ended.

    Attributes:
        id: its id. directory: all that it was given and left.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    @property
    def id(self) -> str:
        """Its id, by which the command line knows it, too."""
        return self.directory.name

    @property
    def verdict(self) -> Verdict | None:
        """What the run is worth, once ``wait`` or ``status`` has judged it; no scheduler is queried."""
        return self._files.verdict

    def status(self) -> RunFacts:
        """All that is known of it now, as ``status --json`` shows it.

        Raises:
            UnknownStateError: the scheduler does not answer.
        """
        from runner.jobs.life import standing

        return run_facts(self._files, standing(self._files))

    def wait(self, timeout: float | None = None) -> Verdict:
        """Wait until it has ended, and judge it. Ctrl-C ends the waiting, not the job.

        Args:
            timeout: seconds to wait at most.

        Raises:
            UsageError: the timeout is no number of seconds.
            UnknownStateError: that time is over, or the scheduler does not answer.
        """
        from runner.jobs.life import finish

        check_timeout(timeout)
        return finish(self._files, lambda _progress: None, warn, timeout_s=timeout)

    def cancel(self) -> Cancellation:
        """Cancel its job; no error if it has already ended.

        Raises:
            UnknownStateError: the scheduler does not answer.
        """
        from runner.jobs.states import cancel_run

        job_id, had_ended = cancel_run(self._files)
        return Cancellation(self.id, str(self.directory), job_id, had_ended)

    def logs(self, rank: int | None = None) -> dict[str, str]:
        """Its logs that are not empty: file name -> text. ``rank``: only those of this rank."""
        pattern = "*" if rank is None else f"rank-{rank}.*"
        found = {path.name: path.read_text("utf-8", "replace") for path in sorted(self._files.logs.glob(pattern))}
        return {name: text for name, text in found.items() if text}

    @property
    def _files(self) -> run_directories.Run:
        return run_directories.Run(self.directory)

    def __repr__(self) -> str:
        verdict = self.verdict
        return f"<run {self.id}{f': {verdict.outcome}' if verdict else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.directory == other.directory

    def __hash__(self) -> int:
        return hash(self.directory)


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, dry_run: Literal[False] = False, **options: Unpack[Options]
) -> Run: ...


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, dry_run: Literal[True], **options: Unpack[Options]
) -> Preparation: ...


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, dry_run: bool, **options: Unpack[Options]
) -> Run | Preparation: ...


def submit(
    gpus: int, command: Sequence[str] = (), *, dry_run: bool = False, **options: Unpack[Options]
) -> Run | Preparation:
    """Submit a job of ``gpus`` ranks, one for each GPU, and return its run without waiting for it.

    Args:
        command: the program and its arguments, started in the working directory: ``["python", "train.py"]``; with a
            recipe, arguments of the recipe's program. Without both, the default recipe, a benchmark, is run.
        dry_run: return the script, the plan and the findings of the checks, and change nothing.
        options: see ``runner.preparation.options``; None stands for the default. In ``env`` None takes a variable away,
            and True gives it its value in this process; ``time`` is ``[D-][H:]M:S``, or seconds.

    Raises:
        UsageError: an option is wrong. CheckRefusedError, RefusedError: the job cannot run so.
        NotAcceptedError: the scheduler did not take it. UnknownStateError: it is unknown whether it did.
    """
    from runner.preparation.job import prepare, start
    from runner.preparation.request import make_request

    request = make_request({**values_of("submit", options), "gpus": gpus, "arguments": program_of(command)})
    prepared = prepare(request, keep=not dry_run)
    if dry_run:
        return Preparation(
            prepared.script.text,
            shown_plan(prepared.plan),
            prepared.findings,
            prepared.unconfirmed,
            prepared.script.files,
        )
    if prepared.is_refused:
        raise CheckRefusedError(prepared.findings)
    return Run(start(prepared)[0].path)


def runs(name: str | None = None) -> list[Run]:
    """Your runs, the newest first; with ``name`` those whose id or name is this, or begins so. No scheduler is queried.

    Submissions that the scheduler did not take are left out.
    """
    from runner.jobs.lookup import was_refused

    def is_meant(run: run_directories.Run) -> bool:
        return name is None or run.run_id.startswith(name) or run.name.startswith(name)

    return [Run(run.path) for run in run_directories.linked() if is_meant(run) and not was_refused(run)]


def check_timeout(timeout: float | None) -> None:
    """Whether it is a number of seconds, or None.

    Raises:
        UsageError: it is something else.
    """
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):  # nor NaN
        fix = "a number of seconds, zero or more; None waits to the end"
        raise UsageError(f"the timeout is {timeout!r}", where="timeout", fix=fix)


def warn(text: str) -> None:
    """A warning of Python's."""
    warnings.warn(text, RuntimeWarning, stacklevel=3)
