"""Ranks that go wrong on purpose. Python's standard library only; lives under tests, never in the product.

``main.py --fault NAME[:VALUE][@RANK]...``: each fault on one rank, or on all without ``@RANK``. Without any fault the
ranks meet, leave the records of a good measurement, and end with 0.

exit:C         ends with code C                      signal:N        kills itself by signal N
hang           stays for ever                        late:S          comes S seconds late
die-early:C    ends with code C before it meets      nap:S           stays S seconds at the end
fill-disk      leaves no room in the run directory
no-report      leaves no report record               size-one        reports a world of one
wrong-device   reports device kind cuda              same-device     reports the device of rank 0
no-result      leaves no result                      torn-result     leaves half a result
wrong-schema   result of another schema version      nan             the loss was not finite
same-seed      all gradients equal                   weights-differ  parameters differ
memory:MB      holds that many megabytes             kill-launcher   kills its launcher, so that no exit record is left
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parents[2] / "recipes" / "lib" / "modules"))

from gpu_runner_inside import records  # noqa: E402
from gpu_runner_inside.launcher import rendezvous  # noqa: E402

Faults = dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[:VALUE][@RANK]")
    rank, size = int(os.environ["RUNNER_RANK"]), int(os.environ["RUNNER_WORLD"])
    faults = mine(parser.parse_args().fault, rank)
    if "late" in faults:
        time.sleep(float(faults["late"]))
    if "die-early" in faults:
        return int(faults["die-early"])
    if size > 1:
        meet(rank, size)
    run_dir = os.environ["RUNNER_RUN_DIR"]
    if "fill-disk" in faults:
        fill_disk(Path(run_dir))
    if "no-report" not in faults:
        records.write(records.rank_record(run_dir, rank, "report"), "report", report(rank, size, faults))
    if rank == 0 and "no-result" not in faults:
        leave_result(run_dir, size, faults)
    return go_wrong(faults)


def mine(words: list[str], rank: int) -> Faults:
    """The faults of this rank: value by name."""
    faults = {}
    for word in words:
        what, _, where = word.partition("@")
        name, _, value = what.partition(":")
        if not where or int(where) == rank:
            faults[name] = value
    return faults


def meet(rank: int, size: int) -> None:
    """Wait for every rank, and on rank 0, whose task serves, for every rank's having done so."""
    store = rendezvous.Store.of_environment()
    for stage in ("came", "left"):
        store.put("faults", f"{stage}-{rank}", b"")
        if stage == "came" or rank == 0:
            for peer in range(size):
                store.get("faults", f"{stage}-{peer}", 60.0)


def fill_disk(directory: Path) -> None:
    with suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass


def go_wrong(faults: Faults) -> int:
    if "memory" in faults:
        held = bytearray(int(faults["memory"]) << 20)
        held[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(held[:: os.sysconf("SC_PAGE_SIZE")])
    if "kill-launcher" in faults:
        os.kill(os.getppid(), signal.SIGKILL)
    if "signal" in faults:
        if int(faults["signal"]) != signal.SIGKILL:
            signal.signal(int(faults["signal"]), signal.SIG_DFL)
        os.kill(os.getpid(), int(faults["signal"]))
    time.sleep(float(faults.get("nap", "0")))
    while "hang" in faults:
        time.sleep(60.0)
    return int(faults.get("exit", "0"))


def report(rank: int, size: int, faults: Faults) -> dict[str, object]:
    on_cuda = "wrong-device" in faults
    return {
        "rank": rank, "framework": "horovod", "framework_version": "0", "horovod_version": "0", "python_version": "0",
        "host": os.environ["RUNNER_HOST"], "world_rank": 0 if "size-one" in faults else rank,
        "world_size": 1 if "size-one" in faults else size, "world_local_rank": int(os.environ["RUNNER_LOCAL_RANK"]),
        "device_kind": "cuda" if on_cuda else "cpu",
        "device_uuid": "GPU-0" if "same-device" in faults or on_cuda else None,
        "gradient_checksum": "0" if "same-seed" in faults else f"{rank:016x}",
        "parameter_checksum": f"{rank:016x}" if "weights-differ" in faults else "f" * 16, "parameters_moved": True,
        "onehot_ok": True, "loss_final": None if "nan" in faults else 1.0, "loss_finite": "nan" not in faults,
        "batch_size": 10, "group_steps": 1, "warmup_steps": 1, "warmup_s": 0.1,
        "window_began_monotonic_s": time.monotonic() - 0.01, "ends_s": [0.001 * step for step in range(1, 11)],
        "elapsed_s": 0.01,
    }  # fmt: skip


def leave_result(run_dir: str, size: int, faults: Faults) -> None:
    reasons = [name for name in ("same-seed", "weights-differ", "nan", "size-one") if name in faults]
    path = Path(records.result_path(run_dir))
    records.write(str(path), "result", result(1 if "size-one" in faults else size, faults, reasons))
    text = path.read_text()
    if "torn-result" in faults:
        path.write_text(text[: len(text) // 2])
    if "wrong-schema" in faults:
        path.write_text(text.replace('"schema": "2"', '"schema": "999"'))


def result(size: int, faults: Faults, reasons: list[str]) -> dict[str, object]:
    proof = {
        "proof_world": "size-one" not in faults, "proof_gradients_differ": "same-seed" not in faults,
        "proof_parameters_equal": "weights-differ" not in faults, "proof_parameters_moved": True,
        "proof_onehot": True, "proof_devices_distinct": True, "proof_loss_finite": "nan" not in faults,
    }  # fmt: skip
    return {
        "recipe": "faults", "framework": "horovod", "framework_version": "0", "horovod_version": "0",
        "python_version": "0", "size": size, "preliminary_images_per_s": None if reasons else 10_000.0 * size,
        "window_s": 0.01, "steps": 10, "group_steps": 1, "warmup_steps": 1, "warmup_s": 0.1, "compute_p50_s": 0.01,
        "step_p50_s": 0.001, "demonstration": True, "proven": not reasons, "proof_reasons": reasons, **proof,
        "device_kind": "cpu", "device_name": "none", "model": "none", "batch_size": 1, "image_px": 1,
        "precision": "fp32", "channels_last": False, "compile": False, "fp16_allreduce": False,
        "hooks_registered": True, "seed": 1,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
