"""Exit codes, and the errors that carry them.

Every error a user can cause says what was wrong, where, and what to do about it, and is printed without a
traceback. The codes are the ones documented in the README; scripts may rely on them.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb."""

    GOOD = 0
    BUG = 1  # a fault of this program
    USAGE = 2  # usage, or a bad file
    REFUSED = 3  # refused by a check before anything was submitted
    NOT_ACCEPTED = 4  # the scheduler did not take the job
    PROGRAM_FAILED = 5  # the user's program failed, or its job was cancelled
    NOT_PROVEN = 6  # it ran, but its result is not proven
    BELOW_REFERENCE = 7  # proven, but below its reference
    INFRASTRUCTURE = 8  # node failure, preemption, sick node: trying again may help
    UNKNOWN = 9  # unknown, or waited too long
    INTERRUPTED = 130


class RunnerError(Exception):
    """A failure, reported to the user in three parts: what, where, and the fix.

    Attributes:
        what: what was wrong, one sentence.
        where: file, key, line, command or path; empty if there is no place to point at.
        fix: what to do about it; empty only where there is no advice.
        code: the exit code of the process.
    """

    code: Exit = Exit.BUG

    def __init__(self, what: str, *, where: str = "", fix: str = "", code: Exit | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


class UsageError(RunnerError):
    """A command line or a file is not valid (exit 2)."""

    code = Exit.USAGE


class RefusedError(RunnerError):
    """A check refused before anything was submitted or changed (exit 3)."""

    code = Exit.REFUSED


class NotAcceptedError(RunnerError):
    """The scheduler did not take the job (exit 4)."""

    code = Exit.NOT_ACCEPTED


class ProgramFailedError(RunnerError):
    """A program of the user's, or a build step, failed (exit 5)."""

    code = Exit.PROGRAM_FAILED


class NotProvenError(RunnerError):
    """It exists, and does not do what it promises (exit 6)."""

    code = Exit.NOT_PROVEN


class InfrastructureError(RunnerError):
    """An engine, a node, a disk or a daemon failed; trying again may help (exit 8)."""

    code = Exit.INFRASTRUCTURE


class UnknownStateError(RunnerError):
    """The state could not be determined in time (exit 9)."""

    code = Exit.UNKNOWN
