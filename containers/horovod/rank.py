"""One of the processes of a proof: ``rank.py --framework pytorch``. Prints what it saw and computed as one JSON line.

It reduces vectors whose sums are exact, then trains one step on data of its own through Horovod's optimizer (with
TensorFlow: the Keras that the image is set to), because a Horovod that reduces rightly can still train
unsynchronised in silence: Keras 3 does. The framework and Horovod only; Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from frameworks import FRAMEWORKS


def torch_sums(hvd: Any, rank: int, size: int) -> list[float]:
    """Least and greatest of the sum of a large tensor of 10**rank, and of that of one-hot vectors: exact in fp32."""
    import torch

    large = hvd.allreduce(torch.full((1 << 20,), 10.0**rank), op=hvd.Sum, name="large")
    hot = torch.zeros(size)
    hot[rank] = 1.0
    ones = hvd.allreduce(hot, op=hvd.Sum, name="one_hot")
    return [float(large.min()), float(large.max()), float(ones.min()), float(ones.max())]


def torch_step(hvd: Any, rank: int) -> tuple[bytes, bytes]:
    """Weights before and after a step of DistributedOptimizer."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    model(torch.full((3, 4), float(rank + 1))).square().mean().backward()
    optimizer.step()
    return before, b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def tensorflow_sums(hvd: Any, rank: int, size: int) -> list[float]:
    """As torch_sums; through a session where TensorFlow is of the first line."""
    import tensorflow as tf

    large = hvd.allreduce(tf.fill([1 << 20], float(10**rank)), op=hvd.Sum, name="large")
    ones = hvd.allreduce(tf.one_hot(rank, size), op=hvd.Sum, name="one_hot")
    wanted = [tf.reduce_min(large), tf.reduce_max(large), tf.reduce_min(ones), tf.reduce_max(ones)]
    if tf.executing_eagerly():
        return [float(value) for value in wanted]
    with tf.compat.v1.Session() as session:
        return [float(value) for value in session.run(wanted)]


def tensorflow_step(hvd: Any, rank: int) -> tuple[bytes, bytes]:
    """Weights before and after a step, by the way that the Keras in this image allows (facts: Truth of results)."""
    import tensorflow as tf

    if not tf.executing_eagerly():
        return _graph_step(tf, hvd, rank)
    keras = tf.keras
    keras.utils.set_random_seed(1 + rank)  # unlike weights: the broadcast must make them equal
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    data = tf.fill([3, 4], float(rank + 1))
    three = not isinstance(model.variables[0], tf.Variable)  # Keras 3 wraps TensorFlow's own
    variables = [variable.value for variable in model.variables] if three else model.variables
    hvd.broadcast_variables(variables, root_rank=0)
    before = _bytes(variables)
    optimizer = keras.optimizers.SGD(0.1)
    if three:
        trained = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(data)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, trained)
        pairs = zip(gradients, model.trainable_variables)
        optimizer.apply_gradients(pairs)
    else:
        keras_hvd = importlib.import_module("horovod.tensorflow.keras")
        model.compile(keras_hvd.DistributedOptimizer(optimizer), loss="mse", run_eagerly=False)
        model.fit(data, tf.zeros([3, 2]), epochs=1, steps_per_epoch=1, batch_size=3, verbose=0)
    return before, _bytes(variables)


def _graph_step(tf: Any, hvd: Any, rank: int) -> tuple[bytes, bytes]:
    v1 = tf.compat.v1
    weights = v1.get_variable("weights", [4, 2], initializer=v1.random_normal_initializer(seed=1 + rank))
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.fill([3, 4], float(rank + 1)), weights)))
    train = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        before = session.run(weights).tobytes()
        session.run(train)
        return before, session.run(weights).tobytes()


def _bytes(variables: Any) -> bytes:
    return b"".join(variable.numpy().tobytes() for variable in variables)


PROGRAMS = {"pytorch": (torch_sums, torch_step), "tensorflow": (tensorflow_sums, tensorflow_step)}


# Operations in Horovod's own words, and its functions that say whether they are compiled in.
OPERATIONS = (("NCCL", "nccl"), ("DDL", "ddl"), ("CCL", "ccl"), ("MPI", "mpi"), ("Gloo", "gloo"))


def built(hvd: Any) -> dict[str, int]:
    """What Horovod's library says it was compiled with: operation -> 0 or 1, for NCCL its version (22907 for 2.29.7).

    An operation that this Horovod knows nothing of is left out.
    """
    asked = {name: getattr(hvd, function + "_built", None) for name, function in OPERATIONS}
    return {name: int(ask()) for name, ask in asked.items() if ask is not None}


def keras_version() -> str:
    """Version of the Keras that ``tf.keras`` is; empty without TensorFlow in this process."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return ""
    package = tf.keras.Model.__module__.split(".")[0]
    # Part of TensorFlow itself before 2.6, of whose package the version would be TensorFlow's.
    return str((tf.keras if package.startswith("tensorflow") else sys.modules[package]).__version__)


def mapped_nccl(maps: str) -> list[str]:
    """Files of NCCL that a process has mapped, out of the text of /proc/self/maps."""
    names = {line.split(None, 5)[5] for line in maps.splitlines() if len(line.split(None, 5)) == 6}
    return sorted(name for name in names if Path(name).name.startswith("libnccl.so"))


def main() -> None:
    parser = argparse.ArgumentParser(description="One process of the proof.")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    framework = FRAMEWORKS[parser.parse_args().framework]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    hvd = importlib.import_module(framework.horovod_module)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    sums, step = PROGRAMS[framework.name]
    total = sums(hvd, rank, size)
    before, after = step(hvd, rank)
    said = {
        "proof": 1, "rank": rank, "size": size, "local_size": hvd.local_size(), "sum": total, "moved": before != after,
        "weights": hashlib.sha256(after).hexdigest()[:16], "keras": keras_version(), "built": built(hvd),
        "nccl_files": mapped_nccl(Path("/proc/self/maps").read_text()),
    }  # fmt: skip
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    hvd.shutdown()


if __name__ == "__main__":
    main()
