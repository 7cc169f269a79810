"""The catalogue of failures: every row is reached by an example of its own, and explained in docs/failures.md."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from runner.diagnosis.catalogue import FAILURES, classify, find
from runner.diagnosis.failure import Failure, Source
from runner.model.exit_codes import codes

PAGE = (Path(__file__).resolve().parents[3] / "docs/failures.md").read_text()

# (source, text, context) that shows the failure: one for each row, or a new row fails here.
EXAMPLES: dict[str, tuple[Source, str, str]] = {
    "node-failed": ("scheduler state", "NODE_FAIL", "NodeDown"),
    "node-not-booted": ("scheduler state", "BOOT_FAIL", ""),
    "preempted": ("scheduler state", "PREEMPTED", ""),
    "job-not-launched": ("scheduler state", "LAUNCH_FAILED", ""),
    "allocation-revoked": ("scheduler state", "REVOKED", ""),
    "script-not-started": ("scheduler state", "FAILED", "JobLaunchFailure"),
    "time-limit": ("scheduler state", "TIMEOUT", "TimeLimit"),
    "deadline-missed": ("scheduler state", "DEADLINE", ""),
    "job-out-of-memory": ("scheduler state", "OUT_OF_MEMORY", "OutOfMemory"),
    "job-cancelled": ("scheduler state", "CANCELLED", "by uid 0"),
    "job-killed": ("scheduler state", "KILLED", ""),
    "job-unknown": ("end marker", "missing", "unknown"),
    "state-unexplained": ("unexplained state", "SPECIAL_EXIT", ""),
    "node-not-ready": ("batch script", "71", ""),
    "no-run-directory": ("batch script", "72", ""),
    "wrong-nodes": ("batch script", "73", ""),
    "not-loaded": ("batch script", "74", ""),
    "run-directory-not-written": ("job exit code", "116", ""),
    "job-exit-code": ("job exit code", "9", ""),
    "disk-full": ("run directory", "full", ""),
    "world-mismatch": ("launcher error", "world-mismatch", ""),
    "world-unknown": ("launcher error", "world-unknown", ""),
    "rendezvous-timeout": ("launcher error", "rendezvous-timeout", ""),
    "rendezvous-port-taken": ("launcher error", "rendezvous-port-taken", ""),
    "rendezvous-address": ("launcher error", "rendezvous-address", ""),
    "record-not-written": ("launcher error", "record-not-written", ""),
    "python-not-found": ("launcher error", "program-not-found", "python: No such file or directory"),
    "program-not-found": ("launcher error", "program-not-found", ""),
    "program-not-executable": ("launcher error", "program-not-executable", ""),
    "launcher-fault": ("launcher error", "launcher-fault", ""),
    "stopped-before-start": ("launcher error", "stopped-before-start", ""),
    "launcher-error": ("launcher error", "of-a-later-launcher", ""),
    "token-of-another-job": ("rank tokens", "differ", ""),
    "program-out-of-memory": ("program signal", "SIGKILL", "slurmstepd: error: Detected 1 oom_kill event"),
    "ended-by-others": ("program signal", "SIGTERM", ""),
    "bus-error": ("program signal", "SIGBUS", ""),
    "program-killed": ("program signal", "SIGKILL", "Killed"),
    "program-signal": ("program signal", "SIGSEGV", "Segmentation fault"),
    "program-exit-code": ("program exit code", "3", ""),
    "logs-not-writable": ("task starter", "launch failed: Slurmd could not connect IO", ""),
    "rank-stopped": ("task starter", "Terminated", ""),
    "rank-bus-error": ("task starter", "Bus error", ""),
    "rank-left-no-record": ("task starter", "Exited with exit code 3", ""),
    "image-lost": (
        "container log",
        "ch-run[7]: error: can't execve(2): /bin/bash: Transport endpoint is not connected",
        "",
    ),
    "container-not-started": ("container log", "slurmstepd: error: pyxis: couldn't start container", ""),
    "nccl-on-sockets": ("NCCL log", "Socket", ""),
    "libfabric-on-sockets": ("NCCL log", "libfabric tcp;ofi_rxm", ""),
}


def test_every_row_has_a_code_and_an_example_of_its_own() -> None:
    assert len({failure.code for failure in FAILURES}) == len(FAILURES)
    assert set(EXAMPLES) == {failure.code for failure in FAILURES}


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_row_is_reached_by_its_example_and_hidden_by_no_row_before_it(code: str) -> None:
    assert classify(*EXAMPLES[code]).code == code


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("scheduler state", "COMPLETED"), ("scheduler state", "FAILED"), ("unexplained state", "COMPLETED"),
        ("unexplained state", ""), ("end marker", "present"), ("batch script", "0"), ("batch script", "171"),
        ("run directory", ""), ("rank tokens", "agree"), ("NCCL log", "IB"),
        ("container log", "pyxis: importing docker image"), ("container log", "slurmstepd: error: nothing"),
    ],
)  # fmt: skip
def test_what_is_no_failure_matches_no_row(source: Source, text: str) -> None:
    assert find(source, text) is None
    with pytest.raises(LookupError, match=re.escape(f"no failure of source {source!r} matches {text!r}")):
        classify(source, text)


def test_every_exit_code_of_the_launcher_has_a_row() -> None:
    assert {entry.name for entry in codes("launcher").values()} <= set(EXAMPLES)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.code)
def test_the_page_of_failures_has_a_row_for_each(failure: Failure) -> None:
    """With the verdict's sentence, in which what is filled in stands in capitals."""
    fields = (field for _text, field, *_rest in string.Formatter().parse(failure.cause) if field)
    # Some are filled in with the blank before them: REASON stands for " (NodeDown)".
    sentence = re.sub(r"(?<=\w)\{", " {", failure.cause.replace("}{", "} {"))
    sentence = sentence.format_map({field: field.upper() for field in fields})
    assert f"| `{failure.code}` | {failure.source} | {sentence} | {failure.fix} | {failure.who} |" in PAGE
