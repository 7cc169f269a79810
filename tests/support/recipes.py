"""Runs of the training script in tests/recipes/metered, and what its ranks print at their end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from runner.model.records import Report
from tests.support.commands import Runner
from tests.support.rank_records import printed

SCRIPT = Path(__file__).parents[1] / "recipes" / "metered"


def measure(local: Runner, peculiarity: str, source: str, *words: str, code: int = 0) -> tuple[Path, dict[str, Any]]:
    """The directory of a run of two ranks, and its verdict.

    Args:
        source: what counts the steps: ``script``, ``hook`` (--meter), or ``none``.
    """
    flag = ("--meter",) if source == "hook" else ()
    patience = ("--env", "RUNNER_METER_PATIENCE_S=30")
    program = ("python3", "main.py", peculiarity, source)
    local("submit", "--gpus", "2", "--wait", *flag, *patience, *words, "--", *program, code=code, cwd=SCRIPT)
    run = local.newest()
    return run, json.loads((run / "verdict.json").read_text())


def states(run: Path) -> list[list[str]]:
    """The checksums of weights, statistics, gradients, momentum and random state that each rank printed."""
    return [
        [line.split()[1] for line in (run / "logs" / f"rank-{rank}.out").read_text().splitlines() if "state " in line]
        for rank in range(2)
    ]


UNCHANGED = Path(__file__).parents[1] / "recipes" / "unchanged"
MESH = Path(__file__).parents[1] / "recipes" / "mesh"


def meshes(runner: Runner, *words: str) -> list[dict[str, Any]]:
    """What a job of 16 tasks on two nodes reports of the meshes that its clients formed."""
    runner("submit", "--recipe", str(MESH), "--gpus", "16", "--nodes", "2", "--wait", "--", *words, code=0)
    figures: list[dict[str, Any]] = json.loads((runner.newest() / "mesh.json").read_text())
    return figures


def over_a_bad_road(clients: int, *, loss: float, delay_ms: int) -> dict[str, Any]:
    """One mesh in a network namespace of its own; the loss is of packets, the delay of each, in both directions."""
    words = ["--clients", str(clients), "--loss", str(loss), "--delay-ms", str(delay_ms)]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, MESH / "main.py", *words],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def complete(figures: dict[str, Any]) -> bool:
    """Every client formed its mesh, and every request was answered, at once."""
    lost = int(figures["requests"]) - int(figures["requests_answered"])
    return (figures["failed"], figures["retries"], lost) == (0, 0, 0)


COUNTED = Path(__file__).parents[1] / "recipes" / "counted"
# Of its scripts: those that are measured in steps, and those whose stated batch is not checked.
IN_STEPS = {
    "adversarial", "adversarial_apart", "sharpness_aware", "two_views", "closure", "time_major", "graphs",
    "projected_divided", "projected_by_deepspeed", "actor_and_critic", "compiled_backward",
    "encoder_layer_with_a_mask", "judged_at_the_end", "judged_before_each_step", "private", "by_turns",
    "perturbed_twice", "solved_with_the_adjoint",
}  # fmt: skip
NOT_CHECKED = {
    "accumulated_in_what_is_wrapped", "accumulation_left_out", "adversarial_and_stated", "awkward",
    "by_a_part_or_frozen", "compiled_around", "compiled_step", "compiled_whole", "encoders_by_turns",
    "experts_in_a_list",
    "private_and_stated", "projected_and_stated",
    "perturbed_and_stated_of_two_ranks", "projected_divided_and_stated", "prompted", "shared_trunk", "stated_too_small",
    "time_as_long_as_the_batch", "time_as_long_as_the_first_batches", "time_major_and_stated", "time_stated",
    "time_stated_and_written", "time_stated_for_a_class", "unlabelled_without_loss", "within_torchscript",
}  # fmt: skip
BESIDE = {
    "beside_another_process", "by_turns", "actor_and_critic", "adversarial", "adversarial_apart",
    "adversarial_and_stated", "critic_of_one_module", "tasks_by_turns", "recomputed_and_a_critic",
    "recomputed_reentrant_and_a_critic",
}  # fmt: skip
NOT_SEEN = {"compiled_optimizer_unseen"}
CHECKPOINTED = {
    "recomputed", "recomputed_in_part", "recomputed_without_its_holder", "recomputed_and_a_critic",
    "recomputed_reentrant_and_a_critic", "recomputed_for_two",
}  # fmt: skip
LARGEST = 0.02  # difference from the script's own count
BUCKET = 25 << 20  # bytes of DistributedDataParallel's


def counted_and_unchanged(local: Runner, *names: str) -> int:
    """Runs these scripts, or all, with the meter and without; how many there were.

    Raises:
        AssertionError: the meter changes what is trained or compiled, takes a bucket's memory, or counts otherwise.
    """
    local("submit", "--gpus", "1", "--wait", "--", "python3", "main.py", *names, code=0, cwd=COUNTED)
    rows = [json.loads(line) for line in printed(local.newest()).splitlines() if line.startswith("{")]
    for row in rows:
        name = row["name"]
        assert row["same"] == {"state": True, "compiled": True}, name
        assert row["more_bytes"] < BUCKET, name
        assert (row["report"] is None) is (name in NOT_SEEN), name
        if row["report"] is None:
            continue
        report = msgspec.convert(row["report"], Report)
        counted = sum(report.group_samples)
        assert report.forwards_seen in (None, row["report"]["steps"]) or report.meter == "hook", name
        assert (report.unit == "steps") is (name in IN_STEPS), name
        assert (report.steps_beside > 0) is (name in BESIDE), name
        assert report.trained.get("activation checkpointing") in (None, str(name in CHECKPOINTED)), name
        if report.unit != "steps":
            assert (not report.batch_seen and report.samples_seen != counted) is (name in NOT_CHECKED), name
            is_off = abs(counted / row["own"] - 1) >= LARGEST
            assert not is_off or name in NOT_CHECKED, (name, counted, row["own"])
    return len(rows)
