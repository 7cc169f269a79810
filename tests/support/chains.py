"""Chains of attempts in a box: a program that counts steps, and what ends an attempt of one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from zlib import crc32

from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.waiting import until

EVERY = 5  # steps between two checkpoints
# It goes on until there is a file `last` beside it that names the last step.
PROGRAM = f"""
import json, os, time, zlib
from pathlib import Path
place, last = Path(os.environ["RUNNER_CHECKPOINT_DIR"]), Path("last")
file, part = place / "state.json", place / "state.json.part"
step, value = json.loads(file.read_text()) if file.exists() else (0, 0)
while not last.exists() or step < int(last.read_text()):
    time.sleep(0.1)
    step += 1
    value = zlib.crc32(b"%d" % step, value)
    print("step", step, flush=True)
    if step % {EVERY} == 0 or last.exists():
        part.write_text(json.dumps([step, value]))
        part.replace(file)
(place / "done").touch()
"""


@dataclass(frozen=True)
class Chain:
    """A chain in a box, by its directory. ``home``: where its program is, of the chain's name."""

    runner: Runner
    daemons: Daemons
    home: Path
    path: Path

    @classmethod
    def submitted(cls, runner: Runner, daemons: Daemons, home: Path, *options: str, code: str = PROGRAM) -> Chain:
        home.mkdir()
        (home / "t.py").write_text(code)
        words = ("submit", "--gpus", "1", "--until-done", "--name", home.name, *(options or ("--runtime", "native")))
        runner(*words, *(() if "--recipe" in options else ("--", "python3", "t.py")), code=0, cwd=home)
        return cls(runner, daemons, home, next(runner.runs.glob(f"*-{home.name}-chain")))

    def run(self, attempt: int) -> Path:
        return next((self.path / "launches" / str(attempt)).iterdir())

    def job(self, attempt: int) -> str:
        run = self.run(attempt)
        return str(json.loads((run / "job.json").read_text())["job_id"]) or (run / "job.id").read_text().strip()

    def log(self, attempt: int) -> str:
        file = self.run(attempt) / "logs/rank-0.out"
        return file.read_text() if file.exists() else ""

    def step(self) -> int:
        """Of the newest checkpoint."""
        file = self.path / "checkpoints/state.json"
        return int(json.loads(file.read_text())[0]) if file.exists() else 0

    def jobs(self) -> int:
        """How many are in the queue."""
        said = self.daemons.inside("squeue", "--noheader", "--format=%j")
        return sum(line.startswith(f"{self.home.name}.") for line in said.splitlines())

    def goes_on(self, attempt: int) -> None:
        """That attempt begins and makes a checkpoint, with at most one job behind it."""
        until((self.run(attempt) / "began").exists, f"attempt {attempt} begins", timeout_s=150)
        before = self.step()
        until(lambda: self.step() > before, f"attempt {attempt} has a checkpoint")
        assert self.jobs() <= 2

    def ends_well(self, attempts: int) -> None:
        """The program is done in that attempt: as if it had never stopped, with few steps repeated."""
        (self.home / "last").write_text(str(last := self.step() + 12))
        self.runner("wait", self.home.name, "--timeout", "300", code=0)
        assert self.jobs() == 0
        value = reduce(lambda value, step: crc32(b"%d" % step, value), range(1, last + 1), 0)
        assert json.loads((self.path / "checkpoints/state.json").read_text()) == [last, value]
        lines = [line for attempt in range(1, attempts + 1) for line in self.log(attempt).splitlines()]
        assert {f"step {step}" for step in range(1, last + 1)} <= set(lines)
        assert len(lines) - last <= EVERY * (attempts - 1)


def reach_limit(chain: Chain, attempt: int) -> None:
    """Slurm looks every 30 s for jobs whose time is over. Limits are minutes; their ends are not."""
    chain.daemons.inside("scontrol", "update", f"JobId={chain.job(attempt)}", "EndTime=now")


def kill_script(chain: Chain, attempt: int) -> None:
    """And outright."""
    chain.daemons.inside("sh", "-c", _KILLED, "sh", f"/job0*{chain.job(attempt)}/slurm_script")


def lose_node(chain: Chain, attempt: int) -> None:
    node = (chain.run(attempt) / "nodes").read_text().strip()
    chain.daemons.inside("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    until((chain.run(attempt + 1) / "began").exists, "the next begins")
    chain.daemons.inside("sh", "-c", 'scontrol update NodeName="$1" State=RESUME || true', "sh", node)


def requeue(chain: Chain, attempt: int) -> None:
    """As Lightning does; Slurm refuses it."""
    said = chain.daemons.inside("sh", "-c", 'scontrol requeue "$1" 2>&1 || true', "sh", chain.job(attempt))
    assert "presently disabled" in said
    kill_script(chain, attempt)


_KILLED = """
for process in /proc/[0-9]*; do
    tr '\\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q "^/bin/bash .*$1" && kill -KILL "${process#/proc/}" && n=1
done
test -n "$n"
"""
ENDS = {"kill -9": kill_script, "a node that is set down": lose_node, "requeue": requeue}
