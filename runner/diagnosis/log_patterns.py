"""Lines of logs that say what happened in a job, by the programs that write them."""

from __future__ import annotations

import re

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
# srun, and the controller of runner.backends.schedulers.ssh.
FAILED_NODE = re.compile(r"(?:srun|hosts): error: Node failure on ([^\s:]+)")
