"""Prove that the Horovod in this image does what it promises, then write down what the image is.

    prove.py --framework pytorch --write /opt/runner/image.json

Fails unless ``horovodrun --check-build`` lists what was promised, and two processes form a world of size 2 and
reduce to the right sum: under Gloo, formed by environment variables and Horovod's own rendezvous server as a
batch job does it, and under MPI too where Horovod was built with it. Standard library, the framework and Horovod
only; Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from frameworks import FRAMEWORKS, Framework, base_facts, mpi_flavour

RANKS = 2
LIMIT_S = 180


def fail(what: str) -> None:
    raise SystemExit("PROOF FAILED: " + what)


def check_build(framework: Framework) -> dict[str, list[str]]:
    """Section -> abilities marked ``[X]`` by ``horovodrun --check-build``."""
    done = subprocess.run(
        ["horovodrun", "--check-build"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        fail(f"horovodrun --check-build exited {done.returncode}:\n{done.stdout}")
    found = parse_check_build(done.stdout)
    print(done.stdout, flush=True)
    if framework.name not in [name.lower() for name in found.get("frameworks", [])]:
        fail(f"horovodrun --check-build does not list {framework.name}")
    return found


def parse_check_build(text: str) -> dict[str, list[str]]:
    """Parse the report; sections are ``frameworks``, ``controllers`` and ``operations``."""
    section = ""
    found = {"frameworks": [], "controllers": [], "operations": []}
    for line in text.splitlines():
        heading = re.match(r"Available (?:Tensor )?(\w+):", line)
        if heading:
            section = heading.group(1).lower()
        marked = re.match(r"\s+\[X\] (.+)", line)
        if marked and section in found:
            found[section].append(marked.group(1).strip())
    return found


def expect(what: str, wanted: Sequence[str], found: Sequence[str]) -> None:
    for name in wanted:
        if name not in found:
            fail("{} of Horovod lack {}: found {}".format(what, name, ", ".join(found) or "none"))


def report(output: str) -> dict[str, object] | None:
    """The line that a rank prints, out of whatever else a launcher or framework prints."""
    for line in output.splitlines():
        match = re.search(r"\{\"proof\".*\}", line)
        if match:
            parsed = json.loads(match.group(0))
            assert isinstance(parsed, dict)
            return parsed
    return None


def rank_command(framework: Framework) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--framework", framework.name, "--as-rank"]


def as_rank(framework: Framework) -> None:
    """One of the two processes: reduce, gather, and say what came out."""
    import importlib

    hvd = importlib.import_module(framework.horovod_module)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = RANK_PROGRAMS[framework.name](hvd, rank)
    print(
        json.dumps({"proof": 1, "rank": rank, "size": size, "local_size": hvd.local_size(), "sum": total}), flush=True
    )
    hvd.shutdown()


def _torch_sum(hvd: object, rank: int) -> list[float]:
    """Sum over the ranks of a large tensor filled with 10**rank, and of its one-hot vector: both are exact in fp32."""
    import torch

    large = hvd.allreduce(torch.full((1 << 20,), 10.0**rank), op=hvd.Sum, name="large")  # type: ignore[attr-defined]
    hot = torch.zeros(RANKS)
    hot[rank] = 1.0
    ones = hvd.allreduce(hot, op=hvd.Sum, name="one_hot")  # type: ignore[attr-defined]
    return [float(large.min()), float(large.max()), float(ones.min()), float(ones.max())]


RANK_PROGRAMS = {"pytorch": _torch_sum}
RIGHT = [11.0, 11.0, 1.0, 1.0]


def verify(how: str, outputs: Sequence[str], codes: Sequence[int]) -> None:
    """Every rank exited 0, saw size 2 and got the right sums."""
    said = [answer for answer in map(report, outputs) if answer is not None]
    if any(codes) or len(said) != RANKS or sorted(str(answer["rank"]) for answer in said) != ["0", "1"]:
        fail(
            "{}: exit codes {}, {} of {} ranks answered\n{}".format(
                how, list(codes), len(said), RANKS, "\n".join(outputs)
            )
        )
    for answer in said:
        if answer["size"] != RANKS or answer["local_size"] != RANKS:
            fail("{}: rank {} sees a world of size {}".format(how, answer["rank"], answer["size"]))
        if answer["sum"] != RIGHT:
            fail("{}: rank {} reduced to {}, right is {}".format(how, answer["rank"], answer["sum"], RIGHT))
    print(f"PROVEN: two-process allreduce, {how}", flush=True)


def clean_environment() -> dict[str, str]:
    """The environment without anything that a build host may have set for another world."""
    foreign = re.compile(r"HOROVOD_|SLURM_|PMI|OMPI_COMM|RANK$|WORLD_SIZE$|MASTER_")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    return dict(kept, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")


def resolve_own_name() -> None:
    """See that this container's own name resolves; a build's may be one that nobody knows.

    Horovod 0.28.1 gives Gloo no interface for process sets, so Gloo looks its own host name up, and ends with
    SIGSEGV where that fails (``gloo/transport/tcp/device.cc``, CreateDeviceAttr).
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        with Path("/etc/hosts").open("a") as hosts:  # the engine's own for this container: no layer keeps it
            hosts.write(f"127.0.0.1 {name}\n")


def prove_gloo(framework: Framework) -> None:
    """Two plain processes and Horovod's rendezvous server on the loopback; no launcher at all."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    slots = get_host_assignments(parse_hosts(f"localhost:{RANKS}"), RANKS)
    port = server.start()
    server.init(slots)
    children = []
    try:
        for slot in slots:
            world = {
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_HOSTNAME": "localhost",
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            }
            for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
                world["HOROVOD_" + name.upper()] = str(getattr(slot, name))
            children.append(
                subprocess.Popen(
                    rank_command(framework),
                    env=dict(clean_environment(), **world),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    universal_newlines=True,
                )
            )
        outputs = [child.communicate(timeout=LIMIT_S)[0] for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
        server.stop()
    verify(
        "Gloo, formed by environment variables and a rendezvous server",
        outputs,
        [child.returncode for child in children],
    )


def prove_mpi(framework: Framework, flavour: str) -> None:
    """The same under mpirun with the MPI controller and MPI operations."""
    world = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    words = ["mpirun", "-np", str(RANKS)]
    if flavour == "openmpi":
        words += ["--allow-run-as-root", "--host", f"localhost:{RANKS}", "--bind-to", "none"]
        # A build container may not read another process's memory, and has no fabric to probe.
        world.update(
            OMPI_MCA_btl_vader_single_copy_mechanism="none",
            OMPI_MCA_pml="ob1",
            OMPI_MCA_btl="self,vader",
            OMPI_MCA_plm_rsh_agent="",
        )
    done = subprocess.run(
        words + rank_command(framework),
        env=dict(clean_environment(), **world),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    answers = [line for line in done.stdout.splitlines() if '{"proof"' in line]
    if len(answers) != RANKS:
        fail(f"MPI: exit code {done.returncode}\n{done.stdout}")
    verify(f"MPI ({flavour})", answers, [done.returncode] * RANKS)


def describe(
    framework: Framework, facts: dict[str, object], abilities: dict[str, list[str]], proven: list[str]
) -> dict[str, object]:
    """What the image says about itself (schema version 1)."""
    import horovod

    key = (Path(__file__).resolve().parent / "wheel" / "key").read_text().strip()
    return {
        "schema": 1,
        "framework": facts["framework"],
        "framework_version": facts["framework_version"],
        "python": facts["python"],
        "arch": platform.machine(),
        "libc": facts["libc"],
        "cuda": facts["cuda"],
        "nccl": facts["nccl"],
        "mpi": facts["mpi"],
        "horovod": {
            "version": horovod.__version__,
            "wheel_key": key,
            "mends": framework.mends,
            "frameworks": abilities["frameworks"],
            "controllers": abilities["controllers"],
            "operations": abilities["operations"],
            "proven": proven,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Prove the Horovod of this image.")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="where to write what the image is (JSON)")
    asked = parser.parse_args()
    framework = FRAMEWORKS[asked.framework]
    if asked.as_rank:
        as_rank(framework)
        return
    started = time.monotonic()
    abilities = check_build(framework)
    facts = base_facts(framework)
    flavour = mpi_flavour()["flavour"]
    expect("controllers", ["Gloo"] + (["MPI"] if flavour else []), abilities["controllers"])
    operations = ["Gloo"] + (["MPI"] if flavour else []) + (["NCCL"] if facts["cuda"] and facts["nccl_headers"] else [])
    expect("operations", operations, abilities["operations"])
    resolve_own_name()
    prove_gloo(framework)
    proven = ["gloo"]
    if flavour:
        prove_mpi(framework, flavour)
        proven.append("mpi")
    if asked.write:
        about = describe(framework, facts, abilities, proven)
        asked.write.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    print(f"PROVEN in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
