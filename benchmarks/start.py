"""From an image to the first line of a program in it, for each way of starting: ``make bench-start``.

Nodes of the box start one container each, all at once. For every way: wall seconds until the last node's first line,
and for each node the CPU seconds of everything that ran there and the bytes that were read from the shared image.
The box's nodes share two things that real nodes have each for themselves: processors, so wall seconds grow with
nodes x CPU seconds, and the page cache, so bytes are counted where they are asked for and not at a disk.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from runner import box
from runner.images.store import store

WAYS = {
    "mounted": "`ch-run IMAGE.sqsh`: mounted from where it lies",
    "staged": "copied to the node (`--stage`), then mounted",
    "unpacked": "unpacked on the node (`unsquashfs`), then run from the directory",
}
_NODE = Path(__file__).with_name("start_node.py")
_LIMIT_S = 280


@dataclass(frozen=True)
class Start:
    """One start on all nodes.

    Attributes:
        wall_s: until the last node's first line. cpu_s: of one node, the mean. read_bytes: of the shared image by one
            node, the mean.
    """

    wall_s: float
    cpu_s: float
    read_bytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="gpu-runner/horovod-pytorch:standin", help="reference or file")
    parser.add_argument("--nodes", default="2,8,16", help="numbers of nodes, with commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways, with commas")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way, in turns; medians are printed")
    parser.add_argument("--program", default="", help="Python that comes before the first line, such as 'import torch'")
    asked = parser.parse_args()
    found = store.lookup(asked.image)
    if found is None:
        sys.exit(f"no {asked.image} in the store: make quickstart")
    print(f"\nImage: {found.path.stat().st_size / 1e6:.0f} MB. Program: Python, {asked.program or 'nothing'}.\n")
    print("| nodes | way | wall s | CPU s a node | MB read from the image a node |\n|---|---|---|---|---|")
    for nodes in map(int, asked.nodes.split(",")):
        for way, starts in _measured(nodes, asked.ways.split(","), found.path, asked.program, asked.rounds).items():
            wall_s = statistics.median(start.wall_s for start in starts)
            cpu_s = statistics.median(start.cpu_s for start in starts)
            read_mb = statistics.median(start.read_bytes for start in starts) / 1e6
            print(f"| {nodes} | {way} | {wall_s:.1f} | {cpu_s:.2f} | {read_mb:.1f} |", flush=True)


def _measured(nodes: int, ways: list[str], image: Path, program: str, rounds: int) -> dict[str, list[Start]]:
    name = f"bench-{os.getpid()}"
    starts: dict[str, list[Start]] = {way: [] for way in ways}
    try:
        here = box.up(box.BoxSpec(name=name, nodes=nodes))
        for _ in range(rounds):
            for way in ways:
                starts[way].append(_started(here, way, image, program))
    finally:
        box.down(name)
    return starts


def _started(here: box.Box, way: str, image: Path, program: str) -> Start:
    nodes = here.spec.nodes
    with tempfile.TemporaryDirectory(prefix="bench-start-") as out:
        words = [str(here.bin_dir / "srun"), f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        began = time.time()
        subprocess.run([*words, "python3", _NODE, way, image, out, program], check=True, timeout=_LIMIT_S)
        seen = [json.loads(path.read_text()) for path in Path(out).glob("*.json")]
    assert len(seen) == nodes, f"{len(seen)} of {nodes} nodes have reported their start"
    return Start(
        wall_s=max(node["first_line_s"] for node in seen) - began,
        cpu_s=statistics.fmean(node["cpu_s"] for node in seen),
        read_bytes=statistics.fmean(node["image_bytes"] for node in seen),
    )


if __name__ == "__main__":
    main()
