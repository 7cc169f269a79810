"""A small image classifier trained with Lightning, which goes to several GPUs and nodes by itself.

Lightning wraps the model in DistributedDataParallel, gives each rank its part of the data, averages metrics and keeps
rank 0's output apart. What it cannot know is the world: ranks of a node and number of nodes, here from the variables
that torchrun would set. The meter's callback measures, and proves that the ranks trained together.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import runner_meter  # noqa: E402
import torch  # noqa: E402
from gpu_runner_inside import digits  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

try:
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    import lightning
except ImportError as error:
    sys.exit(
        f"{error}; fix: python -m runner build pytorch --requirement lightning==2.6.6, then submit --image with the "
        "name that this prints"
    )


class Classifier(lightning.LightningModule):
    """Two convolutions and two layers, for images of 8 x 8."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * (digits.SIDE // 2) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], _place: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], _place: int) -> None:
        images, labels = batch
        scores = self.network(images)
        right = (scores.argmax(1) == labels).float().mean()
        # The mean over ranks, on every rank.
        values = {"validation_loss": nn.functional.cross_entropy(scores, labels), "accuracy": right}
        self.log_dict(values, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)


def main() -> int:
    options = options_of()
    world, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world % here:
        sys.exit(
            f"{world} ranks cannot be {here} on each node, and Lightning wants as many on each; fix: ask for a number "
            "of GPUs that the nodes share evenly"
        )
    gpus = torch.cuda.device_count() if options.device != "cpu" else 0
    if options.device == "cuda" and gpus < here:
        sys.exit(f"this rank sees {gpus} GPUs of {here}: Lightning wants each rank to see all GPUs of its node")
    lightning.seed_everything(options.seed)
    training, validation = loaders(options)
    meter = runner_meter.lightning_callback(
        batch_size=options.batch_size, demonstration=options.demonstration or not gpus
    )
    trainer = lightning.Trainer(
        accelerator="gpu" if gpus else "cpu",
        devices=here,
        num_nodes=world // here,
        strategy="ddp" if world > 1 else "auto",
        plugins=[TorchElasticEnvironment()] if world > 1 else None,
        max_epochs=options.epochs,
        callbacks=[meter],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(options.learning_rate * world), training, validation)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    place = f"local rank {trainer.local_rank}, node {trainer.node_rank}"
    print(f"hello from rank {trainer.global_rank} of {trainer.world_size}, {place}")
    if trainer.is_global_zero:
        shown = f"loss {found['validation_loss']:.4f}, {found['accuracy']:.1%} right"
        print(f"Lightning {lightning.__version__}, {trainer.global_step} steps; validation: {shown}", flush=True)
    return 0


def loaders(options: argparse.Namespace) -> tuple[DataLoader, DataLoader]:
    """Lightning itself divides them among the ranks (DistributedSampler)."""
    try:
        found = digits.load(options.data)
    except ImportError as error:
        sys.exit(f"--data digits: {error}; --data drawn needs no scikit-learn")
    images = torch.tensor(found.images).reshape(-1, 1, digits.SIDE, digits.SIDE)
    labels = torch.tensor(found.labels)
    cut = digits.TRAINING
    training = TensorDataset(images[:cut], labels[:cut])
    validation = TensorDataset(images[cut:], labels[cut:])
    return (
        DataLoader(training, options.batch_size, shuffle=True, drop_last=True),
        DataLoader(validation, options.batch_size),
    )


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images of a rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.02, help="of one rank; times the number of ranks")
    parser.add_argument("--data", choices=("auto", "digits", "drawn"), default="auto")
    parser.add_argument("--demonstration", action="store_true", help="a short window that makes no performance claim")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.epochs < 1 or options.batch_size < 1:
        parser.error("--epochs and --batch-size are at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
