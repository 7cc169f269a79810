"""Faults as a table: what is planted, and what must be reported of it. Submitting processes that are killed."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.commands import Runner, extended
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.rank_records import document_of, ranks_by_node

RECIPE = Path(__file__).parents[1] / "recipes" / "faults"
PLANT = Path(__file__).parent / "plant"
_SBATCH_ENDS_S = 15.0


@dataclass(frozen=True)
class Planted:
    """One job that goes wrong.

    Attributes:
        fault: of the recipe; empty for none.
        outcome, code: the verdict and the exit code that it must get.
        says: each stands in the verdict's reasons or its log line, in the first reason the first.
        before: ``CODE@RANK``, what goes wrong on a rank before the launcher has begun there.
        words: further options of ``submit``.
    """

    fault: str
    outcome: str
    code: int
    says: tuple[str, ...] = ()
    before: str = ""
    words: tuple[str, ...] = ()

    def submission(self, *options: str) -> list[str]:
        """The words of ``submit``: four ranks on two nodes."""
        before = ("--mount", f"{PLANT}:/usr/local/bin", "--env", f"PLANT={self.before}") if self.before else ()
        fault = ("--", "--fault", self.fault) if self.fault else ()
        shape = ("--gpus", "4", "--nodes", "2")
        return ["submit", "--recipe", str(RECIPE), *shape, *options, *before, *self.words, *fault]


MEASURED, NAP = Planted("", "measured", 0), Planted("nap:1", "measured", 0)
# What is planted on each version of Slurm, and in tests of one version.
FAULTS = {
    "a rank exits with 7": Planted("exit:7@3", "failed", 5, ("rank 3 on dgx02 exited with code 7",)),
    "a rank crashes": Planted("signal:11@1", "failed", 5, ("rank 1 on dgx01 was ended by signal 11 (SIGSEGV)",)),
    # Another rank that the scheduler ended in its last moments stands beside it: "ranks 0, 2 left a report, ...".
    "a launcher is killed": Planted("kill-launcher@2", "failed", 5, (" 2", "no exit record of rank 2")),
    "a rank dies before its launcher begins": Planted(
        "", "failed", 5, ("rank 1 on dgx01 left no exit record; srun reports: Exited with exit code 3",),
        before="exit 3@1",
    ),
}  # fmt: skip
LATE_FAULTS = {
    "a rank that hangs while the others end": Planted(
        "hang@2", "failed", 5,
        ("rank 2 on dgx02 left a report, but did not finish the program", "3 of 4 ranks exited with 0"),
    ),
    "the time limit": Planted(
        "hang", "failed", 5,
        ("the job ran into its time limit", "ranks 0, 1, 2, 3 left a report, but did not finish the program"),
        words=("--time", "1:00"),
    ),
}  # fmt: skip


def submitted(runner: Runner, planted: Mapping[str, Planted]) -> dict[str, Path]:
    """Submit every one; returns the run directories."""
    return {
        name: Path(result(runner(*each.submission("--json"), code=0).out)["directory"])
        for name, each in planted.items()
    }


def under_way(ranks: int) -> Callable[[Path], bool]:
    return lambda run: len(list((run / "ranks").glob("*.report.json"))) == ranks


def started(runner: Runner, planted: Planted) -> Path:
    """Submit it, and wait until its four ranks are in their program."""
    return runner.submitted(under_way(4), *planted.submission())


def is_reported(runner: Runner, run: Path, planted: Planted) -> dict[str, Any]:
    """Wait for the run's end; the verdict must be the right one and tell what it must tell. Returns it."""
    said = runner("wait", str(run), code=planted.code).out
    verdict = document_of(run, "verdict")
    measured = planted.outcome == "measured"
    assert verdict["outcome"] == planted.outcome, verdict
    assert (verdict["images_per_s"] is not None, "images/s" in said) == (measured, measured), said
    told = [*verdict["reasons"], verdict["log"]]
    for place, sentence in enumerate(planted.says):
        assert any(sentence in each for each in (told[:1] if place == 0 else told)), (sentence, verdict)
    return verdict


def submitted_and_reported(runner: Runner, planted: Planted) -> tuple[Path, dict[str, Any]]:
    """One job from its submission to its verdict."""
    run = submitted(runner, {"": planted})[""]
    return run, is_reported(runner, run, planted)


def with_sbatch(runner: Runner, directory: Path, body: str) -> Runner:
    """The same cluster through PATH, with another sbatch; ``BIN`` in its text is the directory of the right one."""
    fake = directory / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\n" + body.replace("BIN", f"'{runner.clients}'") + "\n")
    fake.chmod(0o755)
    site = directory / "site.yaml"
    site.write_text("".join(line for line in runner.site.open() if not line.startswith("box:")))
    path = f"{fake.parent}:{runner.clients}:{os.environ['PATH']}"
    return replace(runner, site=site, runs=directory / "runs", more={"PATH": path})


def killed_while_submitting(runner: Runner, moments: Iterable[float]) -> list[Path | None]:
    """Kill a submission at each moment, as a part of the time that a whole one takes here and now.

    Returns the run directory that each has left, None where it left none.
    """
    left: list[Path | None] = []
    for moment in moments:
        began = time.monotonic()
        runner("submit", "--recipe", "probe", "--gpus", "1", code=0)
        whole_s = time.monotonic() - began
        before = set(runner.runs.glob("[!.]*"))
        child = runner.start(*NAP.submission())
        time.sleep(moment * whole_s)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=60)
        fresh = set(runner.runs.glob("[!.]*")) - before
        assert len(fresh) <= 1
        left.append(fresh.pop() if fresh else None)
    return left


def judge_what_is_left(runner: Runner, daemons: Daemons, run: Path | None) -> str:
    """Every verb works on the run or says what is known; no job was submitted twice. Returns what became of it."""

    def tried(*words: str) -> subprocess.CompletedProcess[str]:
        """A verb from another process and working directory; however it ends, it shows no traceback."""
        done = subprocess.run(
            runner.argv(*words), capture_output=True, text=True, timeout=120, check=False, cwd="/",
            env=runner.environment(),
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    if run is None:
        return "no run"
    if not (run / "job.sh").exists():
        said = tried("status", run.name)
        assert said.returncode == 2, said
        assert f'no run matches "{run.name}"' in said.stderr
        assert daemons.jobs_of(str(run)) == []
        return "a run without a script"
    until = time.monotonic() + _SBATCH_ENDS_S
    while (said := tried("status", run.name)).returncode != 0 and time.monotonic() < until:
        if "there is no job" in said.stderr:
            break
        time.sleep(0.3)  # sbatch goes on without the process that called it
    jobs = daemons.jobs_of(str(run))
    if said.returncode == 0:
        assert len(jobs) == 1
        assert tried("wait", run.name).returncode == 0
        assert tried("logs", "--all", run.name).returncode == 0
        assert "has already ended" in tried("cancel", run.name).stdout
        return "a job that was found again"
    assert jobs == []
    for words in (("wait", run.name), ("cancel", run.name), ("logs", "-f", run.name)):
        assert tried(*words).returncode == 9
    return "a run without a job"


_ZIH = {"tasks": "total", "gpus": "gres", "memory": "per-node"}
# Site -> how it asks, and the ranks of each node that 12 or 13 GPUs become.
ASKED: dict[str, tuple[dict[str, Any], str, list[int]]] = {
    "zih": (_ZIH, "12", [6, 6]),
    "zih-uneven": (_ZIH, "13", [8, 5]),
    "neuron": (
        {"gpus": "gres", "memory": "none", "exclusive": False, "directives": {"comment": "pytorch"}},
        "12",
        [6, 6],
    ),
    "tutorials": ({"gpus": "total", "memory": "per-cpu", "exclusive": False}, "16", [8, 8]),
}


def submit_one_of_each(runner: Runner, directory: Path) -> dict[str, Path]:
    """Submit one of each, none waited for; returns the runs."""
    submitted: dict[str, Path] = {}
    for name, (slurm, gpus, _) in ASKED.items():
        site = extended(runner.site, directory, name=name, slurm=slurm)
        said = runner("submit", "--recipe", "probe", "--gpus", gpus, "--json", code=0, site=site)
        submitted[name] = Path(result(said.out)["directory"])
    return submitted


def assert_placed_as_planned(runner: Runner, submitted: dict[str, Path]) -> None:
    """Each ends well, and its ranks lie as they should."""
    for name, run in submitted.items():
        runner("wait", str(run), code=0)
        assert ranks_by_node(run) == ASKED[name][2], name
