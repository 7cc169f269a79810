"""The smallest Horovod program: hello from each rank, then one forward and one backward pass, all sums checked.

Each rank has data of its own. The step must go along the mean of all ranks' gradients, and leave the same parameters on
all ranks. Exits with 1 and a sentence if one of these does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402
from gpu_runner_inside import world_report  # noqa: E402

RATE = 0.1
TOLERANCE = 1e-5  # of a parameter, float32: Horovod adds in another order than this program


def main() -> int:
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = device_of(options.device)
    print(f"hello from rank {rank} of {size}, local rank {hvd.local_rank()} on {host()}, {name_of(device)}", flush=True)

    began = time.monotonic()
    faults = [*wrong_sum(device), *wrong_training(device)]
    world = rank, size, hvd.local_rank()
    world_report.leave("horovod", world, device.type, time.monotonic() - began, framework_version=torch.__version__)
    if not faults and rank == 0:
        print(
            f"world of {size}: the sum over ranks is {size * (size - 1) // 2}, the step went along the mean of all "
            "ranks' gradients, the parameters are equal",
            flush=True,
        )
    for fault in faults:
        print(f"rank {rank}: {fault}", file=sys.stderr, flush=True)
    hvd.shutdown()
    return 1 if faults else 0


def device_of(wanted: str) -> torch.device:
    """The GPU number local rank, or the only one that this rank sees; the processor where there is none."""
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if count == 0 and wanted == "cuda":
        sys.exit(f"rank {hvd.rank()} sees no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})")
    if count == 0:
        return torch.device("cpu")
    index = 0 if count == 1 else hvd.local_rank()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def host() -> str:
    return os.environ.get("RUNNER_HOST") or os.uname().nodename


def name_of(device: torch.device) -> str:
    return f"GPU {device.index} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "processor"


def wrong_sum(device: torch.device) -> list[str]:
    """What is wrong with the sum of all ranks' numbers."""
    total = hvd.allreduce(torch.tensor([float(hvd.rank())], device=device), op=hvd.Sum, name="ranks").item()
    expected = hvd.size() * (hvd.size() - 1) / 2
    return [] if total == expected else [f"the sum over ranks is {total:g}, not {expected:g}"]


def wrong_training(device: torch.device) -> list[str]:
    """What is wrong after a forward and a backward pass and a step of the optimizer."""
    torch.manual_seed(hvd.rank())  # each rank starts with other weights, and has other data
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).to(device)
    images, labels = torch.randn(16, 64, device=device), torch.randint(10, (16,), device=device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    # This rank's own gradients: nothing leaves it before the optimizer below has registered its hooks.
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    own = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    mean = hvd.allgather(own.unsqueeze(0), name="own").mean(0)
    model.zero_grad()

    expected = flat(model) - RATE * mean
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE), named_parameters=model.named_parameters()
    )
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()

    weights = flat(model)
    everyones = hvd.allgather(weights.unsqueeze(0), name="weights")
    far = (weights - expected).abs().max().item()
    faults = []
    if hvd.size() > 1 and torch.equal(own, mean):
        faults.append("all ranks had the same gradients, so nothing is shown")
    if not far <= TOLERANCE:
        faults.append(f"a parameter is {far:g} from a step along the mean of all ranks' gradients, above {TOLERANCE:g}")
    if not bool((everyones == everyones[0]).all()):
        faults.append("the parameters differ between ranks after the step")
    return faults


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


if __name__ == "__main__":
    sys.exit(main())
