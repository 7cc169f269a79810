"""Lines of logs that say what happened in a job, by the programs that write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from runner.model.verdict import Outcome

# A line of the batch script's log that reports an error.
ERROR = re.compile(r"error|fatal|slurmstepd|killed|no such|denied", re.IGNORECASE)
# What only follows when a step is ended.
AFTERMATH = re.compile(r"CANCELLED AT|Terminat(?:ed|ing)|Killed|exit code 143|forcing job|Job step aborted")
# Where a step or job is ended from outside: what follows in the log follows from it.
END = re.compile(r"CANCELLED AT|forcing job termination|Job step aborted|Terminating (?:StepId|job)")
# How programs end whose container's image is unmounted under them, as at the end of a job.
IMAGE_LOST = re.compile(r"\[Errno 107\]|\bError 107\b|Transport endpoint is not connected|\bBus error\b")
# What an ended step's tasks report.
ENDED = re.compile(r"srun: error: (?:\S+: )?tasks? [\d,-]+: (?!Out Of Memory)")
# A line with which a program says what failed: "ValueError: ...", "error: ...".
PROGRAM_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Fault)\b(?::|$)|\b(?i:error|fatal):")
# How srun reports that tasks ended, or could not start: "srun: error: dgx01: tasks 0-2,5: Exited with exit code 3",
# "srun: error: task 2 launch failed: Slurmd could not connect IO".
TASK_END = re.compile(r"srun: error: (?:(\S+): )?tasks? ([\d,-]+):? ((?<=: ).+|launch failed: .+)")
# srun, and the controller of runner.backends.schedulers.hosts.
FAILED_NODE = re.compile(r"(?:srun|hosts): error: Node failure on ([^\s:]+)")


# Where a failure is looked for, and what the text is that its pattern is matched with.
Source = Literal[
    "scheduler state",  # the scheduler's last state of the job; context: its reason
    "unexplained state",  # the same, where no rank and no script explains it
    "end marker",  # "missing", where the batch script left none; context: the phase that the scheduler reports
    "batch script",  # the batch script's own exit code
    "job exit code",  # the job's exit code, where no rank's record explains it
    "run directory",  # "full", where no record fits into it
    "launcher error",  # the launcher's own failure, in a rank's exit record
    "rank tokens",  # "differ", where ranks came with tokens of several job steps
    "program signal",  # the signal that ended a rank's program; context: what srun and the rank's log say of it
    "program exit code",  # a rank's program's own; context: the last line of the rank's log
    "task starter",  # what srun reports of a rank that left no exit record; context: the last line of the rank's log
    "container log",  # a line of a rank's or the batch script's log, where no rank started
    "NCCL log",  # a network that NCCL reports
]
Who = Literal["user", "site", "infrastructure"]
# Whether the end of a rank is only what follows from another one's: never, perhaps, always.
Consequence = Literal["no", "perhaps", "yes"]


@dataclass(frozen=True)
class Failure:
    """A row of the catalogue.

    Attributes:
        code: its name in docs/failures.md, kebab-case.
        source: where it is looked for.
        pattern: searched in the source's text; a regular expression.
        cause: the verdict's sentence; names in braces are filled in with what is known of the run.
        fix: what to do about it; ``{driver}`` is what brings NVIDIA's driver into the run's runtime, and
            ``{maxrss}`` what tells the memory that it used.
        who: who can do so.
        outcome: of a run that fails by it.
        context: searched in the source's context; empty where any will do.
        unless: the row does not match where this is in the text; empty for no exception.
        detail: a second sentence of the verdict; empty for none.
        consequence: whether it only follows from another rank's end.
    """

    code: str
    source: Source
    pattern: str
    cause: str
    fix: str
    who: Who
    outcome: Outcome
    context: str = ""
    unless: str = ""
    detail: str = ""
    consequence: Consequence = "no"

    def matches(self, text: str, context: str) -> bool:
        """Whether the row describes this text, seen in this context."""
        return (
            re.search(self.pattern, text) is not None
            and re.search(self.context, context) is not None
            and not (self.unless and re.search(self.unless, text))
        )
