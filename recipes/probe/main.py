"""A rank that says what it sees: world, place, environment, arguments. Python's standard library only.

It forms its world through the launcher's rendezvous: every rank puts its facts there, and reads those of all others.
Writes ``ranks/N.report.json`` (framework ``probe``) and ``ranks/N.probe.json`` (schema.json, ``report`` and ``probe``).
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parent / "lib" / "modules"))

from gpu_runner_inside import records  # noqa: E402
from gpu_runner_inside.launcher import rendezvous  # noqa: E402


def main() -> int:
    """Exit 0 when every rank of the world was met, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Say what this rank sees.", allow_abbrev=False)
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help="record this variable's value")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for a rank")
    parser.add_argument("--sleep", type=float, default=0.0, metavar="S", help="seconds to stay when all have met")
    options, others = parser.parse_known_args()
    rank, size = int(os.environ.get("RUNNER_RANK", "0")), int(os.environ.get("RUNNER_WORLD", "1"))
    began = time.monotonic()
    met = meet(rank, size, options.timeout) if size > 1 else {rank: os.environ.get("RUNNER_HOST", "")}
    elapsed_s = time.monotonic() - began
    hosts = len(set(met.values()))
    if rank == 0:
        print(
            f"{len(met)} of {size} ranks met on {hosts} host{'' if hosts == 1 else 's'} in {elapsed_s:.2f} s",
            flush=True,
        )
    run_dir = os.environ.get("RUNNER_RUN_DIR")
    if run_dir:
        write_records(run_dir, rank, len(met), hosts, elapsed_s, options.env, others)
    time.sleep(options.sleep)
    return 0 if len(met) == size else 1


def meet(rank: int, size: int, timeout_s: float) -> dict[int, str]:
    """Host of every rank that was met, by rank; rank 0, whose task serves, stays until all others have read."""
    store = rendezvous.Store.of_environment()
    store.put("probe", str(rank), os.environ.get("RUNNER_HOST", "").encode())
    found = {peer: store.get("probe", str(peer), timeout_s) for peer in range(size)}
    store.put("probe", f"left-{rank}", b"")
    if rank == 0:
        for peer in range(1, size):
            store.get("probe", f"left-{peer}", timeout_s)
    return {peer: host.decode() for peer, host in found.items() if host is not None}


def write_records(
    run_dir: str, rank: int, met: int, hosts: int, elapsed_s: float, names: list[str], others: list[str]
) -> None:
    report = {
        "rank": rank,
        "framework": "probe",
        "host": os.environ.get("RUNNER_HOST", ""),
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "world_rank": rank,
        "world_size": met,
        "world_local_rank": int(os.environ.get("RUNNER_LOCAL_RANK", "0")),
        "device_kind": "cpu",
        "elapsed_s": elapsed_s,
    }
    records.write(records.rank_record(run_dir, rank, "report"), "report", report)
    probe = {
        "rank": rank,
        "hosts": hosts,
        "cwd_base64": encoded(os.getcwdb()),
        "argv_base64": [encoded(os.fsencode(word)) for word in sys.argv[1:]],
        "other_arguments": len(others),
        "environment_base64": {
            name: encoded(os.environb[os.fsencode(name)]) for name in names if os.fsencode(name) in os.environb
        },
        "environment_names": sorted(os.environ),
        "cpus": sorted(os.sched_getaffinity(0)),
        "user_id": os.getuid(),
        "node_name": os.uname().nodename,
    }
    records.write(records.rank_record(run_dir, rank, "probe"), "probe", probe)


def encoded(value: bytes) -> str:
    """Any bytes, as JSON can carry them."""
    return base64.b64encode(value).decode("ascii")


if __name__ == "__main__":
    sys.exit(main())
