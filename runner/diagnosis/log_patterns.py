"""Lines of logs that say what happened in a job, by the programs that write them."""

from __future__ import annotations

import re

# A line of the batch script's log that reports an error.
ERROR = re.compile(r"error|fatal|slurmstepd|killed|no such|denied", re.IGNORECASE)
# What only follows when a step is ended.
AFTERMATH = re.compile(r"CANCELLED AT|Terminat(?:ed|ing)|Killed|exit code 143|forcing job|Job step aborted")
# How srun reports that tasks ended, or could not start: "srun: error: dgx01: tasks 0-2,5: Exited with exit code 3",
# "srun: error: task 2 launch failed: Slurmd could not connect IO".
TASK_END = re.compile(r"srun: error: (?:(\S+): )?tasks? ([\d,-]+):? ((?<=: ).+|launch failed: .+)")
# srun, and the controller of runner.schedulers.ssh.
FAILED_NODE = re.compile(r"(?:srun|hosts): error: Node failure on ([^\s:]+)")
