"""Training by Keras' own fit with Horovod in its eight steps, on small images of digits. For Keras 2 (tf_keras).

Rank 0 prints each epoch's loss and writes history.json and checkpoint.npz into the run directory (else here). --resume
goes on after the epoch that a checkpoint holds, and ends as if it had never stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow.keras as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from gpu_runner_inside import digits, world_report  # noqa: E402
from horovod.tensorflow import allgather_object, broadcast_object, broadcast_variables  # noqa: E402


def main() -> int:
    options = options_of()
    began = time.monotonic()
    keras = keras_2()

    # 1. Horovod forms the world of all ranks.
    hvd.init()
    # 2. Each rank has a GPU of its own, by its number on this node.
    kind = choose_device(options.device)
    # 3. Each rank trains on its share of the data, drawn anew in each epoch (share()).
    found = data_of(options.data)
    images = np.array(found.images, np.float32).reshape(-1, digits.SIDE, digits.SIDE, 1)
    labels = np.array(found.labels, np.int64)
    steps = digits.TRAINING // hvd.size() // options.batch_size
    if steps == 0:
        sys.exit(
            f"{hvd.size()} ranks with batches of {options.batch_size} want {hvd.size() * options.batch_size} images, "
            f"there are {digits.TRAINING}: lower --batch-size (--set batch-size={digits.TRAINING // hvd.size()})"
        )
    keras.utils.set_random_seed(options.seed)
    model = net(keras)
    # 4. The learning rate grows with the number of ranks; WarmUp warms it up.
    # 5. Horovod's optimizer averages the gradients of all ranks before each step.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(options.learning_rate * hvd.size(), momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    optimizer.build(model.trainable_variables)
    history = resumed(options.resume, model, optimizer)
    # 6. All ranks start from rank 0's parameters and optimizer state, new or of the checkpoint.
    broadcast_variables(model.variables, root_rank=0)
    broadcast_variables(optimizer.variables, root_rank=0)

    first_rank = hvd.rank() == 0
    say = print if first_rank else lambda *_words, **_options: None
    count = len(labels) - digits.TRAINING
    say(f"{found.origin}: {digits.TRAINING} to train on, {count} to validate; {hvd.size()} ranks", flush=True)
    for epoch in range(len(history), options.epochs):
        mine = share(epoch, options)[: steps * options.batch_size]
        warm = warm_up(keras, optimizer, epoch, steps, options)
        ran = model.fit(images[mine], labels[mine], options.batch_size, shuffle=False, verbose=0, callbacks=[warm])
        # 8. What is printed is of all ranks, not of rank 0 alone.
        mean_loss = mean_of_ranks(ran.history["loss"][0], "training.loss")
        validated, accuracy = validate(model, images[digits.TRAINING :], labels[digits.TRAINING :])
        line = {"epoch": epoch + 1, "loss": mean_loss, "validation_loss": validated, "accuracy": accuracy}
        history.append({**line, "rate": float(optimizer.learning_rate.numpy())})
        say("epoch {epoch}: loss {loss:.4f}, validation {validation_loss:.4f}, {accuracy:.1%} right".format(**line))
        # 7. Rank 0 alone writes the checkpoint.
        if first_rank:
            save(options.checkpoint, model, optimizer, history)

    own = checksum(model)
    checksums = allgather_object(own, name="checksums")
    world = hvd.rank(), hvd.size(), hvd.local_rank()
    last = history[-1]["loss"] if history else math.nan
    world_report.leave(
        "horovod", world, kind, time.monotonic() - began, framework_version=tf.__version__,
        parameter_checksum=own, loss_final=last, loss_finite=math.isfinite(last),
    )  # fmt: skip
    hvd.shutdown()
    if len(set(checksums)) > 1:
        sys.exit(f"rank {world[0]}: the parameters differ between ranks: gradients were not averaged")
    say(f"parameters {own}, equal on all ranks; checkpoint: {options.checkpoint}")
    return 0


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="for one rank; N ranks train with N times it")
    parser.add_argument("--warmup-epochs", type=float, default=3.0, help="from one rank's rate to that of all")
    parser.add_argument("--checkpoint", help="file that rank 0 writes (default: checkpoint.npz in the run directory)")
    parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
    parser.add_argument("--data", choices=("auto", "digits", "drawn"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    if options.epochs < 1 or options.batch_size < 1:
        parser.error("--epochs and --batch-size are at least 1")
    options.checkpoint = options.checkpoint or str(Path(os.environ.get("RUNNER_RUN_DIR", ".")) / "checkpoint.npz")
    return options


def keras_2() -> Any:
    """tf.keras, which must not be Keras 3: with that, DistributedOptimizer and fit train unsynchronised in silence."""
    if getattr(tf.keras, "__version__", "2").startswith("3."):
        sys.exit(
            "this is Keras 3, with which Horovod's DistributedOptimizer averages nothing: set TF_USE_LEGACY_KERAS=1 "
            "(--env TF_USE_LEGACY_KERAS=1) and have tf_keras in the image, as our own images do"
        )
    return tf.keras


def choose_device(wanted: str) -> str:
    gpus = tf.config.list_physical_devices("GPU") if wanted != "cpu" else []
    if not gpus and wanted == "cuda":
        sys.exit(f"rank {hvd.rank()} sees no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})")
    if not gpus:
        tf.config.set_visible_devices([], "GPU")
        return "cpu"
    own = gpus[0 if len(gpus) == 1 else hvd.local_rank()]
    tf.config.set_visible_devices(own, "GPU")
    tf.config.experimental.set_memory_growth(own, True)
    return "cuda"


def data_of(name: str) -> digits.Digits:
    try:
        return digits.load(name)
    except ImportError as error:
        sys.exit(f"--data digits: {error}; --data drawn needs no scikit-learn")


def net(keras: Any) -> Any:
    """No BatchNorm and no dropout, so that N ranks train as one rank with N times the batch."""
    layers = keras.layers
    return keras.Sequential([
        layers.Input((digits.SIDE, digits.SIDE, 1)),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ])  # fmt: skip


def share(epoch: int, options: argparse.Namespace) -> Any:
    """This rank's images of an epoch: every N-th of an order that all ranks draw alike."""
    order = np.random.RandomState(options.seed + epoch).permutation(digits.TRAINING)
    return order[hvd.rank() :: hvd.size()]


def warm_up(keras: Any, optimizer: Any, epoch: int, steps: int, options: argparse.Namespace) -> Any:
    """Before each step, sets the learning rate: from one rank's, in a line, to N times it (Goyal et al. 2017)."""

    def begin(step: int, **_logs: Any) -> None:
        done = epoch + (step + 1) / steps
        warm = min(done / options.warmup_epochs, 1.0) if options.warmup_epochs > 0 else 1.0
        optimizer.learning_rate.assign(options.learning_rate * (1.0 + (hvd.size() - 1) * warm))

    return keras.callbacks.LambdaCallback(on_batch_begin=begin)


def mean_of_ranks(value: float, name: str) -> float:
    return float(hvd.allreduce(np.float64(value), name=name, op=hvd.Average))


def validate(model: Any, images: Any, labels: Any) -> tuple[float, float]:
    """Mean loss and share of right answers; each rank looks at its share, and sums are made of all."""
    mine = slice(hvd.rank(), None, hvd.size())
    answers = model(images[mine], training=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[mine], answers).numpy()
    right = np.argmax(answers.numpy(), 1) == labels[mine]
    sums = np.array([losses.sum(), right.sum(), len(losses)], np.float64)
    summed = hvd.allreduce(sums, name="validation", op=hvd.Sum)
    return float(summed[0] / summed[2]), float(summed[1] / summed[2])


def resumed(path: str | None, model: Any, optimizer: Any) -> list[dict[str, float]]:
    """Load a checkpoint on rank 0; every rank gets the history of the epochs that are done."""
    done: dict[str, Any] = {"history": [], "error": ""}
    if path and hvd.rank() == 0:
        try:
            with np.load(path, allow_pickle=False) as found:
                for place, variable in enumerate(model.variables):
                    variable.assign(found[f"model_{place}"])
                for place, variable in enumerate(optimizer.variables):
                    variable.assign(found[f"optimizer_{place}"])
                done["history"] = json.loads(str(found["history"]))
        except Exception as error:  # whatever is wrong with the file, all ranks end with the reason
            done["error"] = f"{type(error).__name__}: {str(error).partition('. ')[0]}"
    done = broadcast_object(done, root_rank=0, name="resumed")
    if done["error"]:
        sys.exit(f"cannot resume from {path}: {done['error']}; give a checkpoint.npz that this recipe wrote")
    if path and hvd.rank() == 0:
        print(f"resumed from {path}: {len(done['history'])} epochs are done", flush=True)
    return list(done["history"])


def save(path: str, model: Any, optimizer: Any, history: list[dict[str, float]]) -> None:
    """Checkpoint and history, each whole or not at all: a job may be killed at any moment."""
    arrays = {f"model_{place}": variable.numpy() for place, variable in enumerate(model.variables)}
    arrays.update({f"optimizer_{place}": variable.numpy() for place, variable in enumerate(optimizer.variables)})
    packed = io.BytesIO()
    np.savez(packed, history=json.dumps(history), **arrays)
    try:
        replace(Path(path), packed.getvalue())
        replace(Path(path).with_name("history.json"), json.dumps(history, indent=1).encode())
    except OSError as error:
        sys.exit(f"cannot write the checkpoint {path}: {error.strerror}; --checkpoint FILE writes it elsewhere")


def replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def checksum(model: Any) -> str:
    digest = hashlib.sha256()
    for variable in model.trainable_variables:
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
