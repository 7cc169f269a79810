"""A small classifier of images, or of text, trained with Lightning, which goes to several GPUs and nodes by itself.

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
from torch.utils.data import DataLoader  # noqa: E402

try:
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    import lightning
except ImportError as error:
    sys.exit(
        f"{error}; fix: gpu-runner build pytorch --requirement lightning==2.6.6, then submit --image with the "
        "name that this prints"
    )
from models import MODELS  # noqa: E402


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
    model = MODELS[options.model]
    training, validation = model.data(options.data)
    if options.batch_size * world > len(training):
        sys.exit(
            f"{world} ranks with {options.batch_size} samples each want more than the {len(training)} that there are; "
            "fix: a smaller --batch-size, or fewer ranks"
        )
    meter = runner_meter.lightning_callback(
        batch_size=options.batch_size * model.units, unit=model.unit, demonstration=options.demonstration or not gpus
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
    # Lightning itself divides both among the ranks (DistributedSampler).
    trainer.fit(
        model(options.learning_rate, world),
        DataLoader(training, options.batch_size, shuffle=True, drop_last=True),
        DataLoader(validation, options.batch_size),
    )
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    place = f"local rank {trainer.local_rank}, node {trainer.node_rank}"
    print(f"hello from rank {trainer.global_rank} of {trainer.world_size}, {place}")
    if trainer.is_global_zero:
        shown = f"loss {found['validation_loss']:.4f}, {found['accuracy']:.1%} right"
        print(f"Lightning {lightning.__version__}, {trainer.global_step} steps; validation: {shown}", flush=True)
    return 0


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", choices=sorted(MODELS), default="image")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a rank and step")
    parser.add_argument("--learning-rate", type=float, help="of one rank; more ranks raise it")
    parser.add_argument("--data", choices=("auto", "digits", "drawn"), default="auto", help="images")
    parser.add_argument("--demonstration", action="store_true", help="a short window that makes no performance claim")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.epochs < 1 or options.batch_size < 1:
        parser.error("--epochs and --batch-size are at least 1")
    if options.learning_rate is not None and options.learning_rate <= 0.0:
        parser.error("--learning-rate is above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
