"""The exit codes of what runs in a job, and of the scripts that make environments: one table, one meaning each.

The scripts take their numbers from here, the verdict its sentences; the launcher, which can import nothing of this
package, and docs/failures.md are held to it by a test. The exit codes of the command line are
``runner.core.errors.Exit``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["batch script", "launcher", "environment script"]

SCRIPT_IN_CONTAINER = 70
NODE_NOT_READY = 71
NO_RUN_DIRECTORY = 72
WRONG_NODES = 73
NOT_LOADED = 74
NOT_MADE = 75
NO_FRAMEWORK = 76
NO_HOROVOD = 77
NOT_PROVEN = 78
BUSY = 79
NO_CONDA = 80
WRONG_PACKAGES = 81
ANOTHERS_DIRECTORY = 82
TIMED_OUT = 124  # as timeout(1)
CANCELLED = 143  # as a shell reports SIGTERM
RECORD_NOT_WRITTEN = 116


@dataclass(frozen=True)
class ExitCode:
    """An exit code.

    Attributes:
        code: the process's exit status.
        name: for the launcher's codes what the rank's exit record calls it (``error``).
        meaning: a sentence without its full stop, as the verdict prints it.
        source: whose code it is.
    """

    code: int
    name: str
    meaning: str
    source: Source


TABLE = (
    ExitCode(
        SCRIPT_IN_CONTAINER,
        "script-in-container",
        "the batch script itself ran in a container: PYXIS_CONTAINER_IMAGE is set on the first node",
        "batch script",
    ),
    ExitCode(NODE_NOT_READY, "node-not-ready", "the container could not be prepared on every node", "batch script"),
    ExitCode(NO_RUN_DIRECTORY, "no-run-directory", "the first node does not see the run directory", "batch script"),
    ExitCode(WRONG_NODES, "wrong-nodes", "the allocation has other nodes than planned", "batch script"),
    ExitCode(
        NOT_LOADED,
        "not-loaded",
        "a file that the script reads was changed, or a module, conda or virtual environment could not be loaded",
        "batch script",
    ),
    ExitCode(
        ANOTHERS_DIRECTORY,
        "anothers-directory",
        "a directory of the job is gone, or another user's",
        "batch script",
    ),
    ExitCode(TIMED_OUT, "timed-out", "the job ran into its time limit (without a scheduler)", "batch script"),
    ExitCode(CANCELLED, "cancelled", "the job was cancelled (without a scheduler)", "batch script"),
    ExitCode(NOT_MADE, "not-made", "the environment could not be made", "environment script"),
    ExitCode(NO_FRAMEWORK, "no-framework", "the framework could not be installed", "environment script"),
    ExitCode(NO_HOROVOD, "no-horovod", "Horovod could not be built", "environment script"),
    ExitCode(NOT_PROVEN, "not-proven", "the environment's Horovod is not proven", "environment script"),
    ExitCode(NO_CONDA, "no-conda", "conda could not be installed", "environment script"),
    ExitCode(
        WRONG_PACKAGES,
        "wrong-packages",
        "the collected packages are for another Python or machine",
        "environment script",
    ),
    ExitCode(BUSY, "busy", "the environment's lock could not be taken", "environment script"),
    ExitCode(1, "launcher-fault", "the launcher met an error that it does not foresee", "launcher"),
    ExitCode(111, "world-mismatch", "the tasks are not those that were planned", "launcher"),
    ExitCode(112, "world-unknown", "the task starter's variables do not describe a world", "launcher"),
    ExitCode(113, "rendezvous-timeout", "not every rank came to the rendezvous in time", "launcher"),
    ExitCode(114, "rendezvous-port-taken", "every port of the rendezvous is taken", "launcher"),
    ExitCode(115, "rendezvous-address", "the rendezvous host does not resolve, or is not rank 0's node", "launcher"),
    ExitCode(
        RECORD_NOT_WRITTEN, "record-not-written", "a record could not be written to the run directory", "launcher"
    ),
    ExitCode(117, "horovod-without-gloo", "Horovod has no Gloo, by which its ranks would meet", "launcher"),
    ExitCode(118, "cuda-driver-missing", "NVIDIA's driver library is not there", "launcher"),
    ExitCode(119, "cuda-driver-unusable", "NVIDIA's driver does not start", "launcher"),
    ExitCode(120, "cuda-driver-too-old", "NVIDIA's driver is too old for the CUDA of the program", "launcher"),
    ExitCode(121, "gpus-missing", "CUDA shows fewer GPUs than planned", "launcher"),
    ExitCode(122, "environment-differs", "a node's Python is not the one that the job was submitted with", "launcher"),
    ExitCode(123, "start-exchanged", "its directory became another user's", "launcher"),
    ExitCode(126, "program-not-executable", "the program cannot be executed", "launcher"),
    ExitCode(127, "program-not-found", "the program is not there", "launcher"),
)


def codes(source: Source) -> dict[int, ExitCode]:
    """The codes of one source, by number."""
    return {entry.code: entry for entry in TABLE if entry.source == source}
