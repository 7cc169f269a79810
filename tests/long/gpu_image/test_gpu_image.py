"""The GPU build of Horovod: compiled by the very Dockerfile on a base with CUDA, examined and tried without a GPU.

``make test-gpu-image`` prints the table; it belongs in docs/proofs.md. No kernel and no call of NCCL runs here.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from runner.core import paths
from runner.core.errors import ProgramFailedError
from runner.core.files import key_of
from runner.core.progress import Silent
from runner.images.building.build import BuiltImage, build
from tests.support.framework_matrix import GLOO, MPI, Row, about, base_of, benchmark, inside, shown_at_the_end

pytestmark = pytest.mark.integration
ROW = Row("torch 2.13, CUDA 13.0, Debian 12, Open MPI 4.1", "pytorch", "standin-cuda")
# As NVIDIA's images pin a Horovod of their own, which no index has.
PIN = "horovod==0.28.1+nv24.1"
CONSTRAINT = "/etc/pip/constraint.txt"
# A base that makes it hard: that pin, and NCCL without the link that compilers look for, as pip's package has it.
HARD = f"echo {PIN} >>{CONSTRAINT}; rm /usr/lib/x86_64-linux-gnu/libnccl.so"
TABLE: list[tuple[str, str]] = []
# After the import, before anything is computed: what is mapped, and what Horovod says of itself.
LOADED = """
import json, horovod.torch as hvd
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
names = ("libnccl.so", "libcudart", "libcuda.so")
found = {name: sorted(path for path in mapped if "/" + name in path) for name in names}
print(json.dumps({**found, "nccl": hvd.nccl_built(), "cuda": hvd.cuda_built()}))
"""
LIBRARY = """
import glob, importlib.util
(library,) = glob.glob(importlib.util.find_spec("horovod").submodule_search_locations[0] + "/torch/mpi_lib*.so")
print(library)
"""
# What the build may add to the base. Everything else that is new in the image was left behind.
ADDED = re.compile(
    r"/(results|opt/(recipes|runner)(/.*)?|usr/local/bin/(horovodrun|cffi-gen-src)"
    r"|usr/local/lib/python3\.11/dist-packages/"
    r"(horovod|cloudpickle|psutil|yaml|_yaml|[Pp]y[Yy][Aa][Mm][Ll]|packaging|cffi|_cffi_backend|pycparser)([-./].*|\.\w.*)?)"
)


@pytest.fixture(scope="module", autouse=True)
def table(pytestconfig: pytest.Config) -> Iterator[None]:
    yield
    shown_at_the_end(pytestconfig, [f"| {what} | {seen} |" for what, seen in TABLE], "| what | seen |", "|---|---|")


@pytest.fixture(scope="module")
def base(engine_client: docker.DockerClient) -> str:
    return base_of(engine_client, ROW)


@dataclass(frozen=True)
class Built:
    """The image on the base as it is, and the one on the base that HARD makes, which is built first."""

    plain: BuiltImage
    hard: BuiltImage


@pytest.fixture(scope="module")
def built(engine_client: docker.DockerClient, base: str) -> Iterator[Built]:
    """Both. Where no wheel is kept, it is compiled on the second of them."""
    with changed(engine_client, base, HARD) as harder:
        hard = build(ROW.framework, harder, engine_client, Silent())
        try:
            yield Built(build(ROW.framework, ROW.base, engine_client, Silent()), hard)
        finally:
            removed(engine_client, hard.reference)


@pytest.fixture(scope="module")
def library(engine_client: docker.DockerClient, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    inner = answer(engine_client, built, LIBRARY)
    container = engine_client.containers.create(built.plain.reference, ["true"], network_mode="none")
    try:
        archive = b"".join(container.get_archive(inner)[0])
    finally:
        container.remove()
    directory = tmp_path_factory.mktemp("library")
    subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True, timeout=60)
    return directory / Path(inner).name


@contextmanager
def changed(client: docker.DockerClient, base: str, command: str, *settings: str) -> Iterator[str]:
    """The base as a shell command and instructions of a Dockerfile have changed it; removed at the end."""
    repository, tag = "gpu-runner/test-cuda-base", key_of(command)
    container = client.containers.create(base, ["-ec", command], entrypoint=["sh"], network_mode="none")
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0, container.logs()
        usual = client.images.get(base).attrs["Config"]
        changes = [f"ENTRYPOINT {json.dumps(usual['Entrypoint'])}", f"CMD {json.dumps(usual['Cmd'])}", *settings]
        container.commit(repository=repository, tag=tag, changes=changes)
    finally:
        container.remove(force=True)
    try:
        yield f"{repository}:{tag}"
    finally:
        removed(client, f"{repository}:{tag}")


def removed(client: docker.DockerClient, name: str) -> None:
    import docker

    with suppress(docker.errors.ImageNotFound):
        client.images.remove(name, force=True)


def answer(client: docker.DockerClient, built: Built, program: str) -> str:
    return inside(client, built.plain.reference, "python3", "-c", program).strip().splitlines()[-1]


def files_of(client: docker.DockerClient, image: str) -> set[str]:
    """Every file and directory of an image, as ``find`` names them."""
    words = ["-c", "find / -xdev \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o -print"]
    listed: bytes = client.containers.run(image, words, entrypoint=["sh"], network_mode="none", remove=True)
    return set(listed.decode("utf-8", "surrogateescape").splitlines())


def test_it_is_built_with_nccl_and_says_so(engine_client: docker.DockerClient, built: Built) -> None:
    facts = about(engine_client, built.plain.reference)
    assert (facts["cuda"], facts["nccl"]) == ("13.0", "2.29.7")
    assert tuple(facts["horovod"]["proven"]) == ROW.proven
    assert "NCCL" in facts["horovod"]["operations"]
    size = int(engine_client.images.get(built.plain.base).attrs["Size"])
    added = built.plain.size_bytes - size
    assert added < 60_000_000
    TABLE.append(("base; Horovod adds", f"{size / 1e9:.2f} GB; {added / 1e6:.0f} MB"))
    seconds = f"{built.hard.seconds:.0f} s; {built.plain.seconds:.0f} s"
    TABLE.append(("built in, wheel compiled where none is kept; again with the kept one", seconds))
    operations = ", ".join(facts["horovod"]["operations"])
    TABLE.append(("operations; controllers run", f"{operations}; {', '.join(ROW.proven)}"))


def test_a_pinned_horovod_and_an_nccl_without_its_link_do_not_matter(
    engine_client: docker.DockerClient, built: Built
) -> None:
    facts = about(engine_client, built.hard.reference)["horovod"]
    assert (facts["version"], tuple(facts["proven"])) == ("0.28.1", ROW.proven)
    assert PIN in inside(engine_client, built.hard.reference, "cat", CONSTRAINT)
    assert facts["wheel_key"] == built.plain.labels["gpu-runner.horovod.wheel"]


def test_it_has_code_for_the_gpus_that_its_record_names(
    engine_client: docker.DockerClient, built: Built, library: Path
) -> None:
    """And for those of the framework: on a GPU without code, Horovod's kernels would not run."""
    facts = about(engine_client, built.plain.reference)
    code = gpu_code(library)
    assert code.compiled == tuple(facts["horovod"]["cuda_architectures"])
    assert code.ptx == (facts["horovod"]["ptx"],)
    of_torch = sorted(int(each.partition("_")[2]) for each in facts["cuda_archs"] if each.startswith("sm_"))
    assert list(code.compiled) == of_torch
    TABLE.append(
        ("sm_ of Horovod's library, by cuobjdump; PTX", f"{', '.join(map(str, code.compiled))}; {code.ptx[0]}")
    )


def test_it_needs_nccl_and_cudas_runtime_as_libraries_and_no_driver(
    engine_client: docker.DockerClient, built: Built
) -> None:
    inner = answer(engine_client, built, LIBRARY)
    dynamic = inside(engine_client, built.plain.reference, "readelf", "--dynamic", inner)
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)
    assert {"libnccl.so.2", "libcudart.so.13", "libc10_cuda.so"} <= set(needed)
    assert not [name for name in needed if name.startswith("libcuda.so")]
    sought = [place for entry in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+?)\]", dynamic) for place in entry.split(":")]
    lasting = ("/usr/", "/lib/", "$ORIGIN")
    assert all(place.startswith(lasting) for place in sought), sought
    TABLE.append(("NEEDED of CUDA's", ", ".join(sorted(name for name in needed if "cud" in name or "nccl" in name))))
    TABLE.append(("RUNPATH", ", ".join(sought) or "none"))


def test_one_nccl_and_one_runtime_are_loaded_and_no_driver_is_needed(
    engine_client: docker.DockerClient, built: Built
) -> None:
    found = json.loads(answer(engine_client, built, LOADED))
    assert len(found["libnccl.so"]) == len(found["libcudart"]) == 1, found
    assert found["libcuda.so"] == []
    assert (found["nccl"], found["cuda"]) == (22907, True)
    TABLE.append(("mapped after the import", ", ".join(found["libnccl.so"] + found["libcudart"])))
    TABLE.append(("nccl_built, cuda_built", f"{found['nccl']}, {found['cuda']}"))


@pytest.mark.parametrize("start", [GLOO, MPI], ids=["Gloo", "MPI"])
def test_two_ranks_train_on_cpus(engine_client: docker.DockerClient, built: Built, start: Sequence[str]) -> None:
    said = inside(engine_client, built.plain.reference, *start, *benchmark(ROW))
    assert "2 ranks" in said
    assert re.search(r"throughput: [\d.]+ images/s", said), said


def test_nothing_is_left_behind(engine_client: docker.DockerClient, built: Built) -> None:
    """Neither in the image nor in the engine."""
    new = files_of(engine_client, built.plain.reference) - files_of(engine_client, built.plain.base)
    assert sorted(path for path in new if not ADDED.fullmatch(path)) == []
    assert engine_client.images.list(name="gpu-runner/horovod-wheel") == []


@dataclass(frozen=True)
class Fault:
    """A wrong setup: what is done to the base, what the refusal must say, and the architectures that are asked for."""

    name: str
    command: str
    says: Sequence[str]
    architectures: str = "auto"


OTHER_CUDA = "Cuda compilation tools, release 12.4, V12.4.131"
FAULTS = (
    Fault("no header of NCCL", "rm /usr/include/nccl.h", ("no nccl.h in /usr/include", "--nccl none")),
    Fault(
        "the compiler of another CUDA",
        f"cd /usr/local/cuda/bin; printf '#!/bin/sh\\necho {OTHER_CUDA}\\n' >nvcc",
        (
            "is of CUDA 13.0",
            "/usr/local/cuda/bin/nvcc is of CUDA 12.4.131",
            "take a base that has the toolkit of CUDA 13",
        ),
    ),
    Fault("no compiler of CUDA", "rm /usr/local/cuda/bin/nvcc", ("there is no nvcc in PATH",)),
    Fault("no libcudart.so", "rm /usr/local/cuda/lib/libcudart.so", ("has no libcudart.so",)),
    Fault("a GPU that this CUDA knows no more", "true", ("compiles for no GPU of architecture 70",), "70,80"),
    Fault("what is no architecture", "true", ("'volta' is no CUDA architecture", "numbers such as 80,90"), "volta"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_wrong_setup_is_refused_before_anything_is_compiled(
    engine_client: docker.DockerClient, base: str, fault: Fault
) -> None:
    began = time.monotonic()
    arguments = {"CUDA_ARCHS": fault.architectures}
    with changed(engine_client, base, fault.command) as wrong, pytest.raises(ProgramFailedError) as caught:
        build(ROW.framework, wrong, engine_client, Silent(), args=arguments)
    said = str(caught.value)
    assert [words for words in fault.says if words not in said] == [], said
    assert time.monotonic() - began < 120
    TABLE.append((f"planted: {fault.name}", f"refused: {fault.says[0]}"))


# The real toolkit lies elsewhere, as in a module; a script starts its compiler, as a site's wrapper does.
WRAPPED = """
mv /usr/local/cuda-13.0 /opt/toolkit
rm /usr/local/cuda
printf '#!/bin/sh\\nexec /opt/toolkit/bin/nvcc "$@"\\n' >/usr/local/bin/nvcc
chmod +x /usr/local/bin/nvcc
echo /opt/toolkit/lib >/etc/ld.so.conf.d/000_cuda.conf
ldconfig
"""


def test_a_compiler_that_a_script_starts_is_found_with_its_toolkit(
    engine_client: docker.DockerClient, base: str, built: Built
) -> None:
    """And gets the wheel that the toolkit itself has compiled: nothing that decides about a wheel is another."""
    with changed(engine_client, base, WRAPPED, "ENV CUDA_HOME=''") as wrapped:
        found = build(ROW.framework, wrapped, engine_client, Silent())
        removed(engine_client, found.reference)
    assert found.labels["gpu-runner.horovod.wheel"] == built.plain.labels["gpu-runner.horovod.wheel"]
    TABLE.append(("planted: nvcc is a script, CUDA_HOME is empty", "the toolkit is found; the same wheel"))


# Newer than any CUDA here: it reads what older ones have compiled.
_PACKAGE = (
    "nvidia-cuda-cuobjdump==13.2.86 --hash=sha256:d332c2ffe78e703ca0a3894be927f83124244e2acf0d792b8c12b4362d44d837"
)


@dataclass(frozen=True)
class GpuCode:
    """Architectures that a library has machine code for, 80 for sm_80, and PTX, which a newer GPU's driver compiles."""

    compiled: tuple[int, ...]
    ptx: tuple[int, ...]


def gpu_code(library: Path) -> GpuCode:
    return GpuCode(_architectures(library, "--list-elf"), _architectures(library, "--list-ptx"))


def _architectures(library: Path, option: str) -> tuple[int, ...]:
    listed = subprocess.run([_cuobjdump(), option, library], capture_output=True, text=True, check=True).stdout
    return tuple(sorted({int(each) for each in re.findall(r"sm_(\d+)\w*\.(?:cubin|ptx)", listed)}))


def _cuobjdump() -> Path:
    tools = paths.ensure_directory(paths.cache("test-tools"))
    place = tools / "cuobjdump-13.2.86"
    program = place / "nvidia/cu13/bin/cuobjdump"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=tools) as scratch:
            requirements = Path(scratch, "requirements.txt")
            requirements.write_text(_PACKAGE + "\n")
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            subprocess.run([*words, "--dest", scratch, "-r", str(requirements)], check=True, timeout=300)
            (wheel,) = Path(scratch).glob("*.whl")
            subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, f"{scratch}/root"], check=True)
            Path(scratch, "root", program.relative_to(place)).chmod(0o755)
            with suppress(OSError):  # another test run was first
                Path(scratch, "root").rename(place)
    return program
