"""What a benchmark records of a run that it timed: a rank's report, the result, a summary for people. Pure."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Sequence

from gpu_runner_inside.benchmark import measure
from gpu_runner_inside.benchmark.options import WARMUP, WINDOW
from gpu_runner_inside.benchmark.proof import Proof, RankFacts

ABOUT = "/opt/runner/image.json"  # the image's description (containers/horovod/describe.py)


@dataclass(frozen=True)
class Lengths:
    """What rank 0 decided for all: warm-up steps and seconds done, timed groups and steps in each."""

    warmup_steps: int
    warmup_s: float
    groups: int
    group_steps: int


@dataclass(frozen=True)
class Timed:
    """One rank's window.

    Attributes:
        ends_s: end of each group, seconds after the common start.
        compute_s: each step's own computing, seconds; empty where the training method cannot separate it.
        loss: of the last step.
    """

    ends_s: list[float]
    compute_s: list[float]
    loss: float


def quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter of the run; the whole run's where it is too short to be cut; none of no values."""
    quarter = len(values) // 4
    if quarter == 0:
        return [measure.median(values)] * 4 if values else []
    return [measure.median(values[i * quarter : (i + 1) * quarter]) for i in range(4)]


def why_demonstration(options: argparse.Namespace, device_kind: str, lengths: Lengths, window_s: float) -> list[str]:
    """Why this figure makes no performance claim; empty if it may."""
    checks = (
        (options.demonstration, "requested"),
        (device_kind == "cpu", "runs on CPUs"),
        (lengths.warmup_steps < WARMUP[0] or lengths.warmup_s < WARMUP[1], "short warm-up"),
        (lengths.groups * lengths.group_steps < WINDOW[0] or window_s < WINDOW[1], "short window"),
    )
    return [why for holds, why in checks if holds]


def report_of(
    versions: Mapping[str, Any],
    device: Mapping[str, Any],
    facts: RankFacts,
    timed: Timed,
    lengths: Lengths,
    batch_size: int,
) -> dict[str, Any]:
    """This rank's report, without what only the launcher and the framework know."""
    groups_s = [end - start for start, end in zip([0.0, *timed.ends_s], timed.ends_s)]
    compute_s = timed.compute_s
    return {
        **versions,
        "host": facts.host,
        "world_rank": facts.rank,
        "world_size": facts.size,
        "device_kind": device["kind"],
        "device_name": device["name"],
        "device_uuid": device["identity"] if device["kind"] == "cuda" else None,
        "device_index": device["index"],
        "gradient_checksum": facts.gradients,
        "parameter_checksum": facts.parameters,
        "parameters_moved": facts.moved,
        "onehot_ok": facts.onehot,
        "loss_final": timed.loss,
        "loss_finite": facts.finite,
        "steps": lengths.groups * lengths.group_steps,
        "group_steps": lengths.group_steps,
        "batch_size": batch_size,
        "ends_s": timed.ends_s,
        "elapsed_s": timed.ends_s[-1],
        "group_p50_s": measure.median(groups_s),
        "group_p95_s": measure.quantile(groups_s, 0.95),
        "group_max_s": max(groups_s),
        "compute_p50_s": measure.median(compute_s) if compute_s else None,
        "compute_p95_s": measure.quantile(compute_s, 0.95) if compute_s else None,
        "compute_quarters_p50_s": quarters(compute_s),
    }


def result_of(
    named: Mapping[str, Any],
    options: argparse.Namespace,
    lengths: Lengths,
    proof: Proof,
    gathered: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Rank 0's result of the run: a figure only if the proof holds. ``named``: recipe, versions and device."""
    figure = measure.throughput(
        [measure.RankWindow(options.batch_size, lengths.group_steps, each["ends_s"]) for each in gathered]
    )
    window_images = options.batch_size * len(gathered) * lengths.group_steps  # of all ranks, in a group
    within = figure.precision if proof.holds else None
    computing = [each["compute_p50_s"] for each in gathered if each["compute_p50_s"] is not None]
    complete = len(computing) == len(gathered)
    slow = measure.stragglers(computing, [each["quarters_s"] for each in gathered]) if complete else []
    reasons = why_demonstration(options, named["device_kind"], lengths, figure.window_s)
    return {
        **named,
        "size": len(gathered),
        "images_per_s": figure.images_per_s if proof.holds else None,
        "precision_low_images_per_s": window_images / within.high_s if within and within.high_s > 0 else None,
        "precision_high_images_per_s": window_images / within.low_s if within and within.low_s > 0 else None,
        "precision_batches": within.batches if within else 0,
        "precision_autocorrelation": within.autocorrelation if within else None,
        "window_s": figure.window_s,
        "steps": figure.steps,
        "group_steps": lengths.group_steps,
        "warmup_steps": lengths.warmup_steps,
        "warmup_s": lengths.warmup_s,
        "truncated_steps": figure.truncated_groups * lengths.group_steps,
        "truncated_s": figure.truncated_s,
        "trend": figure.trend,
        "steady": figure.steady,
        "stragglers": slow,
        "compute_p50_s": measure.median(computing) if complete else None,
        "step_p50_s": measure.median([each["group_p50_s"] for each in gathered]) / lengths.group_steps,
        "demonstration": bool(reasons),
        "demonstration_reasons": reasons,
        "proven": proof.holds,
        "proof_reasons": list(proof.reasons),
        **{f"proof_{name}": value for name, value in asdict(proof).items() if name != "reasons"},
        "model": options.model,
        "batch_size": options.batch_size,
        "image_px": options.image_size,
        "precision": options.precision,
        "channels_last": options.channels_last,
        "compile": options.compile,
        "fp16_allreduce": options.fp16_allreduce,
        "hooks_registered": gathered[0]["hooks"],
        "seed": options.seed,
        "image": about_image(),
    }


def about_image(path: str = ABOUT) -> dict[str, Any] | None:
    """The description in the image that this runs in; None outside of one."""
    with suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return found if isinstance(found, dict) else None
    return None


def say(result: Mapping[str, Any]) -> None:
    """A short summary for people."""
    print(
        f"{result['model']}, {result['batch_size']} images of {result['image_px']} px a rank, {result['size']} ranks, "
        f"{result['precision']}, {result['device_name']} ({result['device_kind']})"
    )
    if not result["proven"]:
        print("NOT PROVEN, so no throughput: " + "; ".join(result["proof_reasons"]))
        return
    claim = " (demonstration, no performance claim)" if result["demonstration"] else ""
    print(f"throughput: {result['images_per_s']:.1f} images/s{claim}")
    if result["precision_low_images_per_s"] and result["precision_high_images_per_s"]:
        low, high = result["precision_low_images_per_s"], result["precision_high_images_per_s"]
        print(f"precision of this run: {low:.1f} to {high:.1f} images/s")
    print(
        f"window: {result['window_s']:.1f} s, {result['steps']} steps after {result['warmup_steps']} of warm-up"
        f" and {result['truncated_steps']} truncated; steady: "
        + {True: "yes", False: "NO", None: "too short to tell"}[result["steady"]]
    )
    own = result["compute_p50_s"]
    computing = "" if own is None else f", of which own computing {own * 1000:.1f} ms"
    print(f"step {result['step_p50_s'] * 1000:.1f} ms{computing}")
    if result["stragglers"]:
        print(f"slow ranks: {', '.join(map(str, result['stragglers']))}")
