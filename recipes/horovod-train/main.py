"""Training with Horovod in its eight steps, on small images of digits.

Rank 0 prints each epoch's loss and writes history.json and checkpoint.pt into the run directory (else here). --resume
goes on after the epoch that a checkpoint holds, and ends as if it had never stopped (`submit --until-done`: by itself).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402
from gpu_runner_inside import digits, world_report  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402


def main() -> int:
    options = options_of()
    began = time.monotonic()

    # 1. Horovod forms the world of all ranks.
    hvd.init()
    # 2. Each rank has a GPU of its own, by its number on this node.
    device = device_of(options.device)
    # 3. Each rank trains on its share of the data, drawn anew in each epoch.
    training, validation, origin = data_of(options.data)
    sampler = DistributedSampler(training, hvd.size(), hvd.rank(), shuffle=True, seed=options.seed)
    loader = DataLoader(training, options.batch_size, sampler=sampler, drop_last=True)
    if len(loader) == 0:
        sys.exit(
            f"{hvd.size()} ranks with batches of {options.batch_size} want {hvd.size() * options.batch_size} images, "
            f"there are {len(training)}: lower --batch-size (--set batch-size={len(training) // hvd.size()})"
        )
    torch.manual_seed(options.seed)
    model = net().to(device)
    # 4. The learning rate grows with the number of ranks; rate_at() warms it up.
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate * hvd.size(), momentum=0.9)
    # 5. Horovod's optimizer averages the gradients of all ranks before each step.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # Not before: Horovod makes its optimizer of the other's parameters alone, and momentum would be lost.
    done = resumed(options.resume, model, optimizer)
    # 6. All ranks start from rank 0's parameters and optimizer state, new or of the checkpoint.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    first_rank = hvd.rank() == 0
    say = print if first_rank else lambda *_words, **_options: None
    say(f"{origin}: {len(training)} to train on, {len(validation)} to validate; {hvd.size()} ranks", flush=True)
    history = done["history"]
    if first_rank and "RUNNER_CHECKPOINT_DIR" in os.environ:  # of a chain, whose report then knows what start-up took
        (run_directory() / "first-step").touch()
    for epoch in range(done["epochs"], options.epochs):
        sampler.set_epoch(epoch)
        loss = train(model, optimizer, loader, device, lambda part, epoch=epoch: rate_at(epoch + part, options))
        # 8. What is printed is of all ranks, not of rank 0 alone.
        validated, accuracy = validate(model, validation, device)
        line = {"epoch": epoch + 1, "loss": loss, "validation_loss": validated, "accuracy": accuracy}
        history.append({**line, "rate": optimizer.param_groups[0]["lr"]})
        say("epoch {epoch}: loss {loss:.4f}, validation {validation_loss:.4f}, {accuracy:.1%} right".format(**line))
        # 7. Rank 0 alone writes the checkpoint.
        if first_rank:
            save(options.checkpoint, model, optimizer, history)

    checksums = hvd.allgather_object(checksum(model))
    world = hvd.rank(), hvd.size(), hvd.local_rank()
    loss = history[-1]["loss"] if history else math.nan
    world_report.leave(
        "horovod", world, device.type, time.monotonic() - began, framework_version=torch.__version__,
        parameter_checksum=checksum(model), loss_final=loss, loss_finite=math.isfinite(loss),
    )  # fmt: skip
    hvd.shutdown()
    if len(set(checksums)) > 1:
        sys.exit(f"rank {world[0]}: the parameters differ between ranks: gradients were not averaged")
    say(f"parameters {checksums[0]}, equal on all ranks; checkpoint: {options.checkpoint}")
    return 0


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="main.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="for one rank; N ranks train with N times it")
    parser.add_argument("--warmup-epochs", type=float, default=3.0, help="from one rank's rate to that of all")
    parser.add_argument("--checkpoint", help="file that rank 0 writes (default: checkpoint.pt in the run directory)")
    parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
    parser.add_argument("--data", choices=("auto", "digits", "drawn"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    if options.epochs < 1 or options.batch_size < 1:
        parser.error("--epochs and --batch-size are at least 1")
    chain = os.environ.get("RUNNER_CHECKPOINT_DIR")  # of `submit --until-done`
    options.checkpoint = options.checkpoint or str(Path(chain or run_directory()) / "checkpoint.pt")
    if chain and not options.resume and Path(options.checkpoint).exists():
        options.resume = options.checkpoint
    return options


def run_directory() -> Path:
    return Path(os.environ.get("RUNNER_RUN_DIR", "."))


def device_of(wanted: str) -> torch.device:
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if count == 0 and wanted == "cuda":
        sys.exit(f"rank {hvd.rank()} sees no GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})")
    if count == 0:
        return torch.device("cpu")
    index = 0 if count == 1 else hvd.local_rank()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def data_of(name: str) -> tuple[TensorDataset, TensorDataset, str]:
    """Images to train on, images to validate, and where they are from."""
    try:
        found = digits.load(name)
    except ImportError as error:
        sys.exit(f"--data digits: {error}; --data drawn needs no scikit-learn")
    images = torch.tensor(found.images).reshape(-1, 1, digits.SIDE, digits.SIDE)
    labels = torch.tensor(found.labels)
    cut = digits.TRAINING
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:]), found.origin


def net() -> nn.Module:
    """No BatchNorm and no dropout, so that N ranks train as one rank with N times the batch."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (digits.SIDE // 2) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def rate_at(epochs: float, options: argparse.Namespace) -> float:
    """The learning rate after so many epochs: from one rank's, in a line, to N times it (Goyal et al. 2017)."""
    warm = min(epochs / options.warmup_epochs, 1.0) if options.warmup_epochs > 0 else 1.0
    return options.learning_rate * (1.0 + (hvd.size() - 1) * warm)


def train(model: nn.Module, optimizer: Any, loader: Any, device: torch.device, rate: Any) -> float:
    """One epoch; the mean loss over the images of all ranks."""
    total = torch.zeros(2, dtype=torch.float64)
    for step, (images, labels) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = rate((step + 1) / len(loader))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)], dtype=torch.float64)
    summed = hvd.allreduce(total, op=hvd.Sum, name="training.loss")
    return float(summed[0] / summed[1])


def validate(model: nn.Module, validation: TensorDataset, device: torch.device) -> tuple[float, float]:
    """Mean loss and share of right answers; each rank looks at its share, and sums are made of all."""
    images, labels = (tensor[hvd.rank() :: hvd.size()].to(device) for tensor in validation.tensors)
    with torch.no_grad():
        answers = model(images)
        loss = nn.functional.cross_entropy(answers, labels, reduction="sum")
    right = (answers.argmax(1) == labels).sum()
    mine = torch.tensor([loss.item(), right.item(), len(labels)], dtype=torch.float64)
    summed = hvd.allreduce(mine, op=hvd.Sum, name="validation")
    return float(summed[0] / summed[2]), float(summed[1] / summed[2])


def resumed(path: str | None, model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Load a checkpoint on rank 0; every rank gets the epochs that are done and their history."""
    done: dict[str, Any] = {"epochs": 0, "history": [], "error": ""}
    if path and hvd.rank() == 0:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            done.update(epochs=len(found["history"]), history=found["history"])
        except Exception as error:  # whatever is wrong with the file, all ranks end with the reason
            done["error"] = f"{type(error).__name__}: {str(error).partition('. ')[0]}"
    done = hvd.broadcast_object(done, root_rank=0, name="resumed")
    if done["error"]:
        sys.exit(f"cannot resume from {path}: {done['error']}; give a checkpoint.pt that this recipe wrote")
    if path and hvd.rank() == 0:
        print(f"resumed from {path}: {done['epochs']} epochs are done", flush=True)
    return done


def save(path: str, model: nn.Module, optimizer: Any, history: list[dict[str, Any]]) -> None:
    """Checkpoint and history, each whole or not at all: a job may be killed at any moment."""
    packed = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}, packed)
    try:
        replace(Path(path), packed.getvalue())
        replace(Path(path).with_name("history.json"), json.dumps(history, indent=1).encode())
    except OSError as error:
        sys.exit(f"cannot write the checkpoint {path}: {error.strerror}; --checkpoint FILE writes it elsewhere")


def replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def checksum(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
