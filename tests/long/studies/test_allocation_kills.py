"""A study's one allocation is ended at seeded moments, in three ways, and gone on with in another: every launch is
measured once, and no two overlap.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from runner import box
from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.studies import TIMED, overlapping

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="ends processes in a box: run it as root")
KILLS = 12
MOST_OF_A_STUDY = 3  # each costs the launch that runs one of its attempts
LONGEST_S = 7.0  # the launches of a study take about twelve
WAYS = ("scancel", "scancel --signal=KILL", "kill -9 of the batch script")


def test_an_allocation_ended_at_any_moment_costs_no_more_than_what_ran(tmp_path: Path) -> None:
    source = random.Random(16)
    name = f"allocations-{os.getpid()}"
    try:
        made = box.up(box.BoxSpec(name=name))
        slurm = Runner(Path(made.site), tmp_path / "runs", tmp_path / "state", made.bin_dir)
        kills, studies = 0, 0
        while kills < KILLS:
            studies += 1
            kills += _a_study_with_ends(slurm, Daemons(made), f"s{studies}", source)
    finally:
        box.down(name)


def _a_study_with_ends(slurm: Runner, inside: Daemons, name: str, source: random.Random) -> int:
    """How often its allocation was ended."""
    slurm("scale", "--gpus", "1,2,16", "--repeats", "1", "--same-nodes", "--name", name, *TIMED, code=0)
    (path,) = slurm.runs.glob(f"*-{name}-study")
    kept, kills = set[str](), 0
    while True:
        time.sleep(source.uniform(0.0, LONGEST_S))
        way = source.choice(WAYS)
        if kills < MOST_OF_A_STUDY and _end(slurm, inside, path, way):
            kills += 1
        ended = slurm.start("wait", path.name)
        out, err = ended.communicate(timeout=120)
        assert ended.returncode in (0, 6), (out, err)
        facts = result(slurm("status", path.name, "--json", code=0).out)
        proven = {each["launch"]["key"] for each in facts["launches"] if each["state"] == "proven"}
        assert kept <= proven, f"{way}: what was measured is lost"
        assert overlapping(path) == [], way
        kept = proven
        if facts["state"] == "complete":
            break
        slurm("scale", "--resume", path.name, "--attempts", "9", code=0)
    for launch in (path / "launches").iterdir():
        verdicts = [json.loads(each.read_text())["outcome"] for each in launch.glob("*/verdict.json")]
        assert verdicts.count("measured") == 1, (launch.name, verdicts)
    return kills


def _end(slurm: Runner, inside: Daemons, path: Path, way: str) -> bool:
    """End the study's last allocation; whether it was still there."""
    last = max((path / "allocations").glob("*/job.json"), key=lambda each: int(each.parent.name))
    job = json.loads(last.read_text())["job_id"]
    listed = subprocess.run(
        [slurm.clients / "squeue", "--noheader", "--jobs", job], capture_output=True, text=True, check=False, timeout=60
    )
    if not listed.stdout.strip():
        return False
    if way.startswith("scancel"):
        subprocess.run([slurm.clients / "scancel", *way.split()[1:], job], check=True, timeout=60)
        return True
    # The pattern does not match its own text in the shell that looks for it.
    inside.inside("sh", "-c", 'grep -la "$0" /proc/[0-9]*/cmdline | cut -d/ -f3 | xargs -r kill -KILL', _script(job))
    return True


def _script(job: str) -> str:
    return f"job{int(job):05d}/[s]lurm_script"
