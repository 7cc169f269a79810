"""Keras with Horovod: a config dict, numpy data cut by rank, verbose of rank 0, model in a function."""
import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import horovod.keras as hvd
import numpy as np
import tensorflow as tf
from tensorflow import keras

DEFAULTS = {"lr": 0.001, "batch_size": 128, "epochs": 24, "warmup": 5}


def pin_gpu():
    devices = tf.config.list_physical_devices("GPU")
    for d in devices:
        tf.config.experimental.set_memory_growth(d, True)
    if devices:
        tf.config.set_visible_devices([devices[hvd.local_rank()]], "GPU")


def load(cfg):
    (x, y), (xv, yv) = keras.datasets.cifar10.load_data()
    n = len(x) // hvd.size()
    lo = hvd.rank() * n
    return x[lo : lo + n] / 255.0, y[lo : lo + n], xv / 255.0, yv


def make_model(cfg):
    inp = keras.Input((32, 32, 3))
    h = keras.layers.Conv2D(64, 3, activation="relu")(inp)
    out = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(h))
    model = keras.Model(inp, out)
    scaled = cfg["lr"]
    opt = keras.optimizers.Adam(learning_rate=scaled)
    opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
    model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["acc"])
    return model


def callbacks(cfg):
    cbs = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=cfg["lr"], warmup_epochs=cfg["warmup"]),
        keras.callbacks.ReduceLROnPlateau(patience=10),
    ]
    if hvd.rank() == 0:
        cbs.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
        cbs.append(keras.callbacks.CSVLogger("log.csv"))
    return cbs


if __name__ == "__main__":
    hvd.init()
    pin_gpu()
    cfg = dict(DEFAULTS)
    if os.path.exists("cfg.json"):
        cfg.update(json.load(open("cfg.json")))
    x, y, xv, yv = load(cfg)
    np.random.seed(hvd.rank())
    model = make_model(cfg)
    history = model.fit(
        x, y, batch_size=cfg["batch_size"], epochs=cfg["epochs"], validation_data=(xv, yv),
        callbacks=callbacks(cfg), verbose=int(hvd.rank() == 0),
    )
    score = hvd.allreduce(model.evaluate(xv, yv, verbose=0)[0])
    if hvd.rank() == 0:
        print(score)
        json.dump({k: [float(i) for i in v] for k, v in history.history.items()}, open("h.json", "w"))
