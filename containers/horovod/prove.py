"""Prove that the Horovod in this image or environment does what it promises.

    prove.py --framework pytorch [--write proof.json]

Fails unless ``horovodrun --check-build`` lists what was promised, its NCCL is the framework's own, and two
processes (rank.py) form a world of size 2, reduce to the right sum and train in step: under Gloo, formed by
environment variables and Horovod's own rendezvous server as a batch job does it, and under MPI too where the base
has it. Where the framework has CUDA, Horovod's library itself must say that it has NCCL, unless ``--nccl none``.
Standard library, the framework and Horovod only; Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import hmac
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from frameworks import FRAMEWORKS, Framework, Variant, ask_framework, base_facts, captured, variant_of, variant_options

HERE = Path(__file__).resolve().parent
RANKS = 2
LIMIT_S = 600


def fail(what: str) -> None:
    raise SystemExit("PROOF FAILED: " + what)


def check_build(framework: Framework) -> dict[str, list[str]]:
    """Section -> abilities marked ``[X]`` by ``horovodrun --check-build``."""
    done = captured(["horovodrun", "--check-build"], timeout=LIMIT_S)
    if done.returncode != 0:
        fail(f"horovodrun --check-build exited {done.returncode}:\n{done.stdout}")
    print(done.stdout, flush=True)
    abilities = parse_check_build(done.stdout)
    if framework.name not in [name.lower() for name in abilities["frameworks"]]:
        fail(f"horovodrun --check-build does not list {framework.name}")
    return abilities


def parse_check_build(text: str) -> dict[str, list[str]]:
    """Parse the report; sections are ``frameworks``, ``controllers`` and ``operations``."""
    section = ""
    marks = {"frameworks": [], "controllers": [], "operations": []}
    for line in text.splitlines():
        heading = re.match(r"Available (?:Tensor )?(\w+):", line)
        if heading:
            section = heading.group(1).lower()
        marked = re.match(r"\s+\[X\] (.+)", line)
        if marked and section in marks:
            marks[section].append(marked.group(1).strip())
    return marks


def expect(what: str, wanted: Sequence[str], listed: Sequence[str]) -> None:
    for name in wanted:
        if name not in listed:
            fail(f"{what} of Horovod lack {name}: found {', '.join(listed) or 'none'}")


def report(output: str) -> dict[str, Any] | None:
    """The JSON line of a rank, among all that a launcher or framework prints."""
    for line in output.splitlines():
        match = re.search(r"\{\"proof\".*\}", line)
        if match:
            return dict(json.loads(match.group(0)))
    return None


def rank_command(framework: Framework) -> list[str]:
    return [sys.executable, str(HERE / "rank.py"), "--framework", framework.name]


RIGHT = [11.0, 11.0, 1.0, 1.0]  # rank.py's sums for two ranks


def verify(how: str, outputs: Sequence[str], codes: Sequence[int]) -> dict[str, Any]:
    """Every rank exited 0, saw size 2 and got the right sums; returns the report of one of them."""
    said = [answer for answer in map(report, outputs) if answer is not None]
    if any(codes) or len(said) != RANKS or sorted(str(answer["rank"]) for answer in said) != ["0", "1"]:
        shown = "\n".join(outputs)
        fail(f"{how}: exit codes {list(codes)}, {len(said)} of {RANKS} ranks answered\n{shown}")
    for answer in said:
        if answer["size"] != RANKS or answer["local_size"] != RANKS:
            fail(f"{how}: rank {answer['rank']} sees a world of size {answer['size']}")
        if answer["sum"] != RIGHT:
            fail(f"{how}: rank {answer['rank']} reduced to {answer['sum']}, right is {RIGHT}")
        if not answer["moved"]:
            fail(f"{how}: a step of training changed nothing on rank {answer['rank']}")
        if len(answer["nccl_files"]) > 1:
            fail(f"{how}: two NCCLs in one process, the framework's and Horovod's: {', '.join(answer['nccl_files'])}")
    if len({answer["weights"] for answer in said}) != 1:
        fail(f"{how}: after a step on unlike data the weights differ: training is not synchronised")
    for answer in sorted(said, key=lambda answer: str(answer["rank"])):
        print(f"hello from rank {answer['rank']} of {answer['size']}: reduced to {answer['sum']}", flush=True)
    print(f"PROVEN: two processes reduce and train as one, {how}", flush=True)
    return said[0]


def clean_environment() -> dict[str, str]:
    """The environment without anything that a build host may have set for another world."""
    foreign = re.compile(r"HOROVOD_|SLURM_|PMI|OMPI_COMM|RANK$|WORLD_SIZE$|MASTER_")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    return dict(kept, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")


def resolve_own_name(place: str) -> None:
    """Ensure that this machine's host name resolves; that of a build container may be in no name service.

    Horovod 0.28.1 gives Gloo no interface for process sets, so Gloo looks its own host name up, and ends with
    SIGSEGV where that fails (``gloo/transport/tcp/device.cc``, CreateDeviceAttr).
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        if place != "image":
            fail(f"this machine's own name, {name}, does not resolve, and Gloo looks it up: add it to /etc/hosts")
        with Path("/etc/hosts").open("a") as hosts:  # the engine mounts this file for the container: no layer keeps it
            hosts.write(f"127.0.0.1 {name}\n")


def behind(token: str, handler: type[BaseHTTPRequestHandler]) -> type[BaseHTTPRequestHandler]:
    """The handler for who shows the token, with which every path begins (see rendezvous_server.py of recipes/lib):
    Horovod's own server listens to the whole network.
    """

    class Behind(handler):  # type: ignore[misc, valid-type]
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            _, shown, rest = (*self.path.split("/", 2), "", "")[:3]
            if not hmac.compare_digest(shown.partition(":")[0].encode(), token.encode()):
                self.send_error(403)
                return False
            self.path = f"/{rest}"
            return True

    return Behind


def prove_gloo(framework: Framework) -> dict[str, Any]:
    """Two plain processes and Horovod's rendezvous server; no launcher at all."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

    token = secrets.token_hex(16)
    server = RendezvousServer(verbose=0)
    slots = get_host_assignments(parse_hosts(f"localhost:{RANKS}"), RANKS)
    port = server.start(behind(token, RendezvousHandler))
    server.init(slots)
    children = []
    try:
        for slot in slots:
            world = {
                "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo", "HOSTNAME": "localhost", "GLOO_IFACE": "lo",
                "GLOO_RENDEZVOUS_ADDR": f"127.0.0.1:{port}/{token}", "GLOO_RENDEZVOUS_PORT": str(port),
            }  # fmt: skip
            for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
                world[name.upper()] = str(getattr(slot, name))
            environment = {**clean_environment(), **{f"HOROVOD_{name}": value for name, value in world.items()}}
            words = rank_command(framework)
            children.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                             universal_newlines=True))  # fmt: skip
        outputs = [child.communicate(timeout=LIMIT_S)[0] for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
        server.stop()
    codes = [child.returncode for child in children]
    return verify("Gloo, formed by environment variables and a rendezvous server", outputs, codes)


def prove_mpi(framework: Framework, flavour: str) -> None:
    """The same under mpirun with the MPI controller and MPI operations."""
    world = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    words = ["mpirun", "-np", str(RANKS)]
    if flavour == "openmpi":
        words += ["--allow-run-as-root", "--host", f"localhost:{RANKS}", "--bind-to", "none"]
        # A build container may not read another process's memory (its name before and from Open MPI 5.0 on), and has
        # no fabric to probe.
        world.update(OMPI_MCA_btl_vader_single_copy_mechanism="none", OMPI_MCA_smsc="^cma", OMPI_MCA_pml="ob1",
                     OMPI_MCA_btl="self,vader", OMPI_MCA_plm_rsh_agent="")  # fmt: skip
    environment = dict(clean_environment(), **world)
    done = captured(words + rank_command(framework), env=environment, timeout=LIMIT_S)
    answers = [line for line in done.stdout.splitlines() if '{"proof"' in line]
    if len(answers) != RANKS:
        fail(f"MPI: exit code {done.returncode}\n{done.stdout}")
    verify(f"MPI ({flavour})", answers, [done.returncode] * RANKS)


def operations_of(built: dict[str, int]) -> list[str]:
    """Names of the operations that the library has."""
    return [name for name, there in built.items() if there]


def nccl_version(code: int) -> str:
    """``2.29.7`` of NCCL's own number of a version, 22907; before 2.9 it had one digit less (nccl.h)."""
    if code < 1000:  # an older Horovod says only whether it is there
        return ""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def wants_nccl(answer: dict[str, Any], variant: Variant) -> bool:
    """Whether Horovod must have NCCL: wherever the framework has CUDA, unless none was asked for.

    What the build has found of NCCL decides nothing here: the proof would miss what the build has missed.

    Args:
        answer: what ask_framework answered.
    """
    return bool(answer["cuda"]) and variant.nccl != "none"


def prove_nccl(framework: Framework, cuda: str, built: dict[str, int], asked: str) -> None:
    """Horovod's library has NCCL, and shares the framework's: one linked in would be a second beside it.

    Args:
        cuda: version that the framework has. built: what the library says. asked: as of Variant.nccl.
    """
    if not built.get("NCCL"):
        fix = "build it with NCCL (load its module, or --nccl DIR), or say that none is wanted (--nccl none)"
        if asked != "auto":
            fix = f"it was built without the NCCL of {asked}: build it again with that"
        fail(
            f"{framework.horovod_module}.nccl_built() is {built.get('NCCL', 'not there')}: {framework.module} has CUDA "
            f"{cuda}, and this Horovod has no NCCL ({', '.join(operations_of(built)) or 'no operation at all'} only), "
            f"so that gradients on GPUs would go through the host; {fix}"
        )
    spec = importlib.util.find_spec(framework.horovod_module)
    assert spec is not None and spec.origin is not None
    for library in sorted(Path(spec.origin).parent.glob("mpi_lib*.so")):
        if not asks_for_nccl(library.read_bytes()):
            fail(f"{library} holds an NCCL of its own beside the framework's: build it with HOROVOD_NCCL_LINK=SHARED")


def asks_for_nccl(library: bytes) -> bool:
    """Whether an ELF file's strings name ``libnccl.so.N``, as its NEEDED entry does."""
    return re.search(rb"\0libnccl\.so(\.\d+)*\0", library) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description="Prove the Horovod of this image or environment.")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--write", type=Path, help="where to write what was proven (JSON)")
    variant_options(parser)
    asked = parser.parse_args()
    framework = FRAMEWORKS[asked.framework]
    started = time.monotonic()
    variant = variant_of(asked)
    if shutil.which("horovodrun") is None:
        fail(f"there is no horovodrun in PATH: no Horovod is installed beside {sys.executable}")
    resolve_own_name(variant.place)
    with ThreadPoolExecutor(max_workers=1) as pool:
        checked = pool.submit(check_build, framework)  # half of the time: it imports the framework again and again
        answer = ask_framework(framework)
        facts = base_facts(framework, answer, variant)
        mpi = facts["mpi"]
        with_nccl = wants_nccl(answer, variant)
        said = prove_gloo(framework)
        built = said["built"]
        if with_nccl:
            prove_nccl(framework, str(answer["cuda"]), built, variant.nccl)
        proven = ["gloo"]
        if mpi["flavour"]:
            prove_mpi(framework, mpi["flavour"])
            proven.append("mpi")
        abilities = checked.result()
    expect("controllers", ["Gloo"] + (["MPI"] if mpi["flavour"] else []), abilities["controllers"])
    operations = ["Gloo"] + (["MPI"] if mpi["flavour"] else []) + (["NCCL"] if with_nccl else [])
    for listed in (abilities["operations"], operations_of(built)):
        expect("operations", operations, listed)
    abilities["operations"] = operations_of(built)
    nccl = nccl_version(built.get("NCCL", 0))
    print("OPERATIONS: " + ", ".join(operations_of(built)).replace("NCCL", f"NCCL {nccl}".strip()), flush=True)
    if asked.write:
        more = {"facts": facts, "archs": answer["archs"], "keras": said["keras"], "nccl": nccl}
        proof = {"abilities": abilities, "proven": proven, **more}
        asked.write.write_text(json.dumps(proof) + "\n")
    print(f"PROVEN in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        # torch makes this one where an optimizer is made, else in /tmp, where it would stay in the image.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = directory
        main()
