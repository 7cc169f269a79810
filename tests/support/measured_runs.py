"""Run directories of measured launches, of four ranks on two nodes, as real jobs would leave them."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from runner.core.files import sha256
from runner.jobs.directory import VERDICT, Run
from runner.jobs.life import judge_at_once
from runner.model.job import CommandLine, ExitMarker, Submitted
from runner.model.verdict import Verdict
from tests.support.evidence import COMPLETED, long_run, write_run
from tests.support.made_once import made_once
from tests.support.plans import PLAN
from tests.support.series import group_times

BEGAN_S = 1_790_000_000.0  # of the first launch, Unix time
LAUNCH_S = 1_000.0  # from one launch to the next
PROGRAM = ("python3", "main.py", "--model", "resnet50", "--batch-size", "10", "--precision=fp32", "--compile")


def measured_run(
    root: Path, place: int, *, speed: float = 1.0, nodes: tuple[str, str] = ("n0", "n1"), **plan: Any
) -> Run:
    """A launch that was judged ``measured``: about 400 images/s x ``speed``, 100 groups of 10 steps.

    Args:
        place: among the launches, from 0: when it ran.
        plan: what differs from the plan of ``PROGRAM`` on four GPUs.
    """
    run = Run(root / f"20260921-1200{place:02d}-train-4")
    key = (place, speed, nodes, repr(plan))
    verdict = made_once(run.path, key, lambda: _measure(run, place, speed, nodes, plan))
    run.write(VERDICT, verdict)  # which is sealed by a key of this test's own
    return Run(run.path)


def measured_in_turns(
    root: Path, order: str, ratio: float = 1.0, b: dict[str, Any] | None = None
) -> tuple[list[Run], list[Run]]:
    """Launches of A and of B in an order such as ``ABBABA``, B's ``ratio`` times as fast; ``b``: of B's plan."""
    random = Random(3)
    sides: dict[str, list[Run]] = {"A": [], "B": []}
    for place, side in enumerate(order):
        speed = (ratio if side == "B" else 1.0) * (1.0 + 0.005 * random.uniform(-1.0, 1.0))
        sides[side].append(measured_run(root, place, speed=speed, **((b or {}) if side == "B" else {})))
    return sides["A"], sides["B"]


def _measure(run: Run, place: int, speed: float, nodes: tuple[str, str], plan: dict[str, Any]) -> Verdict:
    began_s = BEGAN_S + LAUNCH_S * place
    job = str(41 + place)
    for folder in ("ranks", "logs", "nccl"):
        (run.path / folder).mkdir()
    times = [each * 10.0 / speed for each in group_times(Random(place), 100, mean_s=0.1)]
    evidence = long_run(times)
    decided = msgspec.structs.replace(PLAN, **({"program": PROGRAM, "transport": None, "samples_per_step": 10} | plan))
    each = msgspec.structs.replace
    starts, exits, reports = {}, {}, {}
    for rank in evidence.starts:
        host, device = nodes[rank // 2], decided.device
        starts[rank] = each(
            evidence.starts[rank], time_s=began_s, job_id=job, token=f"t{place}", host=host,
            environment={"HOME": "/home/u"},
        )  # fmt: skip
        exits[rank] = each(evidence.exits[rank], host=host, started_s=began_s, ended_s=began_s + 500.0)
        reports[rank] = each(evidence.reports[rank], token=f"t{place}", gradients_device=device, device_kind=device)
    marker = ExitMarker(job, 0, began_s + 510.0)
    left = replace(evidence, plan=decided, starts=starts, exits=exits, reports=reports, marker=marker)
    write_run(run, left)
    (run.path / "job.sh").write_text("#!/bin/bash\n# four ranks\n")
    run.write("job.json", Submitted("slurm", job, "", sha256(run.path / "job.sh"), began_s - 5.0))
    run.write("command.json", CommandLine(("submit", "--gpus", "4"), "/home/u"))
    run.write("provenance.json", {"runner": "0.1.0", "python": "3.11.7"})
    run.write("ended.json", COMPLETED)
    (run.path / "versions").write_text("slurm\tslurm 22.05.8\npyxis\t0.24.0\n")
    (run.path / "nodes").write_text("".join(f"{node}\n" for node in nodes))
    verdict = judge_at_once(run)
    assert verdict is not None and verdict.outcome == "measured", verdict
    return verdict
