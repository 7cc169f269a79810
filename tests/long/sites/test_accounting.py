"""Accounts, QOS and limits that a real Slurm enforces: what it refuses, what waits, and who cancelled a job."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.box.config import DEFAULT_SLURM
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.rank_records import document_of
from tests.support.sites.accounting import begin, manage
from tests.support.sites.clusters import Cluster, cluster
from tests.support.users import become
from tests.support.waiting import until

OTHER_USER = 4711


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Perlmutter's shape and its rules: an account for GPUs, and the QOS regular and debug with limits of their own.

    With Slurm 22.05: Debian's slurmdbd 24.11 does not start with its libmariadb 11.8.9 ("number of columns (=0)").
    """
    with cluster("perlmutter", tmp_path_factory.mktemp("perlmutter"), DEFAULT_SLURM) as made:
        begin(made.daemons)
        for words in (
            ("add", "qos", "regular"),
            ("add", "qos", "debug"),
            ("modify", "qos", "debug", "set", "maxwall=00:30:00", "flags=DenyOnLimit"),
            ("add", "qos", "short"),  # that no account has
            ("add", "qos", "one"),
            ("modify", "qos", "one", "set", "grpjobs=1"),
            ("add", "qos", "tiny"),
            ("modify", "qos", "tiny", "set", "maxtresperjob=gres/gpu=2"),
            ("add", "account", "m1234_g", "qos=regular,debug,one,tiny", "defaultqos=debug"),
            ("add", "user", "root", "account=m1234_g"),
            ("modify", "account", "m1234_g", "set", "grptres=gres/gpu=8"),
            ("add", "user", "operator", "account=m1234_g", "adminlevel=operator"),
        ):
            if "operator" in words:
                line = f"operator:x:{OTHER_USER}:{OTHER_USER}::/:/bin/sh"
                made.daemons.inside("sh", "-c", f"echo {line} >>/etc/passwd")
            manage(made.daemons, *words)
        yield made


@pytest.fixture(scope="module")
def runner(here: Cluster, squashfs: StoredImage) -> Runner:
    return replace(here.runner(squashfs.path), runs=here.directory / "runs")


def request(here: Cluster, gpus: int, *words: str) -> tuple[str, ...]:
    image = ("--image", here.image("registry"), "--env", "RUNNER_RDV_TIMEOUT_S=240")
    return ("submit", "--recipe", "probe", "--gpus", str(gpus), *image, *words)


def test_the_sites_account_and_qos_are_accepted_and_run(here: Cluster, runner: Runner) -> None:
    runner(*request(here, 4, "--account", "m1234", "--wait"), code=6)
    run = runner.newest()
    assert document_of(run, "verdict")["reasons"] == ["ranks 0, 1, 2, 3 saw no GPU"]
    assert sacct(here, run, "Account,QOS,State") == "m1234_g|regular|COMPLETED"


@pytest.mark.parametrize(
    ("words", "refusal", "fix"),
    [
        (("--account", "m9999"), "Invalid account or account/partition combination specified", "with --account"),
        (("--account", "m1234", "--queue", "short"), "Invalid qos specification", "with --queue"),
        (("--account", "m1234", "--queue", "debugg"), "Invalid qos specification", "with --queue"),
        (
            ("--account", "m1234", "--queue", "debug", "--time", "40:00"),
            "Job violates accounting/QOS policy",
            "show qos",
        ),
    ],
)
def test_what_the_rules_forbid_is_refused_with_its_fix(
    here: Cluster, runner: Runner, words: tuple[str, ...], refusal: str, fix: str
) -> None:
    """Our own checks know some of it and are overridden here: these are Slurm's."""
    forced = ("--force", "queue-unfit")
    said = runner(*request(here, 4, *words, *forced), code=4)
    assert refusal in said.err
    assert fix in said.err


@pytest.mark.parametrize(
    ("queue", "gpus", "reason"),
    [
        ("regular", 8, "AssocGrpGRES: the account's limit on GPUs is reached"),
        ("one", 4, "QOSGrpJobsLimit: the QOS's limit on jobs at once is reached"),
    ],
)
def test_a_job_that_waits_for_a_limit_says_so_and_starts_when_it_is_free(
    here: Cluster, runner: Runner, queue: str, gpus: int, reason: str
) -> None:
    mine = ("--account", "m1234", "--queue", queue, "--json")
    first, second = (
        Path(result(runner(*request(here, gpus, *mine), "--", "--sleep", seconds, code=0).out)["directory"])
        for seconds in ("300", "0")
    )
    until(lambda: f"pending ({reason}" in runner("status", str(second), code=0).out, timeout_s=120)
    assert reason in runner("wait", str(second), "--timeout", "1", code=9).err
    runner("cancel", str(first), code=0)
    runner("wait", str(second), code=6)
    assert "COMPLETED" in sacct(here, second, "State")


def test_a_job_that_a_limit_will_never_let_start_is_reported(here: Cluster, runner: Runner) -> None:
    mine = ("--account", "m1234", "--queue", "tiny", "--json")
    run = Path(result(runner(*request(here, 4, *mine), code=0).out)["directory"])
    said = "pending (QOSMaxGRESPerJob: it asks for more than the QOS's limit on GPUs of one job: it will never start"
    until(lambda: said in runner("status", str(run), code=0).out, timeout_s=120)
    runner("cancel", str(run), code=0)


@pytest.mark.parametrize("running", [True, False])
def test_a_job_that_another_user_has_cancelled(here: Cluster, runner: Runner, running: bool) -> None:
    """While it runs, and while it waits."""
    words = ("--account", "m1234", "--json", *(() if running else ("-S", "begin=now+1hour")))
    run = Path(result(runner(*request(here, 4, *words), "--", "--sleep", "300", code=0).out)["directory"])
    if running:
        until(lambda: len(list((run / "ranks").glob("*.report.json"))) == 4, timeout_s=120)
    here.daemons.inside(*become(OTHER_USER), "scancel", job_of(run))
    runner("wait", str(run), code=5)
    by = f" by uid {OTHER_USER}" if running else "; the scheduler does not say by whom"  # Slurm 24.11 says it, too
    assert document_of(run, "verdict")["reasons"][0] == f"the job was cancelled{by}"


def job_of(run: Path) -> str:
    return str(document_of(run, "job")["job_id"])


def sacct(here: Cluster, run: Path, fields: str) -> str:
    """The job's own line, which comes to the database some time after its end, and its QOS after that."""
    words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_of(run)}", f"--format={fields}"]
    unsettled = {"RUNNING", "Unknown"}
    until(lambda: (said := here.daemons.inside(*words)) and not unsettled & set(re.split(r"\W", said)), timeout_s=120)
    return here.daemons.inside(*words).strip()
