"""The ways of training with TensorFlow and Horovod: each is a ``benchmark.Training``."""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import sys
from typing import Any, Callable, Sequence

import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from gpu_runner_inside.benchmark import benchmark, proof
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from models import CLASSES, MODELS, Builder

LEARNING_RATE, MOMENTUM = 0.005, 0.9
FP16_SCALE = 1024.0  # of the loss, fixed: what a dynamic one settles near, and the same work
POLICIES = {"amp-bf16": "mixed_bfloat16", "amp-fp16": "mixed_float16"}


def device_of(wanted: str) -> benchmark.Device:
    """The GPU number local rank, or the only one seen, made this process's only one; the processor where none is.

    Raises:
        SystemExit: a GPU was asked for, and there is none for this rank.
    """
    gpus = tf.config.experimental.list_physical_devices("GPU") if wanted != "cpu" else []
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        tf.config.experimental.set_visible_devices([], "GPU")
        threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
        if threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        return benchmark.Device("cpu", platform.processor() or platform.machine(), f"cpu-{os.getpid()}", None)
    index = 0 if len(gpus) == 1 else hvd.local_rank()
    if index >= len(gpus):
        sys.exit(
            f"rank {hvd.rank()} wants GPU {index} of {os.uname().nodename}, but sees {len(gpus)} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        )
    tf.config.experimental.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    details = getattr(tf.config.experimental, "get_device_details", lambda _gpu: {})(gpus[index])
    identity = device_uuid(index) or f"index-{index}"
    return benchmark.Device("cuda", details.get("device_name", "GPU"), identity, index)


class World:
    """Horovod's world through TensorFlow (benchmark.World), eagerly."""

    def __init__(self) -> None:
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()

    def agreed(self, value: float, name: str) -> float:
        return float(hvd.broadcast(tf.constant([value], tf.float64), 0, name=f"runner.{name}").numpy()[0])

    def barrier(self) -> None:
        hvd.allreduce(tf.zeros([1]), op=hvd.Sum, name="runner.barrier").numpy()

    def onehot_holds(self) -> bool:
        summed = hvd.allreduce(tf.one_hot(self.rank, self.size), op=hvd.Sum, name="runner.onehot")
        return bool((summed.numpy() == 1.0).all())

    def gather(self, value: Any, name: str) -> list[Any]:
        raw = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = hvd.allgather(tf.constant([len(raw)], tf.int64), name=name + ".lengths").numpy()
        joined = hvd.allgather(tf.constant(raw), name=name).numpy().tobytes()
        ends = np.cumsum(lengths)
        return [json.loads(joined[end - length : end]) for end, length in zip(ends, lengths)]


class Way:
    """What the ways share: model, data, checksums. ``mode`` is the option's word for it."""

    mode = ""

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        self.world, self.device = World(), device
        self._options = options
        self._keras = tf.keras
        self._compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
        self._scale = FP16_SCALE if options.precision == "amp-fp16" else 1.0
        self._loss: Any = None
        self._spans_s: list[Any] = []
        self.gradients_device: str | None = None
        self.allreduce_bytes: int | None = None
        self.hooks = True  # allreduces stand in the step at every size
        switch = getattr(tf.config.experimental, "enable_tensor_float_32_execution", None)
        if switch is not None:  # from 2.4 on
            switch(options.precision != "fp32")
        if options.precision in POLICIES:
            mixed = getattr(self._keras, "mixed_precision", None)
            if mixed is None or not hasattr(mixed, "set_global_policy"):
                sys.exit(f"this TensorFlow ({tf.__version__}) has no {options.precision}: use --precision tf32 or fp32")
            mixed.set_global_policy(POLICIES[options.precision])
        own = np.random.RandomState(options.seed + self.world.rank)
        shape = (options.batch_size, options.image_size, options.image_size, 3)
        self._images = own.standard_normal(shape).astype(np.float32)
        self._labels = own.randint(0, CLASSES, options.batch_size).astype(np.int64)
        self.versions = versions(self._keras, self.mode)

    def loss(self) -> float:
        return float(np.asarray(self._loss)) / self._scale

    def synchronize(self) -> list[float]:
        if self._loss is not None:
            np.asarray(self._loss)  # the copy to the host waits for all before it
        spans, self._spans_s = self._spans_s, []
        return [float(np.asarray(span)) for span in spans]

    @property
    def instrumentation_s(self) -> None:
        """Not counted here."""
        return None

    def peak_memory_bytes(self) -> int:
        if self.device.kind == "cuda":
            ask = getattr(tf.config.experimental, "get_memory_info", None)  # from 2.5 on
            return 0 if ask is None else int(ask("GPU:0")["peak"])
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _model(self, images: Any = None) -> Any:
        tf.compat.v1.set_random_seed(self._options.seed)
        return Builder(self._keras).model(self._options.image_size, MODELS[self._options.model], images)

    def _local_loss(self, logits: Any, labels: Any) -> Any:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses) * self._scale

    def _reduced(self, gradients: Sequence[Any], arm: str = "full") -> list[Any]:
        """Each gradient's mean over the ranks: what DistributedGradientTape does, with names of our own.

        ``arm``: in coordination an allreduce of one number stands in the gradient's place, in uncoupled nothing.
        """
        if arm != "full":
            if arm == "coordination":
                gradients = [negotiated(gradient, place) for place, gradient in enumerate(gradients)]
            return [gradient / self._scale for gradient in gradients]
        return [
            hvd.allreduce(gradient, op=hvd.Average, name=f"gradient.{place}", compression=self._compression)
            / self._scale
            for place, gradient in enumerate(gradients)
        ]


class Tape(Way):
    """Gradients by a tape, an allreduce of each, and an optimizer, all in one tf.function."""

    mode = "tape"

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        super().__init__(options, device)
        self._net = self._model()
        self._batch = tf.constant(self._images), tf.constant(self._labels)
        self._optimizer = self._keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        hvd.broadcast_variables(plain(self._net.variables), root_rank=0)
        self._gradients: Callable[..., Any] = self._compute
        gradients = self._gradients(*self._batch)[1]
        self.gradients_device = kind_of(gradients)
        self.allreduce_bytes = sent_bytes(gradients, compressed=options.fp16_allreduce)
        self.local_gradients = proof.checksum(raw_bytes(gradients))
        if options.compile:
            # The allreduces stay outside: XLA has none of Horovod's (containers/horovod/fixes/xla-ops-left-out).
            self._gradients = tf.function(self._compute, **_jit())
        if hasattr(self._optimizer, "build"):
            self._optimizer.build(self._net.trainable_variables)  # a tf.function makes none after its first trace
        self._steps = {"full": tf.function(self._whole)}
        self._step = self._steps["full"]

    def use(self, arm: str) -> None:
        if arm not in self._steps:
            self._steps[arm] = tf.function(functools.partial(self._whole, arm=arm))
        self._step = self._steps[arm]
        if arm == "full":
            variables = self._optimizer.variables  # a method in Keras 2
            variables = variables() if callable(variables) else variables
            hvd.broadcast_variables(plain([*self._net.variables, *variables]), root_rank=0)

    def step(self) -> None:
        self._loss, span = self._step(*self._batch)
        self._spans_s.append(span)

    def parameters_checksum(self) -> str:
        return proof.checksum(raw_bytes(plain(self._net.trainable_variables)))

    def _compute(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = self._local_loss(self._net(images, training=True), labels)
        return loss, tape.gradient(loss, plain(self._net.trainable_variables))

    def _whole(self, images: Any, labels: Any, arm: str = "full") -> tuple[Any, Any]:
        began = tf.timestamp()
        with tf.control_dependencies([began]):
            loss, gradients = self._gradients(tf.identity(images), labels)
        span = since(began, gradients)
        pairs = zip(self._reduced(gradients, arm), self._net.trainable_variables)
        self._optimizer.apply_gradients(list(pairs))
        return loss, span


class Fit(Way):
    """Keras' own training step with Horovod's optimizer. Its own computing cannot be separated from its waiting."""

    mode = "fit"

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        super().__init__(options, device)
        import horovod.tensorflow.keras as hvd_keras

        self._scale = 1.0  # Keras scales by itself
        self._net = self._model()
        hvd.broadcast_variables(plain(self._net.variables), root_rank=0)
        batch = tf.constant(self._images), tf.constant(self._labels)  # on the device, once
        with tf.GradientTape() as tape:
            loss = self._local_loss(self._net(batch[0], training=True), batch[1])
        gradients = tape.gradient(loss, plain(self._net.trainable_variables))
        self.gradients_device = kind_of(gradients)
        self.allreduce_bytes = sent_bytes(gradients, compressed=options.fp16_allreduce)
        self.local_gradients = proof.checksum(raw_bytes(gradients))
        optimizer = hvd_keras.DistributedOptimizer(
            self._keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM), compression=self._compression
        )
        losses = self._keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._net.compile(optimizer, loss=losses)
        # What train_on_batch calls, which would take the batch from the host in each step.
        self._step = tf.function(lambda: self._net.train_step(batch))

    def step(self) -> None:
        self._net.reset_metrics()  # its loss is a mean since the last time
        self._loss = self._step()["loss"]

    def parameters_checksum(self) -> str:
        return proof.checksum(raw_bytes(plain(self._net.trainable_variables)))


class Graph(Way):
    """A graph and a session; the API of TensorFlow 1, through tf.compat.v1."""

    mode = "graph"

    def __init__(self, options: argparse.Namespace, device: benchmark.Device) -> None:
        super().__init__(options, device)
        if self.versions["keras_version"].startswith("3."):
            sys.exit("--mode graph wants Keras 2: set TF_USE_LEGACY_KERAS=1 (images of ours do, unless built --keras3)")
        v1 = tf.compat.v1
        graph = tf.Graph()
        with graph.as_default():
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                images = tf.identity(tf.constant(self._images))
            model = self._model(images)
            loss = self._local_loss(model.output, tf.constant(self._labels))
            self._weights = list(model.trainable_weights)
            gradients = v1.gradients(loss, self._weights)
            self.allreduce_bytes = sent_bytes(gradients, compressed=options.fp16_allreduce)
            optimizer = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)
            train = optimizer.apply_gradients(list(zip(self._reduced(gradients), self._weights)))
            with tf.control_dependencies([train, *model.updates]):
                done = tf.identity(loss)
            self._fetches = [done, since(began, gradients)]
            start = [v1.global_variables_initializer(), hvd.broadcast_global_variables(0)]
        gpu = v1.GPUOptions(allow_growth=True, visible_device_list="" if device.index is None else str(device.index))
        threads = int(os.environ.get("OMP_NUM_THREADS") or 0) if device.kind == "cpu" else 0
        self._session = v1.Session(
            graph=graph,
            config=v1.ConfigProto(
                gpu_options=gpu, intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
            ),
        )
        for operation in start:
            self._session.run(operation)
        self.local_gradients = proof.checksum(value.tobytes() for value in self._session.run(gradients))

    def step(self) -> None:
        self._loss, span = self._session.run(self._fetches)
        self._spans_s.append(span)

    def parameters_checksum(self) -> str:
        return proof.checksum(value.tobytes() for value in self._session.run(self._weights))


def negotiated(gradient: Any, place: int) -> Any:
    """The gradient as it is, when an allreduce of one number that begins with it has ended."""
    with tf.control_dependencies([gradient]):
        number = hvd.allreduce(tf.zeros([1]), op=hvd.Sum, name=f"coordination.{place}")
    with tf.control_dependencies([number]):
        return tf.identity(gradient)


def sent_bytes(gradients: Sequence[Any], *, compressed: bool) -> int | None:
    """What an allreduce of these gradients sends, after Horovod's fp16 compression; None where one is sparse."""
    if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        return None
    sizes = [min(2, each.dtype.size) if compressed else each.dtype.size for each in gradients]
    return sum(each.shape.num_elements() * size for each, size in zip(gradients, sizes))


def plain(variables: Sequence[Any]) -> list[Any]:
    """TensorFlow's own variables: Keras 3 wraps them, and Horovod can't take the wrappers."""
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]


def since(began: Any, gradients: Sequence[Any]) -> Any:
    """Seconds from ``began`` until the backward pass is done; its last gradient is the first layer's.

    A value of it goes to the host, as an operation on a GPU counts as done when it is queued.
    """
    with tf.device("/CPU:0"):
        last = tf.identity(tf.reshape(gradients[0], [-1])[0])
        with tf.control_dependencies([last]):
            return tf.timestamp() - began


def kind_of(tensors: Sequence[Any]) -> str:
    """The kind of device that holds these tensors: ``cuda`` or ``cpu`` (``/job:localhost/.../device:GPU:0``)."""
    return "cuda" if all(":GPU:" in tensor.device for tensor in tensors) else "cpu"


def raw_bytes(tensors: Sequence[Any]) -> list[bytes]:
    return [np.asarray(tensor).tobytes() for tensor in tensors]


def _jit() -> dict[str, bool]:
    """The word for XLA: experimental_compile before TensorFlow 2.5."""
    modern = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 5)
    return {"jit_compile" if modern else "experimental_compile": True}


def versions(keras: Any, mode: str) -> dict[str, Any]:
    """Of what computed; ``None`` where there is no such part."""
    package = keras.Model.__module__.split(".")[0]
    # Part of TensorFlow itself before 2.6, of whose package the version would be TensorFlow's.
    own = keras if package.startswith("tensorflow") else sys.modules[package]
    info = getattr(tf.sysconfig, "get_build_info", dict)()
    return {
        "framework": "horovod",
        "framework_version": tf.__version__,
        "keras_version": own.__version__,
        "training_mode": mode,
        "horovod_version": horovod.__version__,
        "python_version": platform.python_version(),
        "cuda_version": info.get("cuda_version") or None,
        "nccl_version": os.environ.get("NCCL_VERSION") if tf.test.is_built_with_cuda() else None,
        "nccl_built": bool(hvd.nccl_built()),
        "gloo_enabled": bool(hvd.gloo_enabled()),
        "mpi_enabled": bool(hvd.mpi_enabled()),
    }
