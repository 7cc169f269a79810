# Keras MNIST, TF 2.x with Horovod.
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

import horovod.tensorflow.keras as hvd

hvd.init()

gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

BATCH = 128
EPOCHS = int(math.ceil(24.0 / hvd.size()))

(x, y), (xt, yt) = keras.datasets.mnist.load_data(path=f"mnist-{hvd.rank()}.npz")
x = x[..., None].astype("float32") / 255
xt = xt[..., None].astype("float32") / 255

train_ds = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .shard(num_shards=hvd.size(), index=hvd.rank())
    .shuffle(10000)
    .batch(BATCH)
    .prefetch(tf.data.AUTOTUNE)
)
test_ds = tf.data.Dataset.from_tensor_slices((xt, yt)).batch(BATCH)

model = keras.Sequential([
    layers.Input((28, 28, 1)),
    layers.Conv2D(32, 3, activation="relu"),
    layers.MaxPooling2D(),
    layers.Flatten(),
    layers.Dense(128, activation="relu"),
    layers.Dense(10, activation="softmax"),
])

scaled_lr = 0.001 * hvd.size()
opt = tf.keras.optimizers.legacy.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"],
              experimental_run_tf_function=False)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
    callbacks.append(keras.callbacks.TensorBoard("./logs"))

model.fit(train_ds, epochs=EPOCHS, callbacks=callbacks, verbose=1 if hvd.rank() == 0 else 0)
score = model.evaluate(test_ds, verbose=0)
if hvd.rank() == 0:
    print("test accuracy", score[1])
    model.save("final.h5")
