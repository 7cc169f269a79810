"""Training throughput of an image classifier on synthetic data, in any framework: warm-up, window, proof.

Each rank trains on one fixed batch of its own, drawn from seed + rank. After a warm-up all ranks leave a barrier
together and do the same number of steps; the figure is the images of all ranks over the time from the common start to
the latest end. It is printed only when it is proven that the ranks trained together (proof.py). A framework comes in
as a ``Training``. Writes ``ranks/N.report.json`` and, on rank 0, ``result.json`` (schema.json) if the launcher named a
run directory.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from gpu_runner_inside import inputs, records, window
from gpu_runner_inside.benchmark import arms, figures, lengths, proof


@dataclass(frozen=True)
class Device:
    """Where a rank computes.

    Attributes:
        kind: ``cuda`` or ``cpu``. name: for people. identity: unique among the devices of this host.
        index: among the GPUs that this process sees; None on a processor.
    """

    kind: str
    name: str
    identity: str
    index: int | None


class World(Protocol):
    """This rank as Horovod knows it, and the collectives that the benchmark itself needs."""

    rank: int
    size: int
    local_rank: int

    def agreed(self, value: float, name: str) -> float:
        """Rank 0's value, on all ranks."""

    def barrier(self) -> None:
        """Leave together."""

    def onehot_holds(self) -> bool:
        """Whether the sum of all ranks' unit vectors is all ones: every rank took part exactly once."""

    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's JSON value, by rank, on every rank."""


class Training(Protocol):
    """A model, its data and one step of it.

    Attributes:
        local_gradients: checksum of this rank's own gradients, before anything left the rank.
        gradients_device: kind of the device that holds the gradients when Horovod gets them: ``cuda`` or ``cpu``;
            None where the framework does not say.
        allreduce_bytes: what this rank gives to allreduces in a step, as it is sent (after compression); None where
            that is not known, or other collectives carry gradients.
        reduced_gradients_error: may be left out; of divided parameters, how far the reduced gradients of a step were
            from the mean of the ranks' own (0: equal).
        sharded: may be left out; what divides the parameters among the ranks, which then need reduced_gradients_error.
        hooks: whether the gradients go through Horovod at all (at size 1 they may not).
        versions: of what computed, by the names of schema.json.
        instrumentation_s: time that the host has spent so far in the calls that a step makes only to be measured,
            seconds; None where that is not known.
    """

    world: World
    device: Device
    local_gradients: str
    gradients_device: str | None
    allreduce_bytes: int | None
    hooks: bool
    versions: dict[str, Any]

    @property
    def instrumentation_s(self) -> float | None: ...

    def use(self, arm: str) -> None:
        """Take further steps as this arm does (arms.py); it is called only where one is asked for. Before ``full`` the
        parameters and the optimizer's state of rank 0 become everyone's.
        """

    def step(self) -> None:
        """One step; it may be queued only."""

    def synchronize(self) -> list[float]:
        """Wait for the device; each step's own computing since the last call, seconds, without waiting for other
        ranks. Empty where the training method cannot separate it.
        """

    def loss(self) -> float:
        """Of the last step."""

    def parameters_checksum(self) -> str:
        """Without BatchNorm's running statistics, which differ between correct ranks."""

    def peak_memory_bytes(self) -> int:
        """Of the device, 0 where the framework does not report it; of the process on a processor."""


def run(recipe: str, options: argparse.Namespace, training: Training) -> int:
    """Measure, prove, leave the records. 0 if it ran to its end; whether its figure is proven stands in the result."""
    world, device = training.world, training.device
    *others, main = arms.of_options(options)
    if main != arms.FULL:
        training.use(main)
    training.synchronize()
    began_s = time.perf_counter()
    first = training.parameters_checksum()
    checksum_s = time.perf_counter() - began_s
    length = warm_up(training, options)
    windows = [time_arm(training, arm, length, place) for place, arm in enumerate(others)]
    if others:
        change_arm(training, main, length)
    timed = time_window(training, length)
    began_s = time.perf_counter()
    last = training.parameters_checksum()
    checksum_s += time.perf_counter() - began_s
    facts = proof.RankFacts(
        rank=world.rank,
        size=world.size,
        host=os.environ.get("RUNNER_HOST") or os.uname().nodename,
        device=device.identity,
        gradients=training.local_gradients,
        parameters=last,
        moved=first != last,
        onehot=world.onehot_holds(),
        finite=math.isfinite(timed.loss),
    )
    report = figures.report_of(training.versions, asdict(device), facts, timed, length, options.batch_size)
    report.update(
        token=os.environ.get("RUNNER_TOKEN"),
        world_local_rank=world.local_rank,
        gradients_device=training.gradients_device,
        allreduce_bytes_per_step=training.allreduce_bytes,
        reduced_gradients_error=_of_reduced(training),
        sharded=getattr(training, "sharded", ""),
        peak_memory_bytes=training.peak_memory_bytes(),
        checksum_s=checksum_s,
    )
    if others:
        windows.append(arms.Window(main, length.group_steps, timed.began_monotonic_s, timed.ends_s, timed.compute_s))
        windows += [
            time_arm(training, arm, length, place) for place, arm in enumerate(reversed(others), start=len(windows))
        ]
        report["arms"] = [arms.record(window) for window in windows]
    if main != arms.FULL:
        report["arm"] = main
    inputs.leave_measured()
    run_dir = os.environ.get("RUNNER_RUN_DIR")
    # The launcher's rank: a Horovod that fell back to size 1 calls every process rank 0.
    rank = int(os.environ.get("RUNNER_RANK") or world.rank)
    if run_dir:
        records.write(records.rank_record(run_dir, rank, "report"), "report", {"rank": rank, **report})
    gathered = world.gather(
        {
            "facts": asdict(facts),
            "window_s": timed.ends_s[-1],
            "compute_p50_s": report["compute_p50_s"],
            "group_p50_s": report["group_p50_s"],
            "hooks": training.hooks,
        },
        "runner.facts",
    )
    if rank == 0:
        expected = int(os.environ.get("RUNNER_WORLD") or world.size)
        proven = proof.judge(
            [proof.RankFacts(**each["facts"]) for each in gathered], expected, synchronised=main == arms.FULL
        )
        named = {**training.versions, "recipe": recipe, "device_kind": device.kind, "device_name": device.name}
        if main != arms.FULL:
            named["arm"] = main
        result = figures.result_of(named, options, length, proven, gathered)
        if run_dir:
            records.write(records.result_path(run_dir), "result", result)
        figures.print_summary(result)
    return 0


def _of_reduced(training: Training) -> float | None:
    """One that is not finite is as of unrelated gradients: as null it would say that there is nothing to prove."""
    error: float | None = getattr(training, "reduced_gradients_error", None)
    return 1.0 if error is not None and not math.isfinite(error) else error


def warm_up(training: Training, options: argparse.Namespace) -> lengths.Lengths:
    """Run the warm-up and decide the window's length, by rank 0's clock; every rank does the same number of steps."""
    parts: list[lengths.Part] = []
    began, done_s = time.perf_counter(), 0.0
    while count := lengths.next_part(parts, options):
        _steps(training, count)
        now_s = training.world.agreed(time.perf_counter() - began, "warmup")
        parts.append((count, now_s - done_s))
        done_s = now_s
    return lengths.planned(parts, options)


def time_window(training: Training, length: lengths.Lengths, place: str = "") -> figures.Timed:
    """The timed steps, from a barrier on; ``place``: of a window that is not the run's own."""
    ends_s: list[float] = []
    compute_s: list[float] = []
    training.synchronize()
    window.mark(f"begin{place}")
    training.world.barrier()
    own_s = training.instrumentation_s
    start = time.monotonic()
    for _ in range(length.groups):
        for _ in range(length.group_steps):
            training.step()
        compute_s += training.synchronize()
        ends_s.append(time.monotonic() - start)
    window.mark(f"end{place}")
    total_s = training.instrumentation_s
    instrumentation_s = None if own_s is None or total_s is None else total_s - own_s
    return figures.Timed(start, ends_s, compute_s, training.loss(), instrumentation_s)


def change_arm(training: Training, arm: str, length: lengths.Lengths) -> None:
    """Go over to an arm: the group that meets what is new in it is not timed."""
    training.use(arm)
    _steps(training, length.group_steps)


def time_arm(training: Training, arm: str, length: lengths.Lengths, place: int) -> arms.Window:
    """One window of an arm that is not the main one; ``place``: of the window in the process."""
    change_arm(training, arm, length)
    timed = time_window(training, arms.half(length), str(place))
    return arms.Window(arm, length.group_steps, timed.began_monotonic_s, timed.ends_s, timed.compute_s)


def _steps(training: Training, count: int) -> None:
    for _ in range(count):
        training.step()
    training.synchronize()
