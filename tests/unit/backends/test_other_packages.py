"""A runtime that another package brings, installed from its wheel, runs a job like one of ours."""

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
