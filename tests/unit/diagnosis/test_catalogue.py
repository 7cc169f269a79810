"""The catalogue of failures: every row is reached by an example of its own, and explained in docs/failures.md."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from runner.diagnosis.catalogue import FAILURES, Failure, Source, classify, find
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
    "environment-differs": ("launcher error", "environment-differs", ""),
    "world-mismatch": ("launcher error", "world-mismatch", ""),
    "world-unknown": ("launcher error", "world-unknown", ""),
    "rendezvous-timeout": ("launcher error", "rendezvous-timeout", ""),
    "rendezvous-port-taken": ("launcher error", "rendezvous-port-taken", ""),
    "rendezvous-address": ("launcher error", "rendezvous-address", ""),
    "record-not-written": ("launcher error", "record-not-written", ""),
    "horovod-without-gloo": ("launcher error", "horovod-without-gloo", ""),
    "cuda-driver-missing": ("launcher error", "cuda-driver-missing", ""),
    "cuda-driver-unusable": ("launcher error", "cuda-driver-unusable", ""),
    "cuda-driver-too-old": ("launcher error", "cuda-driver-too-old", ""),
    "gpus-missing": ("launcher error", "gpus-missing", ""),
    "python-not-found": ("launcher error", "program-not-found", "python: No such file or directory"),
    "script-with-crlf": (
        "launcher error",
        "program-not-found",
        "./a: No such file or directory: it has Windows line ends (CRLF): its first",
    ),
    "interpreter-not-found": (
        "launcher error",
        "program-not-found",
        "./a: No such file or directory: its interpreter is not there: its first",
    ),
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
    "script-lines-with-crlf": ("program exit code", "127", "/usr/bin/env: ‘python3\\r’: No such file or directory"),
    "python-not-in-path": ("program exit code", "127", "train.sh: line 2: python: command not found"),
    "interpreter-not-in-path": ("program exit code", "127", "/usr/bin/env: 'pythn': No such file or directory"),
    "program-exit-code": ("program exit code", "3", ""),
    "logs-not-writable": ("task starter", "launch failed: Slurmd could not connect IO", ""),
    "rank-killed": ("task starter", "Killed", ""),
    "rank-stopped": ("task starter", "Terminated", ""),
    "rank-bus-error": ("task starter", "Bus error", ""),
    "rank-lost-its-image": (
        "task starter",
        "Exited with exit code 127",
        "/bin/bash: error while loading shared libraries: libtinfo.so.6: cannot open shared object file: Error 107",
    ),
    "rank-left-no-record": ("task starter", "Exited with exit code 3", ""),
    "plugin-not-loaded": ("task starter", "launch failed: Plugin initialization failed", ""),
    "program-read-error": ("program exit code", "1", "OSError: [Errno 5] Input/output error: '/opt/lib.so'"),
    "no-user-namespace": (
        "container log",
        "enroot-nsenter: failed to create user namespace: No space left on device",
        "none",
    ),
    "stage-image-differs": (
        "container log",
        "dgx01: cannot stage the image: /i.sqsh is not what was converted: its SHA-256 differs",
        "none",
    ),
    "stage-failed": ("container log", "dgx01: cannot stage the image: no room: 9 bytes needed, 1 free in /tmp", "none"),
    "pyxis-not-loaded": ("container log", "srun: unrecognized option '--container-image=/i.sqsh'", "none"),
    "runtime-not-on-node": ("container log", "bash: line 1: exec: enroot: not found", "none"),
    "no-python-in-image": ("container log", "bash: line 1: exec: python3: not found", "none"),
    "gpu-hook-failed": (
        "container log",
        "pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",
        "none",
    ),
    "fabric-hook-failed": (
        "container log",
        "pyxis:     [ERROR] /etc/enroot/hooks.d/99-mellanox.sh exited with return code 1",
        "none",
    ),
    "hook-failed": (
        "container log",
        "pyxis:     [ERROR] /etc/enroot/hooks.d/50-slurm-pmi.sh exited with return code 1",
        "none",
    ),
    "runtime-tool-missing": ("container log", "pyxis:     [ERROR] Command not found: unsquashfs", "none"),
    "mount-source-missing": (
        "container log",
        "pyxis: --container-mounts: source path does not exist: /data/in",
        "none",
    ),
    "mount-failed": (
        "container log",
        "enroot-mount: failed to mount: /data/in at /var/tmp/data/runner-92/data: No such file or directory",
        "some",
    ),
    "run-directory-not-on-node": ("container log", "[ERROR] No such file or directory: /runs/my run/enroot.rc", "none"),
    "container-gone": ("container log", "[ERROR] No such file or directory: /var/tmp/data/runner-92", "none"),
    "image-missing": ("container log", "pyxis:     [ERROR] No such file or directory: /lustre/my image.sqsh", "some"),
    "container-name-taken": ("container log", "[ERROR] File already exists: /home/u/data/runner-92", "none"),
    "no-room-for-image": (
        "container log",
        "pyxis:     Write on output file failed because No space left on device",
        "none",
    ),
    "data-path-not-writable": (
        "container log",
        "pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied",
        "none",
    ),
    "no-fuse": ("container log", "[WARN] fuse: device not found, try 'modprobe fuse' first", "none"),
    "image-damaged": ("container log", "pyxis:     gzip uncompress failed with error code -5", "some"),
    "image-not-mounted": ("container log", "pyxis:     [ERROR] Failed to mount: /i.sqsh", "none"),
    "unpacking-killed": ("container log", "pyxis: child 6731 failed with error code: 137", "none"),
    "no-shell-in-image": (
        "container log",
        "pyxis:     enroot-switchroot: failed to execute: /bin/sh: Exec format error",
        "none",
    ),
    "no-working-directory": (
        "container log",
        "pyxis: couldn't chdir to /results/recipe: No such file or directory",
        "some",
    ),
    "enroot-silent": ("container log", "Enroot ended without a message", "some"),
    "image-lost": (
        "container log",
        "ch-run[7]: error: can't execve(2): /bin/bash: Transport endpoint is not connected",
        "none",
    ),
    "runtime-failed": ("container log", "pyxis: couldn't join mount namespace: Operation not permitted", "some"),
    "container-not-started": ("container log", "FATAL: container creation failed: no such device", "none"),
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
        ("container log", "pyxis: child 12 failed with error code: 1"), ("container log", "my container is full"),
        ("container log", "pyxis: container was not started successfully by another task"),
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
    fix = failure.fix.replace("{driver}", "DRIVER").replace("{maxrss}", "MAXRSS")
    assert f"| `{failure.code}` | {failure.source} | {sentence} | {fix} | {failure.who} |" in PAGE
