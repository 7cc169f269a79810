import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import horovod.tensorflow.keras as hvd
import tensorflow as tf

EPOCHS = 24


def build():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, (3, 3), activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


hvd.init()
devices = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(devices[hvd.local_rank()], "GPU")
(x, y), (tx, ty) = tf.keras.datasets.mnist.load_data(path=f"mnist-{hvd.rank()}.npz")
x, y = x[hvd.rank() :: hvd.size(), ..., None] / 255.0, y[hvd.rank() :: hvd.size()]
model = build()
scaled = 0.001 * hvd.size()
opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(scaled))
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled, warmup_epochs=3, verbose=1),
]
if True:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
model.fit(x, y, batch_size=128, callbacks=callbacks, epochs=EPOCHS, verbose=1 if hvd.rank() == 0 else 0)
