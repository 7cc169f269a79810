"""Chains of attempts in a box: a program that counts steps, and what ends an attempt of one."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from zlib import crc32

from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.waiting import until

EVERY, STEP_S = 5, 0.1  # steps between two checkpoints, and what one takes
# It goes on until a file `last` beside it names the last step.
PROGRAM = f"""
import json, os, time, zlib
from pathlib import Path
state, last = Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state"), Path("last")
step, value = json.loads(state.read_text()) if state.exists() else (0, 0)
Path(os.environ["RUNNER_RUN_DIR"], "first-step").touch()
while not last.exists() or step < int(last.read_text()):
    time.sleep({STEP_S})
    if Path("ecc-" + os.environ["RUNNER_ATTEMPT"]).exists():
        raise SystemExit("CUDA error: uncorrectable ECC error encountered")
    step, value = step + 1, zlib.crc32(b"%d" % (step + 1), value)
    print(step, flush=True)
    if step % {EVERY} == 0 or last.exists():
        state.with_name("part").write_text(json.dumps([step, value]))
        state.with_name("part").replace(state)
state.with_name("done").touch()
"""


@dataclass(frozen=True)
class Chain:
    """A chain in a box. ``home``: where its program is, of the chain's name."""

    runner: Runner
    daemons: Daemons
    home: Path

    def submit(self, *options: str, code: str = PROGRAM) -> "Chain":
        self.home.mkdir()
        (self.home / "t.py").write_text(code)
        program = ("--", "python3", "t.py") if code else ()
        words = ("submit", "--gpus", "1", "--until-done", "--name", self.home.name)
        self.runner(*words, *options, *program, code=0, cwd=self.home)
        return self

    def checkpoint(self, name: str = "state") -> Path:
        return next(self.runner.runs.glob(f"*-{self.home.name}-chain")) / "checkpoints" / name

    def file(self, attempt: int, name: str) -> Path:
        return next(self.checkpoint().parents[1].glob(f"launches/{attempt}/*")) / name

    def log(self, attempt: int) -> str:
        file = self.file(attempt, "logs/rank-0.out")
        return file.read_text() if file.exists() else ""

    def nodes(self, attempt: int) -> list[str]:
        return self.file(attempt, "nodes").read_text().split()

    def jobs(self) -> int:
        return self.daemons.inside("squeue", "--noheader", "--states=PD,R", "--format=%j").count(f"{self.home.name}.")

    def goes_on(self, attempt: int) -> None:
        """That attempt begins and makes a checkpoint, with at most one job behind it."""
        until(lambda: self.log(attempt).count("\n") > EVERY, f"attempt {attempt} has a checkpoint", timeout_s=200)
        assert self.jobs() <= 2

    def goes_through(self, *ends: Callable[["Chain", int], None]) -> float:
        """Its attempts end so; the last one is done as if none had ended, with at most one interval repeated each.
        Returns its goodput by ``report``, which is no better than that of the steps.
        """
        for attempt, end in enumerate(ends, 1):
            self.goes_on(attempt)
            end(self, attempt)
        self.goes_on(len(ends) + 1)
        last = json.loads(self.checkpoint().read_text())[0] + 12
        (self.home / "last").write_text(str(last))
        self.runner("wait", self.home.name, "--timeout", "300", code=0)
        assert self.jobs() == 0
        value = reduce(lambda value, step: crc32(b"%d" % step, value), range(1, last + 1), 0)
        assert json.loads(self.checkpoint().read_text()) == [last, value]
        steps = [int(line) for attempt in range(1, len(ends) + 2) for line in self.log(attempt).split()]
        assert set(steps) == set(range(1, last + 1))
        assert len(steps) - last <= EVERY * len(ends)
        document = self.runner("report", self.home.name, "--json", "-o", f"{self.home}/report", code=0).out
        (chain,) = result(document)["chains"]
        times = ", ".join(f"{name} {chain[f'{name}_s']:.1f} s" for name in ("start_up", "kept", "lost"))
        of_steps = last / len(steps)
        print(f"\n{len(ends)} ends: goodput {chain['goodput']:.1%}, by number of steps {of_steps:.1%}, {times}")
        assert len(chain["attempts"]) == len(ends) + 1
        assert chain["kept_s"] >= last * STEP_S
        assert chain["goodput"] <= of_steps + 0.05  # steps take as long as others let them
        return float(chain["goodput"])


def reach_limit(chain: Chain, attempt: int) -> None:
    """Slurm looks every 30 s for jobs whose time is over. Limits are minutes; their ends are not, and never past."""
    job = chain.file(attempt, "job.id").read_text().strip()
    chain.daemons.inside("scontrol", "update", f"JobId={job}", "EndTime=now+5")


def kill(chain: Chain, attempt: int) -> None:
    chain.daemons.inside("bash", "-c", _KILLED, "bash", chain.file(attempt, "job.id").read_text().strip())


def lose_node(chain: Chain, attempt: int) -> None:
    (node,) = chain.nodes(attempt)
    chain.daemons.inside("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    chain.goes_on(attempt + 1)
    chain.daemons.inside("sh", "-c", 'scontrol update NodeName="$1" State=RESUME || true', "sh", node)


def fail_gpu(chain: Chain, attempt: int) -> None:
    """Its program ends by itself, with what torch says of a GPU's memory."""
    (chain.home / f"ecc-{attempt}").touch()


def cancel_in_slurm(chain: Chain, attempt: int) -> None:
    chain.daemons.inside("scancel", chain.file(attempt, "job.id").read_text().strip())


def requeue(chain: Chain, attempt: int) -> None:
    """As Lightning does; Slurm refuses it."""
    job = chain.file(attempt, "job.id").read_text().strip()
    assert "disabled" in chain.daemons.inside("sh", "-c", 'scontrol requeue "$1" 2>&1 || true', "sh", job)
    kill(chain, attempt)


_KILLED = 'kill -KILL $(grep -la "/job0*$1/slurm_script" /proc/[0-9]*/cmdline | cut -d/ -f3)'
