"""Training throughput of an image classifier on synthetic data: PyTorch with Horovod.

Each rank trains on one fixed batch of its own, drawn from seed + rank. After a warm-up all ranks leave a barrier
together and do the same number of steps; the figure is the images of all ranks over the time from the common start to
the latest end. It is printed only when it is proven that the ranks trained together (proof.py).
Writes ``ranks/N.report.json`` and, on rank 0, ``result.json`` (lib/schema.json) if the launcher named a run directory.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib"))

import horovod  # noqa: E402
import horovod.torch as hvd  # noqa: E402
import measure  # noqa: E402
import records  # noqa: E402
import torch  # noqa: E402
from models import CLASSES, MODELS  # noqa: E402
from options import WARMUP, WINDOW, options_of  # noqa: E402
from proof import Proof, RankFacts, checksum, gather, judge, onehot_holds  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from waiting import sleep_while_waiting  # noqa: E402

AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


@dataclass(frozen=True)
class Device:
    """Where this rank computes. ``identity``: what tells it from any other device of this host."""

    torch: torch.device
    kind: str
    name: str
    identity: str

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch)


def device_of(wanted: str) -> Device:
    """The GPU number local rank, or the only one seen; the processor where there is none.

    Raises:
        SystemExit: a GPU was asked for, and there is none for this rank.
    """
    kind = wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return Device(torch.device("cpu"), "cpu", platform.processor() or platform.machine(), f"cpu-{os.getpid()}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = 0 if count == 1 else hvd.local_rank()
    if index >= count:
        sys.exit(
            f"rank {hvd.rank()} wants GPU {index} of {os.uname().nodename}, but sees {count} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        )
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return Device(torch.device("cuda", index), "cuda", properties.name, f"GPU-{uuid}" if uuid else f"index-{index}")


class Training:
    """The model, its data, and one step of it."""

    def __init__(self, options: argparse.Namespace, device: Device) -> None:
        self._device = device
        self._dtype = AUTOCAST.get(options.precision)
        use_tf32 = options.precision != "fp32"
        torch.backends.cuda.matmul.allow_tf32 = use_tf32
        torch.backends.cudnn.allow_tf32 = use_tf32
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(options.seed)
        # Only the images: Horovod refuses parameters in this layout ("Tensor is required to be contiguous"), and a
        # convolution goes by its input's.
        layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.model: nn.Module = MODELS[options.model]().to(device.torch)
        own = torch.Generator().manual_seed(options.seed + hvd.rank())
        shape = (options.batch_size, 3, options.image_size, options.image_size)
        self._images = torch.randn(shape, generator=own).to(device.torch, memory_format=layout)
        self._labels = torch.randint(CLASSES, (options.batch_size,), generator=own).to(device.torch)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._forward: Callable[[Tensor], Tensor] = self.model
        # Before the optimizer registers its hooks: nothing of this backward pass leaves the rank.
        self._loss().backward()
        self.local_gradients = checksum(p.grad for p in self.model.parameters() if p.grad is not None)
        self.model.zero_grad(set_to_none=True)
        if options.compile:
            self._forward = torch.compile(self.model)
        if options.hooks_at_one:
            # Only Horovod's Python side reads it from here on: it registers the hooks at size 1 as well.
            os.environ["HOROVOD_ELASTIC"] = "1"
        self.hooks = hvd.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.005, momentum=0.9),
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        )
        self._scaler = _scaler(device.kind) if self._dtype is torch.float16 else None

    def parameters_checksum(self) -> str:
        """Without BatchNorm's running statistics: they differ between ranks by right."""
        return checksum(self.model.parameters())

    def step(self, mark: Callable[[], None]) -> Tensor:
        """One step; ``mark`` is called when this rank's own computing is queued, before it waits for others."""
        self._optimizer.zero_grad()
        loss = self._loss()
        if self._scaler is None:
            loss.backward()
            mark()
            self._optimizer.step()
            return loss
        self._scaler.scale(loss).backward()
        mark()
        self._optimizer.synchronize()
        self._scaler.unscale_(self._optimizer)
        with self._optimizer.skip_synchronize():
            self._scaler.step(self._optimizer)
        self._scaler.update()
        return loss

    def _loss(self) -> Tensor:
        autocast = (
            contextlib.nullcontext()
            if self._dtype is None
            else torch.autocast(device_type=self._device.kind, dtype=self._dtype)
        )
        with autocast:
            return nn.functional.cross_entropy(self._forward(self._images), self._labels)


def _scaler(kind: str) -> Any:
    made = getattr(torch.amp, "GradScaler", None)
    return made(kind) if made is not None else torch.cuda.amp.GradScaler(enabled=kind == "cuda")


class ComputeClock:
    """Each step's own computing, from its start to the end of its backward pass: without waiting for other ranks."""

    def __init__(self, device: Device) -> None:
        self._on_device = device.kind == "cuda"
        self._open: list[tuple[Any, Any]] = []
        self._start: Any = None
        self.seconds: list[float] = []

    def start(self) -> None:
        self._start = self._now()

    def mark(self) -> None:
        self._open.append((self._start, self._now()))

    def collect(self) -> None:
        """After the device was synchronised: turn the marks into seconds."""
        for start, end in self._open:
            self.seconds.append(start.elapsed_time(end) / 1000.0 if self._on_device else end - start)
        self._open.clear()

    def _now(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass(frozen=True)
class Lengths:
    """What rank 0 decided for all: warm-up steps and seconds done, timed groups and steps in each."""

    warmup_steps: int
    warmup_s: float
    groups: int
    group_steps: int


def warm_up(training: Training, device: Device, options: argparse.Namespace) -> Lengths:
    """Run the warm-up and decide the window's length; every rank does the same number of steps."""
    began = time.perf_counter()
    steps = max(options.warmup_steps, 1)
    for _ in range(steps // 2):
        training.step(_nothing)
    device.synchronize()
    middle = time.perf_counter()
    for _ in range(steps - steps // 2):
        training.step(_nothing)
    device.synchronize()
    now = time.perf_counter()
    step_s = agreed((now - middle) / (steps - steps // 2), "step")
    more = math.ceil(max(agreed(options.warmup_seconds - (now - began), "rest"), 0.0) / step_s)
    for _ in range(more):
        training.step(_nothing)
    device.synchronize()
    group_steps = min(max(round(1.0 / step_s), 1), 10)
    timed = max(options.steps, math.ceil(options.window_seconds / step_s))
    if timed < measure.LEAST_FOR_TRUNCATION * group_steps:
        group_steps = max(timed // measure.LEAST_FOR_TRUNCATION, 1)
    return Lengths(steps + more, time.perf_counter() - began, math.ceil(timed / group_steps), group_steps)


def agreed(value: float, name: str) -> float:
    """Rank 0's value, on all ranks."""
    return float(hvd.broadcast(torch.tensor([value], dtype=torch.float64), 0, name=f"runner.{name}").item())


def _nothing() -> None:
    """No mark in the warm-up."""


@dataclass(frozen=True)
class Timed:
    """One rank's window. ``ends_s``: end of each group; ``compute_s``: each step's own computing; seconds."""

    ends_s: list[float]
    compute_s: list[float]
    loss: float


def time_window(training: Training, device: Device, lengths: Lengths) -> Timed:
    """The timed steps, from a barrier on."""
    clock = ComputeClock(device)
    ends_s: list[float] = []
    device.synchronize()
    hvd.barrier()
    start = time.perf_counter()
    loss = torch.zeros(())
    for _ in range(lengths.groups):
        for _ in range(lengths.group_steps):
            clock.start()
            loss = training.step(clock.mark)
        device.synchronize()
        ends_s.append(time.perf_counter() - start)
        clock.collect()
    return Timed(ends_s, clock.seconds, float(loss.item()))


def quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter of the run; the whole run's where it is too short to be cut."""
    quarter = len(values) // 4
    if quarter == 0:
        return [measure.median(values)] * 4
    return [measure.median(values[i * quarter : (i + 1) * quarter]) for i in range(4)]


def why_demonstration(options: argparse.Namespace, device: Device, lengths: Lengths, window_s: float) -> list[str]:
    """Why this figure makes no performance claim; empty if it may."""
    checks = (
        (options.demonstration, "asked for"),
        (device.kind == "cpu", "runs on CPUs"),
        (lengths.warmup_steps < WARMUP[0] or lengths.warmup_s < WARMUP[1], "short warm-up"),
        (lengths.groups * lengths.group_steps < WINDOW[0] or window_s < WINDOW[1], "short window"),
    )
    return [why for holds, why in checks if holds]


def versions() -> dict[str, Any]:
    """Of what computed; ``None`` where there is no such part."""
    return {
        "framework": "horovod",
        "framework_version": torch.__version__,
        "horovod_version": horovod.__version__,
        "python_version": platform.python_version(),
        "cuda_version": torch.version.cuda,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "nccl_built": bool(hvd.nccl_built()),
        "gloo_enabled": bool(hvd.gloo_enabled()),
        "mpi_enabled": bool(hvd.mpi_enabled()),
    }


def report_of(device: Device, facts: RankFacts, timed: Timed, lengths: Lengths, batch_size: int) -> dict[str, Any]:
    """This rank's report, but for what only the launcher knows."""
    groups_s = [end - start for start, end in zip([0.0, *timed.ends_s], timed.ends_s)]
    peak = (
        torch.cuda.max_memory_allocated()
        if device.kind == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {
        **versions(),
        "host": facts.host,
        "world_rank": facts.rank,
        "world_size": facts.size,
        "world_local_rank": hvd.local_rank(),
        "device_kind": device.kind,
        "device_name": device.name,
        "device_uuid": device.identity if device.kind == "cuda" else None,
        "device_index": device.torch.index,
        "gradient_checksum": facts.gradients,
        "parameter_checksum": facts.parameters,
        "parameters_moved": facts.moved,
        "onehot_ok": facts.onehot,
        "loss_final": timed.loss,
        "loss_finite": facts.finite,
        "steps": lengths.groups * lengths.group_steps,
        "group_steps": lengths.group_steps,
        "batch_size": batch_size,
        "ends_s": timed.ends_s,
        "elapsed_s": timed.ends_s[-1],
        "group_p50_s": measure.median(groups_s),
        "group_p95_s": measure.quantile(groups_s, 0.95),
        "group_max_s": max(groups_s),
        "compute_p50_s": measure.median(timed.compute_s),
        "compute_p95_s": measure.quantile(timed.compute_s, 0.95),
        "compute_quarters_p50_s": quarters(timed.compute_s),
        "peak_memory_bytes": peak,
    }


def result_of(
    options: argparse.Namespace, device: Device, lengths: Lengths, proof: Proof, gathered: list[dict[str, Any]]
) -> dict[str, Any]:
    """Rank 0's result of the run: a figure only if the proof holds."""
    figure = measure.throughput(
        [measure.RankWindow(options.batch_size, lengths.group_steps, each["ends_s"]) for each in gathered]
    )
    window_images = options.batch_size * len(gathered) * lengths.group_steps  # of all ranks, in a group
    within = figure.precision if proof.holds else None
    slow = measure.stragglers([each["compute_p50_s"] for each in gathered], [each["quarters_s"] for each in gathered])
    reasons = why_demonstration(options, device, lengths, figure.window_s)
    return {
        **versions(),
        "recipe": "horovod-pytorch",
        "size": len(gathered),
        "images_per_s": figure.images_per_s if proof.holds else None,
        "precision_low_images_per_s": window_images / within.high_s if within and within.high_s > 0 else None,
        "precision_high_images_per_s": window_images / within.low_s if within and within.low_s > 0 else None,
        "precision_batches": within.batches if within else 0,
        "precision_autocorrelation": within.autocorrelation if within else None,
        "window_s": figure.window_s,
        "steps": figure.steps,
        "group_steps": lengths.group_steps,
        "warmup_steps": lengths.warmup_steps,
        "warmup_s": lengths.warmup_s,
        "truncated_steps": figure.truncated_groups * lengths.group_steps,
        "truncated_s": figure.truncated_s,
        "trend": figure.trend,
        "steady": figure.steady,
        "stragglers": slow,
        "compute_p50_s": measure.median([each["compute_p50_s"] for each in gathered]),
        "step_p50_s": measure.median([each["group_p50_s"] for each in gathered]) / lengths.group_steps,
        "demonstration": bool(reasons),
        "demonstration_reasons": reasons,
        "proven": proof.holds,
        "proof_reasons": list(proof.reasons),
        **{f"proof_{name}": value for name, value in asdict(proof).items() if name != "reasons"},
        "device_kind": device.kind,
        "device_name": device.name,
        "model": options.model,
        "batch_size": options.batch_size,
        "image_px": options.image_size,
        "precision": options.precision,
        "channels_last": options.channels_last,
        "compile": options.compile,
        "fp16_allreduce": options.fp16_allreduce,
        "hooks_registered": gathered[0]["hooks"],
        "seed": options.seed,
    }


def say(result: dict[str, Any]) -> None:
    """A short summary for people."""
    print(
        f"{result['model']}, {result['batch_size']} images of {result['image_px']} px a rank, {result['size']} ranks, "
        f"{result['precision']}, {result['device_name']} ({result['device_kind']})"
    )
    if not result["proven"]:
        print("NOT PROVEN, so no throughput: " + "; ".join(result["proof_reasons"]))
        return
    claim = " (demonstration, no performance claim)" if result["demonstration"] else ""
    print(f"throughput: {result['images_per_s']:.1f} images/s{claim}")
    if result["precision_low_images_per_s"] and result["precision_high_images_per_s"]:
        low, high = result["precision_low_images_per_s"], result["precision_high_images_per_s"]
        print(f"precision of this run: {low:.1f} to {high:.1f} images/s")
    print(
        f"window: {result['window_s']:.1f} s, {result['steps']} steps after {result['warmup_steps']} of warm-up"
        f" and {result['truncated_steps']} truncated; steady: "
        + {True: "yes", False: "NO", None: "too short to tell"}[result["steady"]]
    )
    print(f"step {result['step_p50_s'] * 1000:.1f} ms, of which own computing {result['compute_p50_s'] * 1000:.1f} ms")
    if result["stragglers"]:
        print(f"slow ranks: {', '.join(map(str, result['stragglers']))}")


def main() -> int:
    """Exit 0 when it ran to its end; whether its figure is proven stands in the result."""
    options = options_of(sys.argv[1:], MODELS, __doc__)
    hvd.init()
    device = device_of(options.device)
    if device.kind == "cpu":
        sleep_while_waiting()
    training = Training(options, device)
    first = training.parameters_checksum()
    lengths = warm_up(training, device, options)
    timed = time_window(training, device, lengths)
    last = training.parameters_checksum()
    facts = RankFacts(
        rank=hvd.rank(),
        size=hvd.size(),
        host=os.environ.get("RUNNER_HOST") or os.uname().nodename,
        device=device.identity,
        gradients=training.local_gradients,
        parameters=last,
        moved=first != last,
        onehot=onehot_holds(),
        finite=math.isfinite(timed.loss),
    )
    report = report_of(device, facts, timed, lengths, options.batch_size)
    run_dir = os.environ.get("RUNNER_RUN_DIR")
    # The launcher's rank: a Horovod that fell back to size 1 calls every process rank 0.
    rank = int(os.environ.get("RUNNER_RANK") or hvd.rank())
    if run_dir:
        records.write(records.rank_record(run_dir, rank, "report"), "report", {"rank": rank, **report})
    gathered = gather(
        {
            "facts": asdict(facts),
            "ends_s": timed.ends_s,
            "compute_p50_s": report["compute_p50_s"],
            "quarters_s": report["compute_quarters_p50_s"],
            "group_p50_s": report["group_p50_s"],
            "hooks": training.hooks,
        },
        "runner.facts",
    )
    if rank == 0:
        expected = int(os.environ.get("RUNNER_WORLD") or hvd.size())
        proof = judge([RankFacts(**each["facts"]) for each in gathered], expected)
        result = result_of(options, device, lengths, proof, gathered)
        if run_dir:
            records.write(records.result_path(run_dir), "result", result)
        say(result)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
