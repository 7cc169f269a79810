"""Image classifiers, written out here because torchvision is not in every image.

ResNet-18, -34 and -50 follow He et al. 2015 with the stride in the 3x3 convolution (as torchvision and NVIDIA's
examples have it); VGG-16 follows Simonyan and Zisserman 2014, without dropout, so that ranks compute alike. ``tiny`` is
a ResNet of eight layers for demonstrations without a GPU.
"""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor, nn

CLASSES = 1000


class Basic(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3, 1)
        )
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1, 1),
        )
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """``depths``: blocks of each stage; ``width``: channels of the first stage, doubled at each next one."""

    def __init__(self, block: type[Basic] | type[Bottleneck], depths: tuple[int, ...], width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inputs = width
        for stage, depth in enumerate(depths):
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                layers.append(block(inputs, width << stage, stride))
                inputs = (width << stage) * block.expansion
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class Vgg16(nn.Module):
    """The heaviest gradients for its computing: 138 million parameters, and so a test of the network."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(depth):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: ResNet(Bottleneck, (3, 4, 6, 3), 64),
    "resnet34": lambda: ResNet(Basic, (3, 4, 6, 3), 64),
    "resnet18": lambda: ResNet(Basic, (2, 2, 2, 2), 64),
    "vgg16": Vgg16,
    "tiny": lambda: ResNet(Basic, (1, 1, 1), 8),
}


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(outputs)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*_convolution(inputs, outputs, 1, stride))
