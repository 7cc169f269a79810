"""The real command line, as its user runs it, for integration tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 600


@dataclass(frozen=True)
class Output:
    """What a command said."""

    out: str
    err: str


@dataclass(frozen=True)
class Runner:
    """``python -m runner`` against the box of this test run.

    Attributes:
        site: the site file that names the box.
        runs: where run directories are made.
        state: where the list of runs is kept.
        clients: the box's Slurm clients.
        more: further variables of every verb's environment.
    """

    site: Path
    runs: Path
    state: Path
    clients: Path
    more: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self,
        *words: str,
        code: int,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        site: Path | None = None,
    ) -> Output:
        """Run a verb to its end; its exit code must be ``code``. No verb may ever show a traceback."""
        done = subprocess.run(
            self.argv(*words, site=site), capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=cwd,
            env=self.environment(env),
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, f"exit {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return Output(done.stdout, done.stderr)

    def argv(self, *words: str, site: Path | None = None) -> list[str]:
        """The whole command line; what submits gets this run's site and directory."""
        argv = [sys.executable, "-m", "runner", words[0]]
        if words[0] in ("submit", "run") or (words[0] == "scale" and "--resume" not in words):
            argv += ["--site", str(site or self.site), "--runs", str(self.runs)]
        return [*argv, *words[1:]]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Ours, with this run's own list of runs."""
        return {**os.environ, "RUNNER_STATE": str(self.state), **self.more, **(extra or {})}

    def newest(self) -> Path:
        """The newest run's directory."""
        return max(self.runs.iterdir(), key=lambda path: path.stat().st_ctime_ns if path.is_dir() else 0)

    def start(
        self, *words: str, site: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a verb in a process group of its own and return at once."""
        return subprocess.Popen(
            self.argv(*words, site=site), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=self.environment(env),
            start_new_session=True,
        )  # fmt: skip

    def start_until(
        self,
        holds: Callable[[Path], bool],
        *words: str,
        timeout_s: float = 90,
        env: Mapping[str, str] | None = None,
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a submission and wait until something holds of its run; returns the process and the run."""
        before = set(self.runs.iterdir()) if self.runs.is_dir() else set()
        child = self.start(*words, env=env)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            fresh = set(self.runs.iterdir()) - before if self.runs.is_dir() else set()
            if fresh and holds(run := fresh.pop()):
                return child, run
            time.sleep(0.2)
        raise AssertionError(f"not within {timeout_s} s")
