"""The benchmark on TensorFlow with Horovod (gpu_runner_inside.benchmark), by one of the three ways that people train.

tape   a tf.function: gradients, an allreduce of each, apply; Keras 2 and Keras 3 (whose variables are taken explicitly)
fit    Keras' own step with Horovod's DistributedOptimizer; under Keras 3 that trains unsynchronised in silence, and
       the proof says so
graph  a graph and a session, the API of TensorFlow 1; wants Keras 2 (TF_USE_LEGACY_KERAS=1); TensorFlow 1 has no other
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402
import training  # noqa: E402
from gpu_runner_inside.benchmark import benchmark  # noqa: E402
from gpu_runner_inside.benchmark.options import options_of  # noqa: E402
from models import MODELS  # noqa: E402

WAYS = {"tape": training.Tape, "fit": training.Fit, "graph": training.Graph}


def own_options(parser: argparse.ArgumentParser) -> None:
    """What only this framework has."""
    parser.add_argument("--mode", choices=sorted(WAYS), default="tape", help="the way of training")
    parser.add_argument(
        "--arms",
        choices=("full", "coordination", "uncoupled", "uncoupled,full", "uncoupled,coordination,full"),
        default="full",
        help="that take turns, the main one last",
    )
    parser.set_defaults(channels_last=True)  # Keras knows no other layout on a processor


def main() -> int:
    options = options_of(sys.argv[1:], MODELS, __doc__, own_options)
    if options.compile and options.mode != "tape":
        sys.exit(f"--compile (XLA) goes with --mode tape, not {options.mode}: leave one out")
    if options.arms != "full" and options.mode != "tape":
        sys.exit(f"--arms {options.arms} goes with --mode tape, not {options.mode}: leave one out")
    if options.mode != "graph" and tf.__version__.startswith("1."):
        sys.exit(f"--mode {options.mode} wants TensorFlow 2, this is {tf.__version__}: use --mode graph")
    if not tf.executing_eagerly():
        tf.compat.v1.enable_eager_execution()  # TensorFlow 1: the benchmark's own collectives are eager
    hvd.init()
    way = WAYS[options.mode](options, training.device_of(options.device))
    code = benchmark.run("horovod-tensorflow", options, way)
    hvd.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
