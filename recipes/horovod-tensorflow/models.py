"""Image classifiers by Keras' functional interface, the same networks as horovod-pytorch/models.py.

ResNet-18, -34 and -50 follow He et al. 2015 with the stride in the 3x3 convolution; VGG-16 follows Simonyan and
Zisserman 2014, without dropout, so that ranks compute alike. ``tiny`` is a ResNet of eight layers for demonstrations
without a GPU. Keras 2 and Keras 3 both take them.
"""

from __future__ import annotations

from typing import Any, Callable

CLASSES = 1000


class Builder:
    """The layers of one Keras (``tf.keras``, whichever that is)."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras
        self._layers = keras.layers

    def model(self, image_px: int, body: Callable[[Builder, Any], Any], tensor: Any = None) -> Any:
        """A classifier of square images in NHWC; its logits are in fp32 whatever the policy.

        ``tensor``: the images themselves, in a graph (Keras 2): there an input would have to be fed.
        """
        images = self._layers.Input((image_px, image_px, 3)) if tensor is None else self._layers.Input(tensor=tensor)
        features = body(self, images)
        return self._keras.Model(images, self._layers.Dense(CLASSES, dtype="float32")(features))

    def convolution(self, x: Any, width: int, kernel: int, stride: int) -> Any:
        """Convolution without bias, then batch normalisation as in training, which is all that is done here."""
        start = self._keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
        x = self._layers.Conv2D(width, kernel, stride, "same", use_bias=False, kernel_initializer=start)(x)
        return self._layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x, training=True)

    def relu(self, x: Any) -> Any:
        return self._layers.Activation("relu")(x)

    def basic(self, x: Any, width: int, stride: int) -> Any:
        """Two 3x3 convolutions around a shortcut."""
        body = self.convolution(self.relu(self.convolution(x, width, 3, stride)), width, 3, 1)
        return self._joined(body, x, width, stride)

    def bottleneck(self, x: Any, width: int, stride: int) -> Any:
        """1x1, 3x3 and 1x1 convolutions around a shortcut."""
        body = self.relu(self.convolution(x, width, 1, 1))
        body = self.convolution(self.relu(self.convolution(body, width, 3, stride)), width * 4, 1, 1)
        return self._joined(body, x, width * 4, stride)

    def resnet(self, x: Any, block: str, depths: tuple[int, ...], width: int) -> Any:
        """``depths``: blocks of each stage; ``width``: channels of the first stage, doubled at each next one."""
        make = {"basic": self.basic, "bottleneck": self.bottleneck}[block]
        x = self._layers.MaxPooling2D(3, 2, "same")(self.relu(self.convolution(x, width, 7, 2)))
        for stage, depth in enumerate(depths):
            for place in range(depth):
                x = make(x, width << stage, 2 if stage > 0 and place == 0 else 1)
        return self._layers.GlobalAveragePooling2D()(x)

    def vgg16(self, x: Any) -> Any:
        """The heaviest gradients for its computing: 138 million parameters, and so a test of the network."""
        for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(depth):
                x = self._layers.Conv2D(width, 3, 1, "same", activation="relu")(x)
            x = self._layers.MaxPooling2D(2, 2)(x)
        x = self._layers.Flatten()(x)
        for _ in range(2):
            x = self._layers.Dense(4096, activation="relu")(x)
        return x

    def _joined(self, body: Any, x: Any, outputs: int, stride: int) -> Any:
        shortcut = x if stride == 1 and x.shape[-1] == outputs else self.convolution(x, outputs, 1, stride)
        return self.relu(self._layers.Add()([body, shortcut]))


MODELS: dict[str, Callable[[Builder, Any], Any]] = {
    "resnet50": lambda make, x: make.resnet(x, "bottleneck", (3, 4, 6, 3), 64),
    "resnet34": lambda make, x: make.resnet(x, "basic", (3, 4, 6, 3), 64),
    "resnet18": lambda make, x: make.resnet(x, "basic", (2, 2, 2, 2), 64),
    "vgg16": lambda make, x: make.vgg16(x),
    "tiny": lambda make, x: make.resnet(x, "basic", (1, 1, 1), 8),
}
