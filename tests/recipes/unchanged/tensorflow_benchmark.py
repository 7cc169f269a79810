"""A synthetic benchmark as Horovod's users write it for TensorFlow 2: a tape, and an optimizer, in a tf.function.

Imports nothing of this project, reads no variable of it, and leaves no record. The model is one of the ``MODELS`` of a
models.py that lies beside it.
"""

import argparse
import timeit

import horovod.tensorflow as hvd
import tensorflow as tf
from models import CLASSES, MODELS, Builder

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="tiny")
parser.add_argument("--image-size", type=int, default=32)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--momentum", type=float, default=0.0)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--num-warmup-batches", type=int, default=0)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=10)
args = parser.parse_args()

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
tf.config.threading.set_intra_op_parallelism_threads(args.threads)
tf.config.threading.set_inter_op_parallelism_threads(args.threads)
tf.random.set_seed(1234 + hvd.rank())

model = Builder(tf.keras).model(args.image_size, MODELS[args.model])
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size(), momentum=args.momentum)
data = tf.random.normal([args.batch_size, args.image_size, args.image_size, 3])
target = tf.random.uniform([args.batch_size], maxval=CLASSES, dtype=tf.int64)


@tf.function
def train():
    with tf.GradientTape() as tape:
        logits = model(data, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=logits)
        loss = tf.reduce_mean(losses)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
    return loss


def step():
    train()


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


log(f"Number of ranks: {hvd.size()}, of this node: {hvd.local_size()}")
hvd.broadcast_variables(model.variables, root_rank=0)
timeit.timeit(step, number=args.num_warmup_batches)
total = 0.0
for number in range(args.num_iters):
    seconds = timeit.timeit(step, number=args.num_batches_per_iter)
    total += seconds
    log(f"Iter #{number}: {args.num_batches_per_iter * args.batch_size / seconds:.1f} img/sec per rank")
log(f"All: {args.num_iters * args.num_batches_per_iter} batches in {total:.6f} s")

weights = tf.concat([tf.reshape(each, [-1]) for each in model.trainable_variables], 0)
everyones = hvd.allgather(tf.reshape(tf.reduce_sum(weights), [1]))
log(f"Same weights everywhere: {bool(tf.reduce_all(everyones == everyones[0]))}")
