"""The real command line, as its user runs it, for integration tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_S = 600


class Output(NamedTuple):
    out: str
    err: str


Call = Callable[..., Output]  # the fixture ``call``: words, and ``code``


def ran(words: Sequence[Any], *, code: int = 0, timeout_s: float = TIMEOUT_S, **options: Any) -> Output:
    """Run a command to its end; its exit code must be ``code``, and it shows no traceback. Options: of subprocess."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False, **options)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, f"exit {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
    return Output(done.stdout, done.stderr)


def extended(site: Path | str, directory: Path, **facts: Any) -> Path:
    """The file of a site that is like the other but for these facts."""
    path = directory / f"{facts.setdefault('name', 'ours')}.yaml"
    path.write_text(json.dumps({"extends": str(site), **facts}))  # which is YAML
    return path


@dataclass(frozen=True)
class Runner:
    """``python -m runner`` with a site and run directories of this test run.

    Attributes:
        clients: the directory of the box's Slurm clients.
        state: where the list of runs is kept. more: further variables of every verb's environment.
    """

    site: Path
    runs: Path
    state: Path
    clients: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(
        cls, site: Path | str, directory: Path, clients: Path | None = None, runs: str = "runs", **more: str
    ) -> Runner:
        """All that it writes is in a directory; without a box there are no clients."""
        return cls(Path(site), directory / runs, directory / "state", clients or directory, more)

    def __call__(
        self,
        *words: str,
        code: int,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        site: Path | None = None,
    ) -> Output:
        return ran(self.argv(*words, site=site), code=code, cwd=cwd, env=self.environment(env))

    def argv(self, *words: str, site: Path | None = None) -> list[str]:
        """The whole command line; what submits gets this run's site and directory."""
        argv = [sys.executable, "-m", "runner", words[0]]
        if words[0] in ("submit", "run") or (words[0] == "scale" and "--resume" not in words):
            argv += ["--site", str(site or self.site), "--runs", str(self.runs)]
        return [*argv, *words[1:]]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, "RUNNER_STATE": str(self.state), **self.more, **(extra or {})}

    def newest(self) -> Path:
        """The one whose plan was written last: a run's directory itself changes for as long as its job does."""

        def written_ns(path: Path) -> int:
            plan = path / "plan.json"
            return (plan if plan.exists() else path).stat().st_ctime_ns if path.is_dir() else 0

        return max(self.runs.glob("[!.]*"), key=written_ns)

    def start(
        self, *words: str, site: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv(*words, site=site), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(env),
            start_new_session=True,
        )  # fmt: skip

    def start_until(
        self, holds: Callable[[Path], bool], *words: str, timeout_s: float = 90, env: Mapping[str, str] | None = None
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a submission and wait until something holds of its run; returns the process and the run."""
        before = set(self.runs.glob("[!.]*")) if self.runs.is_dir() else set()
        child = self.start(*words, env=env)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            fresh = set(self.runs.glob("[!.]*")) - before if self.runs.is_dir() else set()
            if fresh and holds(run := fresh.pop()):
                return child, run
            time.sleep(0.2)
        raise AssertionError(f"not within {timeout_s} s")

    def submitted(self, holds: Callable[[Path], bool], *words: str, timeout_s: float = 90) -> Path:
        """Submit without waiting for the job's end, and wait until something holds of the run."""
        child, run = self.start_until(holds, *words, timeout_s=timeout_s)
        assert child.wait(60) == 0
        return run
