"""Why a rank's launcher did not start its program: the names that its exit record uses (``error``)."""

from __future__ import annotations

from runner.core.invocation import PROGRAM
from runner.diagnosis.failure import Consequence, Failure, Who
from runner.model.verdict import Outcome

_NOT_STARTED = "{who} did not start its program: {error}: {message}"


def _error(code: str, fix: str, who: Who, outcome: Outcome, consequence: Consequence = "no") -> Failure:
    return Failure(
        code=code,
        source="launcher error",
        pattern=rf"^{code}$",
        cause=_NOT_STARTED,
        fix=fix,
        who=who,
        outcome=outcome,
        consequence=consequence,
    )


FAILURES = (
    _error(
        "environment-differs",
        "put the environment where every node sees it under the same path, and make it of a Python that every node has",
        "user",
        "infrastructure",
    ),
    _error("world-mismatch", "start the ranks by the script that was submitted, unchanged", "user", "not-proven"),
    _error("world-unknown", "start the ranks by srun, mpiexec or the script that was submitted", "user", "failed"),
    _error("rendezvous-timeout", "see the log of the rank it waited for, then submit again", "user", "infrastructure"),
    _error("rendezvous-port-taken", "submit again: a new job uses another port", "infrastructure", "infrastructure"),
    _error("rendezvous-address", "the first node's name must resolve on all nodes", "site", "infrastructure"),
    _error(
        "record-not-written", "name a run directory that every node may write to (--runs)", "user", "infrastructure"
    ),
    _error(
        "horovod-without-gloo",
        f"start the ranks by MPI (--wireup pmix, pmi2 or mpich), or build the image: {PROGRAM} build",
        "user",
        "failed",
    ),
    _error(
        "cuda-driver-missing",
        "{driver}; a program that uses no GPU: --env RUNNER_DRIVER_TIMEOUT_S=0 leaves the look out; nodes whose GPUs "
        "are fake: `device: cpu` in the site file",
        "site",
        "infrastructure",
    ),
    _error(
        "cuda-driver-unusable",
        "run `nvidia-smi` on that node, and report it to the site; no other libcuda may stand before the node's "
        "(LD_LIBRARY_PATH)",
        "site",
        "infrastructure",
    ),
    _error(
        "cuda-driver-too-old",
        f"build on an older base ({PROGRAM} build ... --base auto --site SITE), with `hardware.driver` in the "
        "site file",
        "user",
        "infrastructure",
    ),
    _error(
        "gpus-missing",
        "compare with `nvidia-smi -L` on that node, and report a GPU that is gone; CUDA_VISIBLE_DEVICES hides those "
        "that it does not name; {driver}",
        "site",
        "infrastructure",
    ),
    # The launcher itself was started by python3.
    Failure(
        code="python-not-found",
        source="launcher error",
        pattern=r"^program-not-found$",
        context=r"^python: ",
        cause=_NOT_STARTED,
        detail="{place} has python3, not python",
        fix="start the program with python3",
        who="user",
        outcome="failed",
    ),
    Failure(
        code="script-with-crlf",
        source="launcher error",
        pattern=r"^program-not-(found|executable)$",
        context=r": it has Windows line ends \(CRLF\)",
        cause=_NOT_STARTED,
        fix="convert it: sed -i 's/\\r$//' SCRIPT",
        who="user",
        outcome="failed",
    ),
    Failure(
        code="interpreter-not-found",
        source="launcher error",
        pattern=r"^program-not-(found|executable)$",
        context=r": its (interpreter is not there|first line names no interpreter)",
        cause=_NOT_STARTED,
        fix="let its first line name an interpreter that is in the image (#!/usr/bin/env python3), or start it by one",
        who="user",
        outcome="failed",
    ),
    _error("program-not-found", "name a program that is in the image, or in the recipe's directory", "user", "failed"),
    _error("program-not-executable", "make the program executable, or start it by its interpreter", "user", "failed"),
    _error(
        "launcher-fault", "report it with the rank's exit record: this is an error in the launcher", "user", "failed"
    ),
    _error(
        "stopped-before-start",
        "find what stopped first, another rank or the job: its log has the cause",
        "user",
        "failed",
        "yes",
    ),
    Failure(
        code="launcher-error",
        source="launcher error",
        pattern=r"",
        cause=_NOT_STARTED,
        fix="see the message in the rank's exit record",
        who="user",
        outcome="failed",
    ),
    Failure(
        code="token-of-another-job",
        source="rank tokens",
        pattern=r"^differ$",
        cause="{ranks} presented the token of another job step",
        fix="remove RUNNER_* and the scheduler's variables from what the job's environment carries over",
        who="user",
        outcome="infrastructure",
    ),
)
