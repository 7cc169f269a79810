"""What another package brings: a runtime, installed from its wheel, runs a job like one of ours; the variables that a
scheduler names are those of single jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

RUNTIME = '''"""env: the program with one more variable."""

import msgspec

from runner.backends.runtimes import native
from runner.model.step import texts

FACTS = msgspec.structs.replace(native.FACTS, title="env", program="env", install="apt-get install coreutils")


def step(plan):
    made = native.step(plan)
    return msgspec.structs.replace(made, command=(*texts("env", "BY=the other package"), *made.command))
'''
SCHEDULER = '''"""batch: jobs whose variables begin with BATCH_."""

from runner.backends.schedulers import local
from runner.model.backends import SchedulerFacts

FACTS = SchedulerFacts(title="batch", nodes="this-machine", variables=("BATCH_",))
connect, render = local.connect, local.render
'''
ASKS = """
from runner.jobs.inputs import is_passing
from runner.model.backends import SCHEDULERS
from runner.planning.environment import refuse_reason
SCHEDULERS["batch"]
print(is_passing("BATCH_ID"), is_passing("BATCHES"), refuse_reason("BATCH_ID"), refuse_reason("BATCHES"), sep="|")
"""
WHEEL = {
    "envelope.py": RUNTIME,
    "envelope-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: envelope\nVersion: 1.0\n",
    "envelope-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "envelope-1.0.dist-info/entry_points.txt": "[gpu_runner.runtimes]\nenvelope = envelope\n",
    "envelope-1.0.dist-info/RECORD": "",
}


def test_a_runtime_from_another_packages_wheel_runs_a_job(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "envelope-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    packages = tmp_path / "packages"
    offline = ("--no-index", "--no-deps", "--disable-pip-version-check", "--quiet", "--target", str(packages))
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, str(wheel.filename)], check=True, timeout=120)
    (tmp_path / "here.yaml").write_text("name: here\ndescription: x\nextends: local\nruntimes: [envelope]\n")
    words = ("submit", "--gpus", "2", "--site", "here.yaml", "--wait", "--runs", str(tmp_path / "runs"))
    env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[3]}:{packages}", "RUNNER_STATE": str(tmp_path / "s")}
    done = subprocess.run(
        [sys.executable, "-m", "runner", *words, "--", "sh", "-c", 'echo "rank $RANK by $BY"'],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").glob("[!.]*")
    said = [(run / f"logs/rank-{rank}.out").read_text() for rank in (0, 1)]
    assert said == ["rank 0 by the other package\n", "rank 1 by the other package\n"]


def test_the_variables_of_a_scheduler_are_no_difference_between_jobs_and_set_by_none(tmp_path: Path) -> None:
    (tmp_path / "batch.py").write_text(SCHEDULER)
    offers = tmp_path / "batch-1.0.dist-info"
    offers.mkdir()
    (offers / "METADATA").write_text("Metadata-Version: 2.1\nName: batch\nVersion: 1.0\n")
    (offers / "entry_points.txt").write_text("[gpu_runner.schedulers]\nbatch = batch\n")
    env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[3]}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", ASKS], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True|False|belongs to the scheduler, the container runtime or the launcher|None\n"
