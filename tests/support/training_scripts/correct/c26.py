"""Custom loop in TensorFlow 2 with Horovod's gradient tape, gradient accumulation left out."""
import argparse

import horovod.tensorflow as hvd
import tensorflow as tf


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--steps", type=int, default=10000)
    p.add_argument("--ckpt", default="ckpt/model")
    return p.parse_args()


def setup_gpus():
    devices = tf.config.experimental.list_physical_devices("GPU")
    for d in devices:
        tf.config.experimental.set_memory_growth(d, True)
    if devices:
        tf.config.experimental.set_visible_devices(devices[hvd.local_rank()], "GPU")


def build_model():
    return tf.keras.applications.ResNet50(weights=None, classes=100)


def input_fn(batch, rank, world):
    def parse_example(record):
        features = tf.io.parse_single_example(record, {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        })
        image = tf.io.decode_jpeg(features["image"], channels=3)
        image = tf.image.resize(image, (224, 224)) / 255.0
        return image, features["label"]

    files = tf.data.Dataset.list_files("/data/train-*.tfrecord", shuffle=False)
    files = files.shard(world, rank)
    ds = files.interleave(tf.data.TFRecordDataset, cycle_length=8)
    return ds.shuffle(1000).repeat().map(parse_example, tf.data.AUTOTUNE).batch(batch).prefetch(4)


def main():
    args = parse()
    hvd.init()
    setup_gpus()
    model = build_model()
    loss_fn = tf.losses.SparseCategoricalCrossentropy()
    schedule = tf.keras.optimizers.schedules.CosineDecay(args.lr * hvd.size(), args.steps // hvd.size())
    opt = tf.keras.optimizers.SGD(schedule, momentum=0.9)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            probs = model(images, training=True)
            loss_value = loss_fn(labels, probs)
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables(), root_rank=0)
        return loss_value

    data = input_fn(args.batch, hvd.rank(), hvd.size())
    for step, (images, labels) in enumerate(data.take(args.steps // hvd.size())):
        loss_value = training_step(images, labels, step == 0)
        if step % 50 == 0:
            mean_loss = hvd.allreduce(loss_value)
            if hvd.local_rank() == 0 and hvd.rank() == 0:
                print("Step #%d\tLoss: %.6f" % (step, mean_loss))
    if hvd.rank() == 0:
        checkpoint.save(args.ckpt)


if __name__ == "__main__":
    main()
