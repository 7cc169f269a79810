"""Studies and measured runs to report on: run directories as real jobs leave them, and the facts of a study of them."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from runner.jobs.collect import collect
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.verdict import judge
from runner.model.job import ExitMarker
from runner.model.plan import Plan, PlannedImage
from runner.model.records import Result
from runner.model.study import Arm, Estimate, Launch, LaunchFacts, Loss, LossRow, PointFacts, StudyFacts
from tests.support.evidence import COMPLETED, changed, ended, report, start, write_run
from tests.support.plans import PLAN

BATCH, GROUP_STEPS = 256, 10
NCCL_LOG = """n:1:1 [0] NCCL INFO Using network IB
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
SCRIPT_TEXT = "#!/bin/bash\n#SBATCH --nodes=2\nsrun python3 main.py\n"


def plan(ranks: int, per_node: int = 8, **changes: Any) -> Plan:
    """Of a measurement on whole nodes."""
    nodes = (per_node,) * (ranks // per_node) + (ranks % per_node,) * (ranks % per_node > 0)
    fields: dict[str, Any] = {
        "job_name": "resnet", "recipe": "horovod-pytorch", "site": "technion", "scheduler": "local",
        "tasks_per_node": nodes, "gpus_per_node": max(nodes), "gpu_type": "a100", "cpus_per_task": 8,
        "walltime_s": 600, "program": ("true",), "samples_per_step": BATCH,
        "image": PlannedImage("nvcr.io/nvidia/pytorch:25.02-py3", "sha256:" + "ab" * 32, "/store/pytorch.sqsh"),
    }  # fmt: skip
    return msgspec.structs.replace(PLAN, **(fields | changes))


def measured_run(
    root: Path,
    name: str,
    ranks: int,
    *,
    step_s: Callable[[int], float] = lambda group: 0.1 + 0.0004 * math.sin(2.0 * group),
    groups: int = 60,
    compute_s: Callable[[int], float] = lambda rank: 0.08 + 1e-4 * (rank * 7 % 5),
    host: Callable[[int], str] = lambda node: f"dgx{node:02}",
    script: str = SCRIPT_TEXT,
    **plan_changes: Any,
) -> Run:
    """The directory of a run that has ended well and was judged: each rank's records, times and verdict."""
    run = Run(root / name)
    for folder in ("logs", "ranks", "nccl"):
        (run.path / folder).mkdir(parents=True)
    run.write(
        "provenance.json", {"runner": "0.1.0", "python": "3.11.7", "source": {"commit": "c0ffee" * 6, "dirty": False}}
    )
    (run.path / SCRIPT).write_text(script)
    planned = plan(ranks, **plan_changes)
    ends_s = tuple(accumulate(GROUP_STEPS * step_s(group) for group in range(groups)))
    per_node, steps = planned.tasks_per_node[0], GROUP_STEPS * groups
    for node in range(planned.nodes):
        (run.path / "nccl" / f"node{node}.0.log").write_text(NCCL_LOG)
    starts, reports, exits = {}, {}, {}
    for rank in range(ranks):
        node, local_rank = divmod(rank, per_node)
        starts[rank] = start(
            rank, size=ranks, local_rank=local_rank, local_size=planned.tasks_per_node[node], node_rank=node,
            host=host(node), node_name=host(node), device_kind=planned.device,
        )  # fmt: skip
        reports[rank] = report(
            rank, world_size=ranks, world_local_rank=local_rank, device_kind=planned.device, batch_size=BATCH,
            group_steps=GROUP_STEPS, ends_s=ends_s, warmup_steps=60, warmup_s=31.0, steps=steps, elapsed_s=ends_s[-1],
            window_began_monotonic_s=1040.0, compute_quarters_p50_s=(compute_s(rank),) * 4,
        )  # fmt: skip
        exits[rank] = ended(rank, host=host(node), ended_s=2000.0, ended_monotonic_s=1050.0 + ends_s[-1])
    result = Result("2", size=ranks, window_s=ends_s[-1], preliminary_images_per_s=ranks * BATCH * steps / ends_s[-1])
    marker = ExitMarker("41", 0, 2000.0)
    write_run(run, changed(plan=planned, marker=marker, starts=starts, exits=exits, reports=reports, result=result))
    run.write("ended.json", COMPLETED)
    run.write("verdict.json", judge(collect(run, COMPLETED)))
    return run


def figure_of(run: Run) -> float:
    """What the verdict of a run gives."""
    assert run.verdict is not None and run.verdict.images_per_s is not None, run.verdict
    return run.verdict.images_per_s


def launch_facts(run: Run | None, gpus: int, repeat: int, place: int, **changes: object) -> LaunchFacts:
    """Of a launch whose run is proven; without a run, of one that was never started."""
    settings: tuple[tuple[str, str], ...] = changes.pop("settings", ())  # type: ignore[assignment]
    arm: Arm = changes.pop("arm", "full")  # type: ignore[assignment]
    launch = Launch(f"g{gpus:04}-{arm}-{place}-r{repeat}", gpus, arm, repeat, place, settings=settings)
    if run is None:
        return LaunchFacts(launch, "missing", **changes)  # type: ignore[arg-type]
    known: dict[str, object] = {
        "run": run.run_id, "directory": str(run.path), "attempts": 1, "outcome": "measured",
        "images_per_s": figure_of(run), "nodes": tuple(f"dgx{node:02}" for node in range(max(gpus // 8, 1))),
    }  # fmt: skip
    return LaunchFacts(launch, "proven", **(known | changes))  # type: ignore[arg-type]


def estimate(value: float, half: float | None = 0.012) -> Estimate:
    """With limits that are so far from it, as a share."""
    return Estimate(value) if half is None else Estimate(value, value * (1.0 - half), value * (1.0 + half))


PARTS = {
    "gradient hooks": 0.004,
    "node, power and input": 0.021,
    "waiting for slower ranks": 0.034,
    "coordination": 0.006,
    "exposed communication": 0.019,
    "compute slowed by overlap": 0.009,
}


def loss(gpus: int, scale: float, settings: tuple[tuple[str, str], ...] = ()) -> Loss:
    """An attribution whose rows and efficiency add up to 1."""
    power = {"node, power and input": (0.985, "includes power")}
    rows = tuple(
        LossRow(name, estimate(scale * part, 0.2), *power.get(name, (1.0, ""))) for name, part in PARTS.items()
    )
    return Loss(gpus, settings, estimate(1.0 - scale * sum(PARTS.values()), 0.006), rows)


def study_facts(
    launches: Sequence[LaunchFacts], points: Sequence[PointFacts], losses: Sequence[Loss] = (), **changes: object
) -> StudyFacts:
    """The facts of a study with these launches and points."""
    fields: dict[str, object] = {
        "study": "20261122-120000-resnet-study", "directory": "/runs/20261122-120000-resnet-study", "name": "resnet",
        "state": "complete", "site": "technion", "recipe": "horovod-pytorch", "way": "one-allocation", "strong": False,
        "created": datetime(2026, 11, 22, 12, tzinfo=timezone.utc), "launches": tuple(launches),
        "points": tuple(points), "losses": tuple(losses),
    }  # fmt: skip
    return StudyFacts(**(fields | changes))  # type: ignore[arg-type]


def whole_study(root: Path, sizes: Sequence[int] = (1, 2, 4, 8, 16), repeats: int = 3, **changes: object) -> StudyFacts:
    """A study whose largest size has a slow node, with one launch that was never started."""
    launches: list[LaunchFacts] = []
    points: list[PointFacts] = []
    for size in sizes:
        lost = 0.093 * math.log2(size) / math.log2(16) if size > 1 else 0.0
        runs = [
            measured_run(
                root,
                f"20261122-1200{place:02}-resnet-{size}.{repeat}",
                size,
                step_s=lambda group, lost=lost, repeat=repeat: (  # type: ignore[misc]
                    (0.1 + 0.0004 * math.sin(2.0 * group + repeat)) * (1.0 + 0.002 * repeat) / (1.0 - lost)
                ),
                compute_s=lambda rank: 0.08 * (1.062 if rank // 8 == 1 else 1.0) + 1e-4 * (rank * 7 % 5),
            )
            for place, repeat in enumerate(range(1, repeats + 1))
        ]
        launches += [launch_facts(run, size, repeat, len(launches) + repeat) for repeat, run in enumerate(runs, 1)]
        figures = sorted(figure_of(run) for run in runs)
        whole = Estimate(figures[len(figures) // 2], figures[0] * 0.994, figures[-1] * 1.006)
        one, apart = estimate(1.0 - lost, 0.008), estimate(1.0 - 0.6 * lost, 0.006)
        needed = {"0.01": 6, "0.02": 3, "0.05": 3}
        uncoupled = apart if size > 1 else None
        points.append(
            PointFacts(size, "full", (), repeats, repeats, whole, one, uncoupled, 0.004, needed, scaling="weak")
        )
    launches.append(launch_facts(None, 32, 1, 99, why="its job was cancelled before it started"))
    points.append(PointFacts(32, "full", (), 0, 1))
    losses = [loss(size, math.log2(size) / math.log2(16)) for size in sizes if size > 2]
    return study_facts(launches, points, losses, **changes)
