"""Where a job's files lie, against a site's rules for homes, scratch and workspaces; and a disk that never answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.checks.limits import check_storage
from runner.checks.registry import Case, Observed, Workspace
from runner.cli import run
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Request
from runner.model.site import Home, Scratch
from runner.planning.plan import plan
from runner.preparation.observation import workspaces
from runner.sites.loader import read_site
from tests.support.plans import PROGRAM
from tests.support.shell_files import stand_in

DAY_S = 86400
# As ZIH's public guide shows it, and as hpc-workspace 1.4 writes it.
LISTED = """\
id: test-workspace
     workspace directory  : /data/horse/ws/marie-test-workspace
     remaining time       : 89 days 23 hours
     creation time        : Thu Jul 29 10:30:04 2021
     expiration date      : Wed Oct 27 10:30:04 2021
     filesystem name      : horse
     available extensions : 10
id: nearly-gone
     workspace directory  : /data/horse/ws/marie-nearly-gone
     remaining time       : 0 days 1 hours 30 minutes
     available extensions : 0
id: odd
     workspace directory  : /data/odd
     remaining time       : expired
"""


NO_RULE, NEVER = Home(), Scratch()


IN_HOME, ELSEWHERE = "/home/e/.cache/x.sif", "/store/x.sif"
QUOTA, NOT_FOR_JOBS, PURGED = Home(quota_gb=50), Home(for_jobs=False), Scratch(purge_days=56)
HOME = ("/home/e",)


def unread_for(idle_days: int) -> Observed:
    """An image on scratch that no job has read for so long."""
    return Observed(scratch="/pscratch/e", image_idle_s=float(idle_days * DAY_S))


def findings_of(observed: Observed, image: str = ELSEWHERE, walltime_s: int = 600, **site: Any) -> dict[str, str]:
    facts = msgspec.structs.replace(read_site("slurm"), **site)
    planned_image = PlannedImage("i", "", image, size_bytes=7_100_000_000)
    request = Request(gpus=2, walltime_s=walltime_s, mounts=(Mount("/data/horse/ws/marie-test-workspace/in", "/in"),))
    planned = plan(PROGRAM, facts, request, planned_image)
    return {finding.code: finding.severity for finding in check_storage(Case(planned, facts, observed))}


@pytest.mark.parametrize(
    ("home", "wanted"),
    [
        (Home(), {}),
        (QUOTA, {"run-directory-in-home": "warn"}),
        (Home(quota_gb=50, for_jobs=False), {"run-directory-in-home": "refuse"}),
        (NOT_FOR_JOBS, {"run-directory-in-home": "refuse"}),
    ],
)
def test_runs_in_a_home_with_a_quota_are_reported(home: Home, wanted: dict[str, str]) -> None:
    assert findings_of(Observed(home=HOME, run_directory=("/home/e/runs",)), home=home) == wanted
    assert findings_of(Observed(home=HOME, run_directory=("/home/eve/runs",)), home=home) == {}, "another's"
    as_links_lead = Observed(home=("/home/e", "/nfs/e"), run_directory=("/nfs/e/runs",))
    assert findings_of(as_links_lead, home=home) == wanted


@pytest.mark.parametrize(
    ("observed", "image", "more", "code"),
    [
        (Observed(home=HOME), IN_HOME, {"home": QUOTA}, "image-in-home"),
        (Observed(home=HOME), IN_HOME, {}, ""),
        (unread_for(1), "/pscratch/e/x.sif", {"scratch": PURGED}, ""),
        (unread_for(53), "/pscratch/e/x.sif", {"scratch": PURGED}, ""),
        (unread_for(55), "/pscratch/e/x.sif", {"scratch": PURGED}, "image-may-be-purged"),
        (unread_for(55), "/cfs/x.sif", {"scratch": PURGED}, ""),
        (unread_for(50), "/pscratch/e/x.sif", {"scratch": PURGED, "walltime_s": 5 * DAY_S}, "image-may-be-purged"),
    ],
)
def test_an_image_in_a_home_with_a_quota_or_that_the_purge_may_take_is_reported(
    observed: Observed, image: str, more: Any, code: str
) -> None:
    assert findings_of(observed, image, **more) == ({code: "warn"} if code else {})


@pytest.mark.parametrize(("left_s", "severity"), [(100 * DAY_S, None), (DAY_S, "warn"), (600, "refuse"), (0, "refuse")])
def test_a_workspace_that_ends_before_the_job_is_refused(left_s: float, severity: str | None) -> None:
    told = findings_of(Observed(workspaces=(Workspace("w", "/data/horse/ws/marie-test-workspace", left_s),)))
    assert told.get("workspace-expires") == severity
    assert findings_of(Observed(workspaces=(Workspace("w", "/data/horse/ws/marie-test", left_s),))) == {}, "another one"


def test_the_tool_is_run_and_its_absence_or_failure_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert workspaces() == ()
    (tmp_path / "listed").write_text(LISTED)
    stand_in(tmp_path, "ws_list", f'exec cat "{tmp_path}/listed"')
    assert list(workspaces()) == [
        Workspace("test-workspace", "/data/horse/ws/marie-test-workspace", 89 * DAY_S + 23 * 3600),
        Workspace("nearly-gone", "/data/horse/ws/marie-nearly-gone", 5400),
    ]
    stand_in(tmp_path, "ws_list", "exit 1")
    assert workspaces() == ()


def test_a_submission_is_checked_against_the_sites_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """ZIH's workspaces, as the tool on PATH lists them; NERSC's home."""
    work = tmp_path / "ws/mine"
    work.mkdir(parents=True)
    listed = f"echo 'id: mine'\necho '  workspace directory : {work}'\necho '  remaining time : 0 days 1 hours'"
    stand_in(tmp_path, "ws_list", listed)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    job = ["submit", "--recipe", "probe", "--gpus", "8", "--account", "a", "--dry-run", "--runs", str(work / "runs")]
    run([*job, "--site", "alpha", "--time", "2:00:00"])
    assert "refused [workspace-expires]: the workspace mine" in (said := capfd.readouterr().err)
    assert "ws_extend mine DAYS" in said
    run([*job, "--site", "perlmutter", "--image", "registry.example/i:1"])
    assert "warning [run-directory-in-home]" in (said := capfd.readouterr().err)
    assert "workspace" not in said
