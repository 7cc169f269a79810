"""Horovod's clients, as many as wanted, form their mesh through a rendezvous: how long, how much, and is all answered?

In a job the tasks share the clients, rank 0 serves, and the launcher's own rendezvous carries what they tell one
another; outside of one this process does all. One JSON line a mesh goes to standard output, all of them to
``mesh.json`` in the run directory. Exit 1 if a mesh of our own server did not form, or a request got no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bad_road
import mesh_servers
from gpu_runner_inside.launcher import rendezvous
from mesh_clients import Herd

PATIENCE_S = 900.0


class Tasks:
    """The tasks of this job step, which tell each other things through the launcher's rendezvous."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RUNNER_RANK", "0"))
        self.size = int(os.environ.get("RUNNER_WORLD", "1"))
        self._store = rendezvous.Store.of_environment() if self.size > 1 else None
        self._said: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        """That of rank 0, as all see it."""
        return self._store.address if self._store else "127.0.0.1"

    def tell(self, key: str, value: object) -> None:
        self._said[key] = json.dumps(value).encode()
        if self._store:
            self._store.put("mesh", key, self._said[key])

    def hear(self, key: str) -> object:
        value = self._store.get("mesh", key, PATIENCE_S) if self._store else self._said[key]
        if value is None:
            raise TimeoutError(f"no rank put {key!r} within {PATIENCE_S:g} s")
        return json.loads(value)

    def gather(self, key: str, value: object) -> list:
        """On rank 0: what every task says, by rank; None everywhere else."""
        self.tell(f"{key}-{self.rank}", value)
        return [self.hear(f"{key}-{rank}") for rank in range(self.size)] if self.rank == 0 else []

    def barrier(self, key: str) -> None:
        """Wait until every task has come here."""
        self.gather(key, None)
        if self.rank == 0:
            self.tell(f"{key}-all", None)
        self.hear(f"{key}-all")


def form(tasks: Tasks, kind: str, size: int, timeout_s: float, seen_as: str | None) -> dict:
    """One mesh of ``size`` clients through the server of this kind; what it took, on rank 0, else nothing."""
    name = f"{kind}-{size}"
    serving = None
    if tasks.rank == 0:
        here = bad_road.HERE if seen_as else tasks.address
        serving = mesh_servers.ours(here, size, seen_as) if kind == "ours" else mesh_servers.stock(tasks.address)
        tasks.tell(f"{name}-server", [serving.server, serving.port])
    server, port = tasks.hear(f"{name}-server")
    first, after = (size * rank // tasks.size for rank in (tasks.rank, tasks.rank + 1))
    herd = Herd(server, port, first=first, count=after - first, size=size, timeout_s=timeout_s)
    tasks.barrier(f"{name}-ready")
    began = time.monotonic()
    herd.go()
    herd.meshed()
    tasks.barrier(f"{name}-meshed")  # as Gloo's own: a rank that leaves takes its keys along
    meshed_s = time.monotonic() - began
    told = tasks.gather(f"{name}-report", asdict(herd.leave()))
    if serving is None:
        return {}
    counted = serving.requests()
    figures = {
        "clients": size,
        "server": kind,
        "tasks": tasks.size,
        "mesh_s": round(meshed_s, 3),
        **{key: sum(each[key] for each in told) for key in ("requests", "retries", "failed")},
        "requests_answered": counted,
        "server_peak_bytes": serving.peak_rss_bytes(),
        "server_cpu_s": serving.cpu_s(),
    }
    serving.end()
    return figures


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="Form meshes through a rendezvous, as Horovod's clients do.")
    parser.add_argument("--clients", default="64", metavar="N,N", help="sizes of the meshes")
    parser.add_argument("--stock", default="", metavar="N,N", help="sizes for Horovod's own server")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="Gloo's time-out")
    parser.add_argument("--loss", type=float, default=0.0, metavar="P", help="of packets, 0 to 1, on a bad road")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each packet, on a bad road")
    options = parser.parse_args()
    tasks = Tasks()
    bad = bool(options.loss or options.delay_ms)
    if bad:
        bad_road.open_road(options.loss, options.delay_ms / 1000)
    done = []
    for kind, sizes in (("ours", options.clients), ("stock", options.stock)):
        for size in filter(None, sizes.split(",")):
            figures = form(tasks, kind, int(size), options.timeout, bad_road.THERE if bad else None)
            if figures:
                done.append(figures)
                print(json.dumps(figures), flush=True)
    tasks.gather("end", None)
    if done and "RUNNER_RUN_DIR" in os.environ:
        Path(os.environ["RUNNER_RUN_DIR"], "mesh.json").write_text(json.dumps(done))
    ours = [each for each in done if each["server"] == "ours"]
    return int(any(each["failed"] or each["retries"] or each["requests"] != each["requests_answered"] for each in ours))


if __name__ == "__main__":
    sys.exit(main())
