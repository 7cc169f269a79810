"""What watching and judging cost with many ranks and many runs, and how the cost grows: ``make bench-scale``.

Tables in Markdown, in processor seconds, which other load on the machine changes least.
The growth is the exponent of a power of the size, from one row to the next: 1 is linear. A few minutes on one core;
about 1 GB below the directory for temporary files.
"""

import argparse
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from runner.cli.study import facts_lines
from runner.core.files import sha256
from runner.jobs import creation, directory
from runner.jobs.collect import Evidence, collect
from runner.jobs.directory import Run
from runner.jobs.facts import Selection, list_runs
from runner.jobs.image_usage import image_uses
from runner.jobs.life import standing
from runner.jobs.lookup import find
from runner.jobs.verdict import judge
from runner.jobs.watch import patience, presence
from runner.model.job import CommandLine, ExitMarker, JobState, Submitted
from runner.model.plan import Plan, PlannedImage
from runner.model.records import ExitRecord
from runner.model.study import Launch, Study
from runner.model.verdict import Verdict
from runner.study.directory import create
from runner.study.gather import facts, list_studies
from runner.study.plan import launches as plan_launches
from runner.study.plan import parse_arms

RANKS = (1_024, 4_096, 16_384)
RUNS = (100, 300, 1_000)
PER_NODE = 8
GROUPS = 30
GROUP_STEPS, BATCH = 10, 64
NCCL_LINES = 400  # of each rank: what INIT,NET prints for some twenty connections, and more
COMPLETED = JobState("ended", "COMPLETED", exit_code=0)
FAILED = JobState("ended", "FAILED", exit_code=1)


def plan(ranks: int) -> Plan:
    return Plan(
        job_name="scale", recipe="scale", framework="horovod", result="throughput", site="scale", scheduler="local",
        runtime="pyxis", tasks_per_node=(PER_NODE,) * (ranks // PER_NODE), gpus_per_node=PER_NODE, gpu_type="",
        cpus_per_task=8, memory_mb=0, whole_nodes=True, walltime_s=600, queue=None, account=None, mpi="none",
        directives=(), image=PlannedImage("scale", "", "/scale.sqsh"), mounts=(), env=(), program=("true",),
        wireup="rendezvous", device="cuda", demonstration="", transport="verbs",
    )  # fmt: skip


def start(rank: int, ranks: int, plan_sha256: str, environment: dict[str, str]) -> dict[str, Any]:
    """A start record as large as a real one."""
    return {
        "schema": "2", "kind": "start", "rank": rank, "size": ranks, "local_rank": rank % PER_NODE,
        "local_size": PER_NODE, "node_rank": rank // PER_NODE, "host": f"node{rank // PER_NODE}", "met": True,
        "node_name": f"node{rank // PER_NODE}", "boot_id": f"boot{rank // PER_NODE}", "clock_offset_s": 0.0,
        "clock_error_s": 0.001, "device_kind": "cuda", "device_index": rank % PER_NODE, "device_uuid": f"GPU-{rank}",
        "job_id": "1", "token": "t", "plan_sha256": plan_sha256, "environment": environment,
        "environment_names": sorted(environment), "local_sizes": f"{PER_NODE}(x{ranks // PER_NODE})",
    }  # fmt: skip


def report(rank: int, ranks: int) -> dict[str, Any]:
    """A report of GROUPS groups of a second."""
    ends = [float(group + 1) for group in range(GROUPS)]
    return {
        "schema": "2", "kind": "report", "rank": rank, "framework": "horovod", "world_rank": rank, "world_size": ranks,
        "world_local_rank": rank % PER_NODE, "device_kind": "cuda", "device_uuid": f"GPU-{rank}",
        "gradient_checksum": f"g{rank}", "parameter_checksum": "p", "parameters_moved": True, "onehot_ok": True,
        "loss_finite": True, "batch_size": BATCH, "group_steps": GROUP_STEPS, "ends_s": ends, "warmup_steps": 50,
        "warmup_s": 30.0, "steps": GROUPS * GROUP_STEPS, "elapsed_s": ends[-1], "window_began_monotonic_s": 140.0,
        "nccl_built": True, "gradients_device": "cuda",
        "compute_quarters_p50_s": [0.08 + 1e-4 * (rank * 7 % 11)] * 4,
    }  # fmt: skip


def ended(rank: int, **changes: Any) -> ExitRecord:
    fields: dict[str, Any] = {
        "schema": "2", "rank": rank, "host": f"node{rank // PER_NODE}", "status": 0, "exit_code": 0,
        "ended_s": 1000.0 + rank * 1e-3, "max_rss_bytes": 1, "program_started_monotonic_s": 100.0,
        "ended_monotonic_s": 190.0,
    }  # fmt: skip
    return ExitRecord(**(fields | changes))


def write_run(root: Path, ranks: int) -> Run:
    path = root / f"ranks-{ranks}"
    for folder in ("logs", "ranks", "nccl"):
        (path / folder).mkdir(parents=True)
    run = Run(path)
    run.write("plan.json", plan(ranks))
    digest = sha256(path / "plan.json")
    environment = {f"SLURM_VARIABLE_{number}": "x" * 40 for number in range(60)}
    log = "node0:1:1 [0] NCCL INFO Using network IB\n" + "".join(
        f"node0:1:1 [0] NCCL INFO Channel {line % 16:02d}/0 : {line}[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
        for line in range(NCCL_LINES)
    )
    for rank in range(ranks):
        for kind, record in (
            ("start", start(rank, ranks, digest, environment)),
            ("report", report(rank, ranks)),
            ("exit", msgspec.to_builtins(ended(rank))),
        ):
            (path / "ranks" / f"{rank}.{kind}.json").write_text(json.dumps(record, indent=1))
        (path / "nccl" / f"node{rank // PER_NODE}.{rank}.log").write_text(log)
    rate = ranks * BATCH * GROUP_STEPS * GROUPS / float(GROUPS)
    run.write(
        "result.json", {"schema": "2", "size": ranks, "window_s": float(GROUPS), "preliminary_images_per_s": rate}
    )
    run.write("exit.json", ExitMarker("1", 0, 1.0))
    return run


def bad_ends(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """The same run with the ends that cost the judge most."""
    every = range(evidence.plan.tasks)
    ends: dict[str, tuple[range, dict[str, int | None], str]] = {
        "every rank failed": (every, {"status": 7, "exit_code": 7}, ""),
        "half stopped, half without a record": (
            every[::2], {"status": 143, "exit_code": None, "signal": 15}, "Exited with exit code 1",
        ),
        "half by SIGBUS, half without a record": (
            every[::2], {"status": 135, "exit_code": None, "signal": 7}, "Killed",
        ),
    }  # fmt: skip
    for name, (ranks, fields, of_others) in ends.items():
        exits = {rank: ended(rank, **fields) for rank in ranks}
        others = dict.fromkeys(every[1::2], of_others) if of_others else {}
        yield f"judge: {name}", dataclasses.replace(evidence, state=FAILED, exits=exits, task_ends=others)


def costs_of_ranks(root: Path, ranks: int) -> dict[str, float]:
    run = write_run(root, ranks)
    costs: dict[str, float] = {}
    with _timed(costs, "one poll: list the records"):
        there = presence(run)
    with _timed(costs, "is a record awaited?"):
        assert patience(run, there, COMPLETED, run.needed_plan()) == "none"
    with _timed(costs, "collect"):
        evidence = collect(run, COMPLETED)
    with _timed(costs, "judge: good"):
        verdict = judge(evidence)
    assert verdict.outcome == "measured", verdict.reasons[:3]
    for name, bad in bad_ends(evidence):
        with _timed(costs, name):
            assert judge(bad).outcome == "failed"
    shutil.rmtree(run.path)
    return costs


def costs_of_runs(root: Path, runs: int) -> dict[str, float]:
    os.environ["RUNNER_STATE"] = str(root / f"state-{runs}")
    for number in range(runs):
        run = submitted(root / f"runs-{runs}", f"{number:05}-{PER_NODE}", number)
        if number % 2:
            run.write("ended.json", COMPLETED)
            run.write("verdict.json", Verdict("ran"))
    costs: dict[str, float] = {}
    with _timed(costs, "find the newest"):
        newest = find(None)
    with _timed(costs, "find by name"):
        find(f"{runs // 2:05}")
    with _timed(costs, "list all"):
        assert len(list_runs(Selection()).runs) == runs
    with _timed(costs, "list the newest 20"):
        assert len(list_runs(Selection(last=20)).runs) == 20
    with _timed(costs, "status of the newest"):
        standing(newest)
    with _timed(costs, "which run uses which image"):
        assert len(image_uses()) == runs
    with _timed(costs, "create one more"):
        creation.create(root / f"runs-{runs}", "scale", float(runs))
    return costs


def costs_of_launches(root: Path, launches: int) -> dict[str, float]:
    """Seconds of what looks at one study, of ten launches a point."""
    os.environ["RUNNER_STATE"] = str(root / f"study-state-{launches}")
    repeats = 10
    asked = Study(
        schema="1", study="", created=datetime(2026, 1, 1, tzinfo=timezone.utc), command=CommandLine(("scale",), "/"),
        site="scale", recipe="scale", way="separate", gpus=tuple(range(1, launches // repeats + 1)), arms=("full",),
        settings=((),), repeats=repeats, strong=False,
        launches=plan_launches(range(1, launches // repeats + 1), parse_arms("full"), ((),), repeats),
    )  # fmt: skip
    study = create(root / f"studies-{launches}", "scale", asked, 0.0)
    for number, launch in enumerate(asked.launches):
        run = submitted(study.launches(launch.key), f"scale-{launch.gpus}", number)
        (run.ranks / "0.report.json").write_text(json.dumps(report(0, PER_NODE)))
        (run.ranks / "0.start.json").write_text(json.dumps(start(0, PER_NODE, "", {})))
        run.write("exit.json", ExitMarker("1", 0, float(number)))
        run.write("verdict.json", Verdict("measured", images_per_s=100.0 * launch.gpus + number % 7, window_s=30.0))
    costs: dict[str, float] = {}
    with _timed(costs, "all facts"):
        known = facts(study)
    assert known.state == "complete"
    with _timed(costs, "table"):
        assert facts_lines(known, 80)
    with _timed(costs, "in the list of studies"):
        assert len(list_studies()) == 1
    return costs


@contextmanager
def _timed(costs: dict[str, float], name: str) -> Iterator[None]:
    began = time.process_time()
    yield
    costs[name] = time.process_time() - began


def costs_of_report(subjects: list[Path], output: Path) -> tuple[float, float, float]:
    """Of ``report`` on these runs, in a process of its own: processor seconds, peak memory and size of the page, MB."""
    words = [sys.executable, "-m", "runner", "report", *map(str, subjects), "-o", str(output)]
    with Path(os.devnull).open("wb") as nothing:
        process_id = os.posix_spawn(
            words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nothing.fileno(), 1)]
        )
        _, status, used = os.wait4(process_id, 0)
    assert status == 0, status
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, (output / "report.html").stat().st_size / 1e6


def reports(root: Path, smaller: int) -> None:
    """Print what reports cost: on many runs of eight ranks, and on one run of many.

    The largest comes last: a new process begins with the peak of the one that started it.
    """
    os.environ["RUNNER_STATE"] = str(root / "state")
    print("\n| report on | processor s | peak MB | page MB |\n|---|---|---|---|")

    def row(name: str, subjects: list[Path], top: Path) -> None:
        seconds, memory, page = costs_of_report(subjects, root / f"report-of-{name.replace(' ', '-')}")
        print(f"| {name} | {seconds:.1f} | {memory:.0f} | {page:.2f} |", flush=True)
        shutil.rmtree(top)

    first = judged(write_run(root, PER_NODE))
    for count in (each // smaller for each in RUNS):
        study = study_of(root, first, count)
        row(f"a study of {count} runs of {PER_NODE} ranks", [study], study)
        top = root / f"copies-{count}"
        copies = [top / f"20261122-120000-r{number}-{PER_NODE}" for number in range(count)]
        for path in copies:
            shutil.copytree(first.path, path)
        row(f"{count} runs of {PER_NODE} ranks", copies, top)
    for ranks in (each // smaller for each in RANKS):
        run = judged(write_run(root, ranks))
        row(f"a run of {ranks} ranks", [run.path], run.path)


def submitted(root: Path, name: str, number: int) -> Run:
    run = creation.create(root, name, float(number))
    run.write("plan.json", plan(PER_NODE))
    run.write("job.json", Submitted("local", "999999.1.00000000", "", "0", float(number)))
    (run.path / directory.SCRIPT).write_text("#!/bin/bash\n")
    return run


def study_of(root: Path, run: Run, count: int) -> Path:
    """A study of so many launches, each with a copy of that run as its attempt."""
    launches = tuple(Launch(f"g0008-full-r{place}", PER_NODE, "full", place + 1, place) for place in range(count))
    now, command = datetime.now(timezone.utc).replace(microsecond=0), CommandLine(("scale",), str(root))
    asked = Study(
        "1", "", now, command, "local", "scale", "separate", (PER_NODE,), ("full",), ((),), count, False, launches
    )
    study = create(root / "studies", f"of{count}", asked, 0.0)
    for launch in launches:
        shutil.copytree(run.path, study.launches(launch.key) / f"20261122-120000-scale-{PER_NODE}")
    return study.path


def judged(run: Run) -> Run:
    """The run with its end and its verdict, as ``wait`` keeps them."""
    run.write("ended.json", COMPLETED)
    run.write("verdict.json", judge(collect(run, COMPLETED)))
    (run.path / directory.SCRIPT).write_text("#!/bin/bash\n")
    return run


def table(unit: str, sizes: tuple[int, ...], costs_of: Callable[[Path, int], dict[str, float]], root: Path) -> None:
    rows = {size: costs_of(root, size) for size in sizes}
    print(f"\n| {unit} | " + " | ".join(f"{size}: s" for size in sizes) + " | growth |")
    print("|---" * (len(sizes) + 2) + "|")
    before, last = sizes[-2:]
    for name in rows[last]:
        seconds = [rows[size][name] for size in sizes]
        growth = math.log(max(seconds[-1], 1e-6) / max(seconds[-2], 1e-6)) / math.log(last / before)
        print(f"| {name} | " + " | ".join(f"{each:.3f}" for each in seconds) + f" | {growth:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smaller", type=int, default=1, help="divide all sizes by this number (default 1)")
    smaller = parser.parse_args().smaller
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as root:
        table("one run, of ranks", tuple(ranks // smaller for ranks in RANKS), costs_of_ranks, Path(root))
        table("launches of a study", tuple(runs // smaller for runs in RUNS), costs_of_launches, Path(root))
        table("runs", tuple(runs // smaller for runs in RUNS), costs_of_runs, Path(root))
        reports(Path(root), smaller)


if __name__ == "__main__":
    main()
