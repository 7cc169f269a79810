"""What a benchmark reports of a run that it timed: a rank's report, the result, a summary for people. Pure."""

from __future__ import annotations

import argparse
import json
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Sequence

from gpu_runner_inside.benchmark.lengths import Lengths
from gpu_runner_inside.benchmark.measure import median, quantile
from gpu_runner_inside.benchmark.proof import Proof, RankFacts, checksum

ABOUT = "/opt/runner/image.json"  # the image's description (containers/horovod/describe.py)


@dataclass(frozen=True)
class Timed:
    """One rank's window.

    Attributes:
        began_monotonic_s: the common start on this node's monotonic clock.
        ends_s: end of each group, seconds after the common start.
        compute_s: each step's own computing, seconds; empty where the training method cannot separate it.
        loss: of the last step.
        instrumentation_s: time that the host has spent in calls that only measure, seconds; None where unknown.
    """

    began_monotonic_s: float
    ends_s: list[float]
    compute_s: list[float]
    loss: float
    instrumentation_s: float | None = None


def quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter of the run; the whole run's where it is too short to be cut; none of no values."""
    quarter = len(values) // 4
    if quarter == 0:
        return [median(values)] * 4 if values else []
    return [median(values[i * quarter : (i + 1) * quarter]) for i in range(4)]


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
    compute_s, about = timed.compute_s, about_image()
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
        "warmup_steps": lengths.warmup_steps,
        "warmup_s": lengths.warmup_s,
        "window_began_monotonic_s": timed.began_monotonic_s,
        "ends_s": timed.ends_s,
        "ends_checksum": checksum([struct.pack(f"<{len(timed.ends_s)}d", *timed.ends_s)]),
        "elapsed_s": timed.ends_s[-1],
        "group_p50_s": median(groups_s),
        "group_p95_s": quantile(groups_s, 0.95),
        "group_max_s": max(groups_s),
        "compute_p50_s": median(compute_s) if compute_s else None,
        "compute_p95_s": quantile(compute_s, 0.95) if compute_s else None,
        "compute_quarters_p50_s": quarters(compute_s),
        "instrumentation_s": timed.instrumentation_s,
        "image_checksum": checksum([json.dumps(about, sort_keys=True).encode()]) if about else None,
    }


def result_of(
    named: Mapping[str, Any],
    options: argparse.Namespace,
    lengths: Lengths,
    proof: Proof,
    gathered: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Rank 0's result of the run, with a preliminary figure of the whole window: the judge outside makes the figure
    from every rank's own times, and believes none that is derived here.

    Args:
        named: recipe, versions and device.
        gathered: of each rank its window's seconds, its median group and step times, and whether it has hooks.
    """
    window_s = max(each["window_s"] for each in gathered)
    steps = lengths.groups * lengths.group_steps
    computing = [each["compute_p50_s"] for each in gathered if each["compute_p50_s"] is not None]
    return {
        **named,
        "size": len(gathered),
        "preliminary_images_per_s": options.batch_size * steps * len(gathered) / window_s if proof.holds else None,
        "window_s": window_s,
        "steps": steps,
        "group_steps": lengths.group_steps,
        "warmup_steps": lengths.warmup_steps,
        "warmup_s": lengths.warmup_s,
        "compute_p50_s": median(computing) if len(computing) == len(gathered) else None,
        "step_p50_s": median([each["group_p50_s"] for each in gathered]) / lengths.group_steps,
        "demonstration": options.demonstration,
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


def print_summary(result: Mapping[str, Any]) -> None:
    """A short summary for people. The figure is preliminary: `wait` prints the one that is judged."""
    print(
        f"{result['model']}, {result['batch_size']} images of {result['image_px']} px a rank, {result['size']} ranks, "
        f"{result['precision']}, {result['device_name']} ({result['device_kind']})"
    )
    if not result["proven"]:
        print("NOT PROVEN, so no throughput: " + "; ".join(result["proof_reasons"]))
        return
    arm = f", arm {result['arm']}" if "arm" in result else ""
    claim = "; demonstration, no performance claim" if result["demonstration"] or result["device_kind"] == "cpu" else ""
    print(
        f"preliminary throughput{arm}: {result['preliminary_images_per_s']:.1f} images/s "
        f"(the whole window, not judged: the figure is the verdict's{claim})"
    )
    print(
        f"window: {result['window_s']:.1f} s, {result['steps']} steps after {result['warmup_steps']} of warm-up "
        f"({result['warmup_s']:.1f} s)"
    )
    compute = (
        "" if result["compute_p50_s"] is None else f", of which own computing {result['compute_p50_s'] * 1e3:.1f} ms"
    )
    print(f"step {result['step_p50_s'] * 1000:.1f} ms{compute}")
