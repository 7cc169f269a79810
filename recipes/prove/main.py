"""One step of ``gpu-runner prove``: it looks, counts or times, and leaves what it saw; it judges nothing.

Writes ``ranks/N.proving.json`` (schema.json, ``proving``), whose facts ``runner/proving/facts.py`` reads.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

from gpu_runner_inside import records  # noqa: E402

# step -> options beyond --device and --short that it takes
STEPS = {
    "devices": (),
    "allreduce": (),
    "slices": (),
    "clocks": (),
    "roofline": ("model", "image_size"),
    "synthetic": ("model", "image_size", "batch_size"),
}


def main() -> int:
    """Exit 0 when the step came to its end; what its facts are worth is decided outside."""
    parser = argparse.ArgumentParser(description="One step of `gpu-runner prove`.", allow_abbrev=False)
    parser.add_argument("--step", choices=STEPS, required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--short", action="store_true", help="fewer repeats: a demonstration")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int, default=224, metavar="PX")
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    options = parser.parse_args()
    step = importlib.import_module(options.step)
    more = {name: getattr(options, name) for name in STEPS[options.step]}
    kind, facts = step.run(options.device, short=options.short, **more)
    rank, run_dir = int(os.environ.get("RUNNER_RANK", "0")), os.environ.get("RUNNER_RUN_DIR")
    if rank == 0:
        print(f"{options.step} on {kind}: {facts}", flush=True)
    if run_dir:
        fields = {"rank": rank, "step": options.step, "device_kind": kind, "facts": facts}
        records.write(records.rank_record(run_dir, rank, "proving"), "proving", fields)
    return 0


if __name__ == "__main__":
    sys.exit(main())
