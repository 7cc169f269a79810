"""The evidence of a good run of four ranks on two nodes, and variants of it."""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from runner.core.files import sha256
from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence
from runner.jobs.directory import VERDICT, Run
from runner.model.job import ExitMarker, JobState
from runner.model.records import (
    ExitRecord,
    GpuState,
    GpuSummary,
    NodeRecord,
    Port,
    PortReading,
    Processors,
    Report,
    Result,
    StartRecord,
    WindowEnd,
)
from runner.model.verdict import Verdict
from tests.support.plans import PLAN

T = TypeVar("T")
COMPLETED = JobState("ended", "COMPLETED", exit_code=0)


def start(rank: int, **changes: Any) -> StartRecord:
    fields: dict[str, Any] = {
        "schema": "2", "rank": rank, "size": 4, "local_rank": rank % 2, "local_size": 2, "node_rank": rank // 2,
        "host": f"n{rank // 2}", "met": True, "device_kind": "cuda", "device_uuid": f"GPU-{rank}", "token": "t",
        "job_id": "41", "clock_offset_s": 0.0, "clock_error_s": 0.001,
    }  # fmt: skip
    return StartRecord(**(fields | changes))


def ended(rank: int, **changes: Any) -> ExitRecord:
    fields: dict[str, Any] = {
        "schema": "2", "rank": rank, "host": f"n{rank // 2}", "status": 0, "exit_code": 0, "ended_s": 100.0 + rank,
        "max_rss_bytes": 1, "program_started_monotonic_s": 1000.0, "ended_monotonic_s": 1010.0,
    }  # fmt: skip
    return ExitRecord(**(fields | changes))


def report(rank: int, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "schema": "2", "rank": rank, "framework": "horovod", "world_rank": rank, "world_size": 4,
        "world_local_rank": rank % 2, "device_kind": "cuda", "device_uuid": f"GPU-{rank}",
        "gradient_checksum": f"g{rank}", "parameter_checksum": "p", "parameters_moved": True, "onehot_ok": True,
        "loss_finite": True, "batch_size": 10, "group_steps": 2, "ends_s": (1.0, 2.0, 3.0 + rank / 10),
        "steps": 6, "elapsed_s": 3.0 + rank / 10, "window_began_monotonic_s": 1005.0, "nccl_built": True,
        "gradients_device": "cuda", "token": "t",
    }  # fmt: skip
    return Report(**(fields | changes))


# 4 ranks x 3 groups x 2 steps x 10 images in 3.3 s.
RESULT = Result(schema="2", size=4, window_s=3.3, preliminary_images_per_s=240 / 3.3)
GOOD = Evidence(
    plan=PLAN,
    state=COMPLETED,
    marker=ExitMarker("41", 0, 0.0),
    starts={rank: start(rank) for rank in range(4)},
    exits={rank: ended(rank) for rank in range(4)},
    reports={rank: report(rank) for rank in range(4)},
    result=RESULT,
    nccl=NcclLog(networks=frozenset({"IB"}), with_gdr=8, p2p=8),
)


def changed(**fields: Any) -> Evidence:
    return replace(GOOD, **fields)


def on_all(make: Callable[..., T], **changes: Any) -> dict[int, T]:
    """The records of all four ranks, each with these changes."""
    return {rank: make(rank, **changes) for rank in range(4)}


def with_plan(of: Evidence = GOOD, **changes: Any) -> Evidence:
    """The same evidence of a run with a changed plan."""
    return replace(of, plan=msgspec.structs.replace(of.plan, **changes))


def with_report(rank: int, **changes: Any) -> Evidence:
    return changed(reports=GOOD.reports | {rank: report(rank, **changes)})


def long_run(times: list[float], **changes: Any) -> Evidence:
    """Four ranks with these group times (10 steps of 10 images each), after a warm-up as long as it must be."""
    ends_s, steps = tuple(accumulate(times)), 10 * len(times)
    life_s = ends_s[-1] + 60.0
    fields: dict[str, Any] = {
        "group_steps": 10, "ends_s": ends_s, "steps": steps, "elapsed_s": ends_s[-1], "warmup_steps": 50,
        "warmup_s": 30.0, "ends_checksum": hashlib.sha256(struct.pack(f"<{len(ends_s)}d", *ends_s)).hexdigest()[:16],
    }  # fmt: skip
    return changed(
        exits={
            rank: ended(rank, program_started_monotonic_s=970.0, ended_monotonic_s=1000.0 + life_s) for rank in range(4)
        },
        reports={rank: report(rank, **(fields | changes)) for rank in range(4)},
        result=Result("2", size=4, window_s=ends_s[-1], preliminary_images_per_s=40 * steps / ends_s[-1]),
    )


def watched_run(evidence: Evidence, power_w: float = 250.0) -> Evidence:
    """The same run with a record of each node's watcher: two rails that carried what a ring sends, two healthy GPUs."""
    size = 2_000_000
    reports = {
        rank: msgspec.structs.replace(each, allreduce_bytes_per_step=size) for rank, each in evidence.reports.items()
    }
    first = reports[0]
    window_s, began_s = first.ends_s[-1], first.window_began_monotonic_s or 0.0
    moved = int(1.5 * size * len(first.ends_s) * (first.group_steps or 0) / 2)

    def ports(carried: int) -> tuple[Port, ...]:
        return tuple(port(name, 9 + carried, 7 + carried, wait_ticks=3) for name in ("mlx5_0:1", "mlx5_1:1"))

    def end(number: int, at_s: float, carried: int) -> WindowEnd:
        gpus = tuple(
            GpuState(
                uuid=f"GPU-{2 * number + index}", power_limit_w=400.0, energy_j=1000.0 + power_w * (at_s - began_s),
                ecc_uncorrected=0, pcie_width=16, nvlinks=(True,) * 12, processes_foreign=0,
            )
            for index in range(2)
        )  # fmt: skip
        return WindowEnd(at_s, ports(carried), gpus, Processors(10.0, 0.0, 10.0, 0, 0.0))

    def record(number: int) -> NodeRecord:
        gpus = tuple(
            GpuSummary(
                uuid=f"GPU-{2 * number + index}", samples=int(window_s), power_limit_default_w=400.0, pcie_width_max=16,
                mig=False, power_w_min=power_w - 5.0, power_w_max=power_w + 5.0, throttle_known=True,
            )
            for index in range(2)
        )  # fmt: skip
        return node(
            number,
            [],
            quiet=(PortReading(began_s - 33.0, ports(0)), PortReading(began_s - 32.0, ports(0))),
            window_begin=end(number, began_s - 0.01, 0),
            window_end=end(number, began_s + window_s + 0.01, moved),
            gpus=gpus,
        )

    return replace(evidence, reports=reports, watched={number: record(number) for number in range(2)})


def write_plan(run: Run, evidence: Evidence) -> None:
    run.write("plan.json", evidence.plan)


def write_record(run: Run, record: StartRecord | ExitRecord | Report) -> None:
    """A rank's record, as the rank would leave it; the plan must be there."""
    kind = {StartRecord: "start", ExitRecord: "exit", Report: "report"}[type(record)]
    facts = msgspec.to_builtins(record) | {"kind": kind}
    if kind == "start":
        facts["plan_sha256"] = sha256(run.path / "plan.json")
    (run.ranks / f"{record.rank}.{kind}.json").write_text(json.dumps(facts))


def leave(run: Run, name: str, value: Any) -> None:
    """Write a file of a run as if it had been there when that was judged."""
    run.write(name, value)
    keep_verdict(run)


def keep_verdict(run: Run) -> None:
    """Make a run's verdict, if it has one, one of what lies there now."""
    if (stored := run.read(VERDICT, Verdict)) is not None:
        run.write(VERDICT, stored)


def write_run(run: Run, evidence: Evidence) -> None:
    """What a run of this evidence leaves in its directory, without logs."""
    write_plan(run, evidence)
    for records in (evidence.starts, evidence.reports, evidence.exits):
        for record in records.values():
            write_record(run, record)
    for name, value in (("result.json", evidence.result), ("exit.json", evidence.marker)):
        if value is not None:
            run.write(name, value)


def port(name: str = "mlx5_0:1", sent: int = 0, received: int = 0, **changes: Any) -> Port:
    fields: dict[str, Any] = {"kind": "infiniband", "active": True, "for_ranks": True, "virtual": False}
    return Port(name=name, sent_bytes=sent, received_bytes=received, **(fields | changes))


def node(number: int, ports: list[tuple[Port, Port]], **changes: Any) -> NodeRecord:
    """A node whose ports counted so at both ends of the window of 3.1 s or 3.3 s, and nothing before."""
    first, last = (tuple(pair[which] for pair in ports) for which in (0, 1))
    window_s = 3.0 + (number * 2) / 10
    fields: dict[str, Any] = {
        "schema": "2", "node_rank": number, "rank": number * 2, "host": f"n{number}", "token": "t",
        "quiet": (PortReading(1000.0, first), PortReading(1001.0, first)),
        "window_begin": WindowEnd(1004.9, first), "window_end": WindowEnd(1005.0 + window_s, last),
    }  # fmt: skip
    return NodeRecord(**(fields | changes))
