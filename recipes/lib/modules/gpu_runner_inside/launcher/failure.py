"""The launcher's own failures: a code for the exit record, and the exit status that goes with it."""

from __future__ import annotations

STATUS = {
    "launcher-fault": 1,
    "world-mismatch": 111,
    "world-unknown": 112,
    "rendezvous-timeout": 113,
    "rendezvous-port-taken": 114,
    "rendezvous-address": 115,
    "record-not-written": 116,
    "horovod-without-gloo": 117,
    "cuda-driver-missing": 118,
    "cuda-driver-unusable": 119,
    "cuda-driver-too-old": 120,
    "gpus-missing": 121,
    "environment-differs": 122,
    "start-exchanged": 123,
    "program-not-executable": 126,
    "program-not-found": 127,
}


class LaunchError(Exception):
    """The launcher's own failure. ``code``: one of STATUS, or ``stopped-before-start``."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code] if status is None else status
