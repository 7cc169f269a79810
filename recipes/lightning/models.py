"""The two classifiers: each a LightningModule with its network, its data, and what the meter counts of them."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from gpu_runner_inside import digits, sentences
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import lightning


class Classifier(lightning.LightningModule):
    """What both share: the loss, and metrics of all ranks.

    Attributes:
        rate: of one rank, where --learning-rate does not say.
        unit, units: what the meter counts, and how many of it are in a sample.
    """

    rate = 0.0
    unit, units = "samples", 1
    network: nn.Module

    def __init__(self, learning_rate: float | None, world: int) -> None:
        super().__init__()
        self.learning_rate = learning_rate or self.rate
        self.world = world

    def training_step(self, batch: tuple[Tensor, Tensor], _place: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _place: int) -> None:
        inputs, labels = batch
        scores = self.network(inputs)
        right = (scores.argmax(1) == labels).float().mean()
        # The mean over ranks, on every rank.
        values = {"validation_loss": nn.functional.cross_entropy(scores, labels), "accuracy": right}
        self.log_dict(values, sync_dist=True)

    def on_validation_end(self) -> None:
        if self.trainer.is_global_zero:
            found = self.trainer.callback_metrics
            shown = f"loss {float(found['validation_loss']):.4f}, {float(found['accuracy']):.1%} right"
            print(f"epoch {self.current_epoch + 1}, validation: {shown}", flush=True)


class ImageClassifier(Classifier):
    """Two convolutions and two layers, for images of 8 x 8."""

    rate = 0.02

    def __init__(self, learning_rate: float | None, world: int) -> None:
        super().__init__(learning_rate, world)
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * (digits.SIDE // 2) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD, whose rate grows with the number of ranks."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate * self.world, momentum=0.9)

    @staticmethod
    def data(source: str) -> tuple[TensorDataset, TensorDataset]:
        """For training, and for validation."""
        try:
            found = digits.load(source)
        except ImportError as error:
            sys.exit(f"--data digits: {error}; --data drawn needs no scikit-learn")
        images = torch.tensor(found.images).reshape(-1, 1, digits.SIDE, digits.SIDE)
        return _divided(images, torch.tensor(found.labels), digits.TRAINING)


class Encoder(nn.Module):
    """A small BERT: embedded words and places, transformer layers that look both ways, a score from the first token.

    Two layers of four heads and a width of 64 are 0.1 million parameters; BERT's base has 12, 12 and 768.
    """

    def __init__(self, words: int, length: int, classes: int, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, classes))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.norm(self.words(tokens) + self.places(places))
        return self.score(self.layers(embedded)[:, 0])


class TextClassifier(Classifier):
    """A small BERT, trained from scratch on reviews of 18 tokens."""

    rate = 0.001
    unit, units = "tokens", sentences.LENGTH
    _WARMUP_STEPS = 30

    def __init__(self, learning_rate: float | None, world: int) -> None:
        super().__init__(learning_rate, world)
        self.network = Encoder(len(sentences.VOCABULARY), sentences.LENGTH, len(sentences.CLASSES))

    def configure_optimizers(self) -> dict[str, Any]:
        """AdamW, whose rate grows with the root of the number of ranks, after a warm-up."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate * math.sqrt(self.world))
        rises = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self._WARMUP_STEPS))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rises, "interval": "step"}}

    @staticmethod
    def data(source: str) -> tuple[TensorDataset, TensorDataset]:
        """For training, and for validation."""
        if source == "digits":
            sys.exit("--data digits are images; --model text draws its sentences: leave --data out")
        found = sentences.drawn()
        return _divided(torch.tensor(found.tokens), torch.tensor(found.labels), sentences.TRAINING)


def _divided(inputs: Tensor, labels: Tensor, training: int) -> tuple[TensorDataset, TensorDataset]:
    return TensorDataset(inputs[:training], labels[:training]), TensorDataset(inputs[training:], labels[training:])


MODELS = {"image": ImageClassifier, "text": TextClassifier}
