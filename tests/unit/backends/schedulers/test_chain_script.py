"""What chain.sh decides from what attempts have left, by real bash; Slurm's programs are stand-ins."""

import os
from pathlib import Path

import pytest

from tests.support.shell_files import bash, library, stand_in

RUNNING = "JobState=RUNNING PreemptEligibleTime=2026-11-27T10:00:00 PreemptTime=None"
UNQUEUED = "attempt 4 could not be queued: see logs/batch.err of attempt"
QUEUED = "--parsable --dependency=afterany:7 job.sh SLURM_CONF=/c"


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It is the third attempt's turn."""
    chain = tmp_path / "my chain"
    (chain / "checkpoints").mkdir(parents=True)
    for number in (1, 2, 3, 4):
        (chain / f"launches/{number}/run/logs").mkdir(parents=True)
    library(chain / "launches/3/run")
    for name, at_s in {"launches/1/run/began": 1000, "launches/2/run/began": 2000, "checkpoints/state": 1050}.items():
        (chain / name).touch()
        os.utime(chain / name, (at_s, at_s))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stand_in(tmp_path, "scancel", 'echo "$*" >../../../cancelled')
    stand_in(tmp_path, "sbatch", 'echo "$*" $(env | grep -E "^(SLURM|SBATCH)") >../../../asked; echo 9')
    return chain


def printed(chain: Path, code: str) -> str:
    done = bash(chain / "launches/3/run", f"runner_run=$PWD SLURM_JOB_ID=7; . lib/chain.sh\n{code}")
    return done.stdout + done.stderr


def left(chain: Path, *names: str) -> list[str]:
    return [(chain / name).read_text().strip() if (chain / name).exists() else "" for name in names]


@pytest.mark.parametrize(
    ("before", "says", "ended", "queued", "job"),
    [
        (":", "", "", QUEUED, "9"),
        ("echo some reason >ended", "some reason", "some reason", "", ""),
        ("touch checkpoints/done", "the program is done", "the program is done", "", ""),
        ("touch launches/2/run/cancelled.json", *["attempt 2 was cancelled"] * 2, "", ""),
        ("touch -d @999 checkpoints/state", *["attempts 1 and 2 left no newer checkpoint"] * 2, "", ""),
        ("echo 8 >launches/4/run/job.id", "", "", "", "8"),  # by a job that was requeued
        ("sbatch() { echo no >&2; false; }", "no\nattempt 4 could not be queued", f"{UNQUEUED} 3", "", ""),
        ("sbatch() { echo cancelled >../../../ended; echo 9; }", "", "cancelled", "", ""),  # meanwhile
    ],
)  # fmt: skip
def test_an_attempt_begins_and_queues_the_next(
    before: str, says: str, ended: str, queued: str, job: str, chain: Path
) -> None:
    if before.startswith("sbatch"):
        stand_in(chain.parent, "sbatch", f"{before}; sbatch")
    else:
        bash(chain / "launches/3/run", f'cd "{chain}"; {before}')
    given = "export SBATCH_QOS=y SLURM_CONF=/c SLURM_NTASKS=2"
    assert (
        printed(chain, f"{given}; runner_begin_attempt 3 5").strip().removeprefix("attempt 3 did not begin: ") == says
    )
    assert left(chain, "ended", "asked", "launches/4/run/job.id") == [ended, queued, job]


@pytest.mark.parametrize(
    ("code", "notices", "state", "errors", "why"),
    [
        ("runner_exit=0", "", RUNNING, "", "the program is done"),
        ("runner_exit=3", "", RUNNING, "", "the program ended with exit code 3"),
        ("runner_exit=0", "USR1\n", RUNNING, "", ""),
        ("runner_exit=3", "USR1\n", RUNNING, "", ""),
        (":", "", RUNNING, "", ""),  # before its ranks
        ("runner_exit=143", "", "JobState=TIMEOUT", "", ""),
        ("runner_exit=0", "", "JobState=NODE_FAIL", "", ""),
        ("runner_exit=143", "", RUNNING.replace("None", "2026-11-27T10:00:00"), "", ""),
        ("runner_exit=1", "", RUNNING, "srun: error: Node failure on n1\n", ""),
        ("runner_exit=1", "", "", "", ""),  # Slurm does not answer
    ],
)
def test_what_the_end_of_a_program_means(
    code: str, notices: str, state: str, errors: str, why: str, chain: Path
) -> None:
    stand_in(chain.parent, "scontrol", f"echo '{state}'")
    for name, text in {"3/run/notices": notices, "3/run/logs/batch.err": errors, "4/run/job.id": "8"}.items():
        (chain / "launches" / name).write_text(text)
    assert printed(chain, f"{code}; runner_end_attempt 3") == ""
    assert left(chain, "ended", "cancelled", "launches/4/run/job.id") == ([why, "8", ""] if why else ["", "", "8"])
