"""Bandwidth and latency of an allreduce by message size, as nccl-tests define them, by Horovod or torch.distributed.

All ranks leave a barrier and do --iterations allreduces of a message one after another, in --rounds rounds. The sum is
checked before and after; a wrong one ends the program with 1. Every rank writes its raw times to ranks/N.allreduce.json
(schema.json, ``allreduce``). The figures that rank 0 prints are made of them, and are not judged.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import torch  # noqa: E402
from gpu_runner_inside import bandwidth, records, world_report  # noqa: E402
from gpu_runner_inside.benchmark.torch_gather import gathered  # noqa: E402

DEFAULT_MOST = {"cuda": 256 << 20, "cpu": 4 << 20}  # bytes
PERIOD = 97  # of the values: at no power of two


class Horovod:
    """Allreduces through Horovod: a time holds its coordination, as a gradient's does."""

    name = "horovod"

    def __init__(self, device: str) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self.operation = "NCCL" if hvd.nccl_built() and device == "cuda" else "MPI" if hvd.mpi_enabled() else "Gloo"

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=f"allreduce.{tensor.numel()}")

    def barrier(self) -> None:
        self._hvd.barrier()

    def gather(self, value: Any) -> list[Any]:
        return list(self._hvd.allgather_object(value))

    def close(self) -> None:
        self._hvd.shutdown()


class Torch:
    """Allreduces through torch.distributed."""

    name = "torch"

    def __init__(self, device: str) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.operation = "NCCL" if device == "cuda" else "Gloo"
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._place = f"cuda:{index_of(self.local_rank)}" if device == "cuda" else "cpu"
        if device == "cuda":
            torch.cuda.set_device(index_of(self.local_rank))
        dist.init_process_group(self.operation.lower(), init_method="env://")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        self._dist.all_reduce(tensor)

    def barrier(self) -> None:
        self._dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        return gathered(value, torch.device(self._place))

    def close(self) -> None:
        self._dist.destroy_process_group()


def main() -> int:
    options = options_of()
    began = time.monotonic()
    kind = kind_of(options.device)
    world = Horovod(kind) if options.through == "horovod" else Torch(kind)
    device = torch.device("cuda", index_of(world.local_rank)) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    most = options.max_bytes or DEFAULT_MOST[kind]
    timed = [time_size(world, device, size, options) for size in bandwidth.sizes(options.min_bytes, most)]

    place = world.rank, world.size, world.local_rank
    world_report.leave(world.name, place, kind, time.monotonic() - began, framework_version=torch.__version__)
    run_dir = os.environ.get("RUNNER_RUN_DIR")
    if run_dir:
        rank = world_report.launcher_rank(os.environ, world.rank)
        fields = {"rank": rank, "through": world.name, "operation": world.operation, "size": world.size}
        times = [{**asdict(each), "rounds_s": list(each.rounds_s)} for each in timed]
        path = records.rank_record(run_dir, rank, "allreduce")
        records.write(path, "allreduce", {**fields, "device_kind": kind, "times": times})
    gathered = world.gather([asdict(each) for each in timed])
    if world.rank == 0:
        show(world, device, [bandwidth.row([bandwidth.Timed(**each) for each in of_all]) for of_all in zip(*gathered)])
    world.close()
    return 0


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--through", choices=("horovod", "torch"), default="horovod")
    parser.add_argument("--min-bytes", type=bandwidth.byte_count, default=8, help="of the first message (8, 64K, 1M)")
    parser.add_argument("--max-bytes", type=bandwidth.byte_count, help="of the last one (default 256M; on CPUs 4M)")
    parser.add_argument("--iterations", type=int, default=20, help="allreduces of a round")
    parser.add_argument("--rounds", type=int, default=5, help="timed; the figure is their median")
    parser.add_argument("--warmup", type=int, default=5, help="allreduces before the first round")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    if options.iterations < 1 or options.rounds < 1 or options.warmup < 0:
        parser.error("--iterations and --rounds are at least 1, --warmup at least 0")
    if options.max_bytes is not None and options.max_bytes < options.min_bytes:
        parser.error("--max-bytes is less than --min-bytes")
    return options


def kind_of(wanted: str) -> str:
    seen = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cuda" and not seen:
        sys.exit(f"this rank sees no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})")
    return "cuda" if seen else "cpu"


def index_of(local_rank: int) -> int:
    """Among the GPUs that this rank sees: its own number, or the only one."""
    return 0 if torch.cuda.device_count() == 1 else local_rank


def time_size(world: Any, device: torch.device, size: int, options: argparse.Namespace) -> bandwidth.Timed:
    check_sum(world, device, size)
    # Zeros stay zeros however often they are added up.
    message = torch.zeros(size // 4, device=device)
    for _ in range(options.warmup):
        world.sum_in_place(message)
    rounds_s = []
    for _ in range(options.rounds):
        wait_for(device)
        world.barrier()
        began = time.perf_counter()
        for _ in range(options.iterations):
            world.sum_in_place(message)
        wait_for(device)
        rounds_s.append(time.perf_counter() - began)
    if message.count_nonzero().item():
        wrong(world, size)
    check_sum(world, device, size)
    return bandwidth.Timed(size, options.iterations, tuple(rounds_s))


def check_sum(world: Any, device: torch.device, size: int) -> None:
    """Rank r gives (i mod 97) + r, so n ranks have the sum n (i mod 97) + n (n - 1) / 2: exact in float32."""
    pattern = (torch.arange(size // 4, device=device, dtype=torch.int32) % PERIOD).to(torch.float32)
    expected = pattern * world.size + world.size * (world.size - 1) / 2
    message = pattern.add_(world.rank)
    world.sum_in_place(message)
    if not torch.equal(message, expected):
        wrong(world, size)


def wrong(world: Any, size: int) -> None:
    sys.exit(f"rank {world.rank} of {world.size}: an allreduce of {size} bytes through {world.name} gave a wrong sum")


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(world: Any, device: torch.device, rows: list[bandwidth.Row]) -> None:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "processors"
    claim = "not judged" if device.type == "cuda" else "CPU: demonstration, no performance claim"
    print(f"allreduce of float32, {world.size} ranks, through {world.name} ({world.operation}), on {where}; {claim}")
    print(bandwidth.table(rows))
    best = max(rows, key=lambda each: each.bus_gb_s)
    print(f"latency: {rows[0].time_s * 1e6:.1f} us ({rows[0].bytes} bytes)")
    print(f"largest bus bandwidth: {best.bus_gb_s:.3f} GB/s ({best.bytes} bytes); every sum was right", flush=True)


if __name__ == "__main__":
    sys.exit(main())
