"""What the meter costs a small convolutional network on one processor: blocks with and without it, in turns.

Prints milliseconds of a step without the meter, and the share that it adds: the median over the rounds, with its 95 %
interval by order statistics.
"""

from __future__ import annotations

import math
import sys
import time
from statistics import median

import runner_meter
import torch
from torch import nn

BLOCK = 10


def main(rounds: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 14 * 14, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    meter = runner_meter.start(batch_size=16, model=net, optimizer=optimizer, steps=2 * rounds * BLOCK - 100)

    def block(measured: bool) -> float:
        began_s = time.perf_counter()
        for _ in range(BLOCK):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            if measured:
                meter.step()
        return (time.perf_counter() - began_s) / BLOCK

    for _ in range(10):
        block(True)
    without_s, shares = [], []
    for _ in range(rounds):
        first, second, third, fourth = (block(measured) for measured in (False, True, True, False))
        without_s += [first, fourth]
        shares.append((second + third) / (first + fourth) - 1.0)
    shares.sort()
    off = math.floor(rounds / 2 - 0.98 * math.sqrt(rounds))
    low, high = shares[max(off, 0)], shares[min(rounds - 1 - off, rounds - 1)]
    print(
        f"a step takes {1e3 * median(without_s):.2f} ms; with the meter {100 * median(shares):+.2f} % "
        f"(95 %: {100 * low:+.2f} to {100 * high:+.2f} %)"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
