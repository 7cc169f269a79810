"""What the meter costs a small convolutional network on one processor: ``cost.py WIDTH SECONDS``.

Three networks that are alike train in short blocks, in turns and back (plain, metered, control, control, metered,
plain): one with the meter and its hooks, two without. Prints, as one line of JSON, the steps of the window and the
seconds of each arm's steps in each round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import runner_meter
import torch
from torch import nn

BLOCK = 5  # steps
WARMUP = 4  # rounds


def trained(width: int) -> tuple[nn.Module, Any, Callable[[], None]]:
    """A network, its optimizer, and one step of it."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * width * 14 * 14, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return net, optimizer, step


def main(width: int, seconds: float) -> None:
    torch.set_num_threads(1)
    _net, _optimizer, plain = trained(width)
    _net, _optimizer, control = trained(width)
    net, optimizer, step = trained(width)

    def block(one: Callable[[], None]) -> float:
        began_s = time.perf_counter()
        for _ in range(BLOCK):
            one()
        return (time.perf_counter() - began_s) / BLOCK

    for _ in range(WARMUP):
        first_s = min(block(plain), block(control), block(step))
    rounds = max(round(seconds / (6 * BLOCK * first_s)), 30)
    meter = runner_meter.start(batch_size=16, model=net, optimizer=optimizer, steps=2 * rounds * BLOCK)

    def metered() -> None:
        step()
        meter.step()

    for _ in range(WARMUP):
        block(metered)
    seconds_of_steps: dict[str, list[float]] = {"plain": [], "metered": [], "control": []}
    turns = (("plain", plain), ("metered", metered), ("control", control))
    for _ in range(rounds):
        taken = dict.fromkeys(seconds_of_steps, 0.0)
        for name, one in (*turns, *reversed(turns)):
            taken[name] += block(one) / 2
        for name, step_s in taken.items():
            seconds_of_steps[name].append(step_s)
    while meter.active:
        metered()
    print(json.dumps(seconds_of_steps))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
