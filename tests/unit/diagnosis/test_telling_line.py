"""Which line of a log is quoted: the cause, and not what followed from the end of the job or of its image."""

from __future__ import annotations

import pytest

from runner.diagnosis.logs import before_end, of_script

FAILED = "srun: error: dgx01: task 3: Exited with exit code 1"
CANCELLED = "slurmstepd: error: *** JOB 5 ON dgx01 CANCELLED AT 2026-11-21T20:53:49 ***"
LOST = (
    "Exception ignored in: <finalize object at 0x7f>",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/weakref.py", line 590, in __call__',
    "OSError: [Errno 107] Transport endpoint is not connected",
)


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        ((FAILED, "srun: Terminating StepId=5.0", CANCELLED, "srun: error: dgx01: task 0: Bus error"), FAILED),
        ((CANCELLED, "srun: forcing job termination", "srun: error: dgx01: tasks 0-7: Bus error"), CANCELLED),
        ((CANCELLED, "srun: error: dgx01: task 0: Exited with exit code 1"), CANCELLED),
        (("srun: error: dgx01: task 0: Bus error", "srun: Terminating StepId=5.0"),
            "srun: error: dgx01: task 0: Bus error"),
        ((CANCELLED, "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0"),
            "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0"),
        (("job.sh: line 107: 30422 Bus error   ( exec ch-run )", "fatal: planted"), "fatal: planted"),
        (("fatal: planted", "job.sh: line 107: 30422 Bus error   ( exec ch-run )"), "fatal: planted"),
        ((CANCELLED, "srun: error: dgx01: task 3: Aborted", "srun: error: dgx02: tasks 6-7: Bus error"), CANCELLED),
        ((CANCELLED, "srun: error: dgx01: task 3: Out Of Memory"), "srun: error: dgx01: task 3: Out Of Memory"),
        (("hello",), ""),
        ((), ""),
    ],
)  # fmt: skip
def test_of_the_scripts_log_what_came_before_the_end_counts(lines: tuple[str, ...], quoted: str) -> None:
    assert of_script(lines) == quoted


@pytest.mark.parametrize("error", ["ValueError: planted", "my.module.CustomError: x", "main.c:7: fatal: no GPU"])
@pytest.mark.parametrize("lost", [LOST, LOST[-1:], ("bash: Bus error",)])
def test_of_a_ranks_log_the_error_before_the_loss_of_its_image_counts(error: str, lost: tuple[str, ...]) -> None:
    assert before_end(("epoch 1", error, "cleaning up", *lost, "")) == error


@pytest.mark.parametrize(
    "lines", [(), ("ValueError: planted",), ("epoch 1", *LOST), ("ValueError: x", *LOST, "after it")]
)
def test_a_log_without_such_an_end_or_without_another_error_is_quoted_as_ever(lines: tuple[str, ...]) -> None:
    assert before_end(lines) == ""


STEP = "slurmstepd-dgx01: error: *** STEP 9.1 ON dgx01 CANCELLED AT 2026-11-22T09:55:25 ***"


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (("ValueError: planted", STEP), "ValueError: planted"),
        (("ValueError: planted", *LOST, STEP, STEP), "ValueError: planted"),
        (("epoch 1", *LOST, STEP), LOST[-1]),
        ((STEP,), ""),
        ((STEP, "ValueError: while it ended"), ""),
    ],
)
def test_what_slurm_writes_of_the_end_into_a_ranks_log_is_not_quoted(lines: tuple[str, ...], quoted: str) -> None:
    assert before_end(lines) == quoted
