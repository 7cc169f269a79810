"""What chain.sh decides from what attempts have left, by real bash; Slurm's programs are stand-ins."""

import json
import os
import re
from pathlib import Path

import pytest

from runner.backends.schedulers.script_parts import ENTER
from runner.diagnosis.catalogue import FAILURES
from tests.support.shell_files import bash, library, stand_in
from tests.support.users import AS_ROOT, BOB

RUNNING = "JobState=RUNNING PreemptEligibleTime=2026-11-27T10:00:00 PreemptTime=None"
UNQUEUED = "attempt 4 could not be queued: see logs/batch.err of attempt"
CANCELLED = "slurmstepd-n2: error: *** JOB 6 ON n2 CANCELLED AT 2026-11-27T18:28:50 ***"
LIMITED = CANCELLED.replace("50 *", "50 DUE TO TIME LIMIT *")
LOST = "echo n2 >launches/2/run/nodes; echo '#SBATCH --exclude=n8,n9' >launches/4/run/job.sh"  # no end marker
QUEUED = "--parsable --dependency=afterany:7 job.sh SLURM_CONF=/c"


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It is the third attempt's turn."""
    chain = tmp_path / "my chain"
    (chain / "checkpoints").mkdir(parents=True)
    for number in (1, 2, 3, 4):
        (chain / f"launches/{number}/run/logs").mkdir(parents=True)
        (chain / f"launches/{number}/run/job.sh").touch()
    left_by_rank(chain, "start", host="n1.cluster", node_name="n1")
    library(chain / "launches/3/run")
    for name, at_s in {"launches/1/run/began": 1000, "launches/2/run/began": 2000, "checkpoints/state": 1050}.items():
        (chain / name).touch()
        os.utime(chain / name, (at_s, at_s))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stand_in(tmp_path, "scancel", 'echo "$*" >../../../cancelled')
    stand_in(tmp_path, "scontrol", "echo JobState=NODE_FAIL")
    stand_in(tmp_path, "sbatch", 'echo "$*" $(env | grep -E "^(SLURM|SBATCH)") >../../../asked; echo 9')
    return chain


def left_by_rank(chain: Path, kind: str, **fields: object) -> None:
    """A record of rank 0 of the third attempt, as its launcher writes them."""
    (chain / "launches/3/run/ranks").mkdir(exist_ok=True)
    (chain / f"launches/3/run/ranks/0.{kind}.json").write_text(json.dumps(fields, indent=1) + "\n")


def printed(chain: Path, code: str) -> str:
    done = bash(chain / "launches/3/run", f"{ENTER}\nrunner_run=$PWD SLURM_JOB_ID=7; . lib/chain.sh\n{code}")
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
        (f"echo '{CANCELLED}' >launches/2/run/logs/batch.err", *["attempt 2 was cancelled"] * 2, "", ""),
        (f"echo '{LIMITED}' >launches/2/run/logs/batch.err", "", "", QUEUED, "9"),
        (LOST, "", "", QUEUED.replace(" job.sh", " --exclude=n8,n9,n2 job.sh"), "9"),
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


@AS_ROOT
def test_no_attempt_is_queued_whose_directory_is_a_strangers(chain: Path) -> None:
    os.chown(chain / "launches/4/run", BOB, BOB)
    assert "launches/4/run is another user's by now" in printed(chain, "runner_begin_attempt 3 5")
    assert left(chain, "ended", "asked", "launches/4/run/job.id") == [f"{UNQUEUED} 3", "", ""]


def test_an_attempt_notes_the_time_of_the_checkpoint_that_it_has(chain: Path) -> None:
    os.utime(chain / "checkpoints", (1, 1))
    assert printed(chain, "runner_begin_attempt 3 5") == ""
    assert float(left(chain, "launches/3/run/resumes")[0]) == 1050


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
        ("runner_exit=1", "", RUNNING, "srun: error: task 2 launch failed: Slurmd could not connect IO\n", ""),
        ("rm ranks/*; runner_exit=1", "", RUNNING, "", ""),
        ("runner_exit=143", "", "JobState=COMPLETING", f"{CANCELLED}\n", "attempt 3 was cancelled"),
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


def test_a_cancelled_chain_keeps_its_reason(chain: Path) -> None:
    (chain / "ended").write_text("it was cancelled\n")
    (chain / "launches/3/run/cancelled.json").touch()
    assert printed(chain, "runner_exit=143; runner_end_attempt 3") == ""
    assert left(chain, "ended") == ["it was cancelled"]


_ERRORS = [row for row in FAILURES if row.source == "launcher error" and row.outcome == "infrastructure"]
_OF_GPUS = {"cuda-driver-missing", "cuda-driver-unusable", "gpus-missing"}
_XIDS = next(row.pattern for row in FAILURES if row.code == "gpu-xid-hardware")
_LINE = next(row.pattern for row in FAILURES if row.code == "gpu-hardware")


@pytest.mark.parametrize("code", [row.code for row in _ERRORS])
def test_an_error_of_the_launcher_is_a_nodes_the_meetings_or_the_users(code: str, chain: Path) -> None:
    stand_in(chain.parent, "scontrol", f"echo '{RUNNING}'")
    left_by_rank(chain, "exit", status=113, error=code)
    assert printed(chain, "runner_exit=113; runner_end_attempt 3") == ""
    is_tried_again = code in _OF_GPUS or code.startswith("rendezvous-")
    assert is_tried_again == (next(row for row in _ERRORS if row.code == code).who != "user" or "timeout" in code)
    assert left(chain, "ended") == ["" if is_tried_again else "the program ended with exit code 113"]
    assert left(chain, "sick") == [f"n1\t3\t{code}" if code in _OF_GPUS else ""]


@pytest.mark.parametrize(
    ("xids", "line", "errors", "sick"),
    [
        *[([31, int(each)], "", "", f"n1\t3\tXID {each}") for each in re.findall(r"\d+", _XIDS)],
        *[([], f"RuntimeError: {each}", "", f"n1\t3\t{each}") for each in _LINE.split("|")],
        (
            [],
            "",
            "srun: error: Node failure on n1\nsrun: error: Node failure on n2\n",
            "n1\t3\tit failed\nn2\t3\tit failed",
        ),
        ([31], "RuntimeError: CUDA error: an illegal memory access", "", ""),
    ],
)
def test_a_sick_node_is_left_out(xids: list[int], line: str, errors: str, sick: str, chain: Path) -> None:
    """The next job stays, as it may have begun by then."""
    updated = 'case $1 in update) echo "$*" >>../../../asked ;;'
    stand_in(chain.parent, "scontrol", f"{updated} *) echo '{RUNNING}' ;; esac")
    left_by_rank(chain, "exit", status=1, exit_code=1, error=None)
    left_by_rank(chain, "node", xids=xids, faults=["48", "79"])
    for name, text in {"3/run/logs/rank-0.err": line, "3/run/logs/batch.err": errors, "4/run/job.id": "8"}.items():
        (chain / "launches" / name).write_text(text)
    assert printed(chain, ": >exit.json; runner_exit=1; runner_end_attempt 3") == ""
    nodes = ",".join(row.partition("\t")[0] for row in sick.splitlines())
    ended, cancelled, asked = "" if sick else "the program ended with exit code 1", "" if sick else "8", ""
    if sick:
        asked = f"--test-only --exclude={nodes} job.sh\nupdate JobId=8 ExcNodeList={nodes}"
    assert left(chain, "sick", "ended", "cancelled", "asked") == [sick, ended, cancelled, asked]


@pytest.mark.parametrize(
    ("refused", "says"), [("--exclude", ""), ("--test-only", ""), ("afterany:7 --exclude", "no\n")]
)
def test_without_enough_other_nodes_none_is_left_out(refused: str, says: str, chain: Path) -> None:
    """Slurm has no others, they are down, or went down meanwhile."""
    (chain / "sick").write_text("n1\t2\tit failed\n")
    refuses = f'case "$*" in *{refused.replace(" ", "?")}*) echo no >&2; exit 1 ;; esac'
    stand_in(chain.parent, "sbatch", f'{refuses}; echo "$*" >../../../asked; echo 9')
    assert printed(chain, "runner_queue 4") == says
    assert left(chain, "asked", "launches/4/run/job.id") == [QUEUED.removesuffix(" SLURM_CONF=/c"), "9"]
