"""Chains of attempts in a box: a program that counts steps, and the ways in which something else ends an attempt."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.waiting import until

EVERY = 5  # steps between two checkpoints
# Arguments: how long a step takes. It goes on until there is a file `last` beside it that names the last step.
PROGRAM = f"""
import json, os, sys, time
from pathlib import Path
place, last = Path(os.environ["RUNNER_CHECKPOINT_DIR"]), Path("last")
file, part = place / "state.json", place / "state.json.part"
step, value = json.loads(file.read_text()) if file.exists() else (0, 1)
print("attempt", os.environ["RUNNER_ATTEMPT"], flush=True)
while not last.exists() or step < int(last.read_text()):
    time.sleep(float(sys.argv[1]))
    step += 1
    value = (value * 6364136223846793005 + step) % 2**61
    print("step", step, flush=True)
    if step % {EVERY} == 0:
        part.write_text(json.dumps([step, value]))
        part.replace(file)
part.write_text(json.dumps([step, value]))
part.replace(file)
(place / "done").touch()
"""


def uninterrupted(steps: int) -> int:
    """What the program has after so many steps."""
    value = 1
    for step in range(1, steps + 1):
        value = (value * 6364136223846793005 + step) % 2**61
    return value


@dataclass(frozen=True)
class Chain:
    """A chain in a box, by its directory; ``home``: where its program is."""

    runner: Runner
    daemons: Daemons
    home: Path
    path: Path

    @classmethod
    def submitted(
        cls, runner: Runner, daemons: Daemons, home: Path, *options: str, code: str = PROGRAM, arguments: str = "0.1"
    ) -> Chain:
        """Submit one with a name of its own."""
        home.mkdir(exist_ok=True)
        (home / "count.py").write_text(code)
        words = ("submit", "--gpus", "1", "--runtime", "native", "--until-done", "--name", home.name, *options)
        program = ("--", sys.executable, "count.py", arguments)
        runner(*words, *program, code=0, cwd=home)
        return cls(runner, daemons, home, next(runner.runs.glob(f"*-{home.name}-chain")))

    def run(self, attempt: int) -> Path:
        return next((self.path / "launches" / str(attempt)).iterdir())

    def job(self, attempt: int) -> str:
        run = self.run(attempt)
        return str(json.loads((run / "job.json").read_text())["job_id"]) or (run / "job.id").read_text().strip()

    def step(self) -> int:
        """Of the newest checkpoint."""
        file = self.path / "checkpoints" / "state.json"
        return int(json.loads(file.read_text())[0]) if file.exists() else 0

    def steps(self) -> list[int]:
        """All that any attempt has made, in their order."""
        logs = sorted(self.path.glob("launches/*/*/logs/rank-0.out"), key=lambda log: int(log.parts[-4]))
        lines = (line for log in logs for line in log.read_text().splitlines())
        return [int(line.split()[1]) for line in lines if line.startswith("step ") and line.split()[1:]]

    def queue(self) -> list[str]:
        """``NAME STATE`` of its jobs, as Slurm lists them."""
        said = self.daemons.inside("squeue", "--noheader", "--format=%j %T")
        return [line for line in said.splitlines() if line.startswith(f"{self.home.name}.")]

    def await_attempt(self, number: int) -> None:
        """Wait until it has made a checkpoint of its own, with at most one job behind it in the queue."""
        until((self.run(number) / "began").exists, f"attempt {number} begins", timeout_s=150)
        before = self.step()
        until(lambda: self.step() > before, f"attempt {number} has a checkpoint", timeout_s=60)
        assert len(self.queue()) <= 2

    def finish(self, attempt: int) -> None:
        """Let the program come to its end in that attempt, which is the last, and see that it went well."""
        (self.home / "last").write_text(str(last := self.step() + 12))
        self.runner("wait", self.home.name, "--timeout", "300", code=0)
        assert not self.queue()
        assert json.loads((self.path / "checkpoints" / "state.json").read_text()) == [last, uninterrupted(last)]
        steps = self.steps()
        assert set(steps) == set(range(1, last + 1))
        assert len(steps) - last <= EVERY * (attempt - 1)
        assert not list(self.path.glob(f"launches/{attempt + 1}/*/began"))


def reach_limit(chain: Chain, attempt: int) -> None:
    """Slurm looks every 30 s for jobs that are over their limit, and limits are minutes; their ends are not."""
    chain.daemons.inside("scontrol", "update", f"JobId={chain.job(attempt)}", "EndTime=now")


def kill_script(chain: Chain, attempt: int) -> None:
    chain.daemons.inside("sh", "-c", _KILLED, "sh", f"/job0*{chain.job(attempt)}/slurm_script")


def lose_node(chain: Chain, attempt: int) -> None:
    node = (chain.run(attempt) / "nodes").read_text().split()[0]
    chain.daemons.inside("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    until((chain.run(attempt + 1) / "began").exists, "the next begins", timeout_s=60)
    chain.daemons.inside("sh", "-c", 'scontrol update NodeName="$1" State=RESUME || true', "sh", node)


def requeue(chain: Chain, attempt: int) -> None:
    """Slurm refuses it, as Lightning's own, and the attempt goes on; then the script is killed."""
    job = chain.job(attempt)
    said = chain.daemons.inside("sh", "-c", 'scontrol requeue "$1" 2>&1; echo "$?"', "sh", job)
    assert "disabled" in said and said.endswith("1\n"), said
    kill_script(chain, attempt)


_KILLED = """
for process in /proc/[0-9]*; do
    tr '\\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q -- "$1" || continue
    case $(cat "$process/comm") in sh | grep | tr) ;; *) kill -KILL "${process#/proc/}" && n=1 ;; esac
done
test -n "$n"
"""

ENDS: dict[str, Callable[[Chain, int], None]] = {
    "kill -9 of the script": kill_script,
    "a node that is set down": lose_node,
    "scontrol requeue": requeue,
}
