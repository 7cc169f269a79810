"""The programs that build and prove Horovod inside a base, where they decide without one."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.container_programs import CONTAINERS, PROGRAMS
from tests.support.layers import tar_of
from tests.support.package_directories import wheel

build, fixes, frameworks, install, prove = (
    PROGRAMS.build, PROGRAMS.fixes, PROGRAMS.frameworks, PROGRAMS.install, PROGRAMS.prove
)  # fmt: skip
TORCH = frameworks.FRAMEWORKS["pytorch"]
BASE: dict[str, object] = {
    "framework": "pytorch", "framework_version": "2.13.0+cpu", "xla_headers": False, "cuda": None, "nccl": None,
    "nccl_headers": False, "mpi": {"flavour": "", "version": ""}, "python": "3.11.2", "compiler": "12.2.0",
}  # fmt: skip
OPENMPI = {"flavour": "openmpi", "version": "4"}
NGC: dict[str, object] = {**BASE, "cuda": "12.8", "nccl": "2.25.1", "nccl_headers": True, "mpi": OPENMPI}
TRIXIE: dict[str, object] = {**BASE, "framework_version": "2.6.0+debian", "compiler": "14.2.0"}
TENSORFLOW: dict[str, object] = {**BASE, "framework": "tensorflow", "framework_version": "2.21.0"}


def test_fixes_fit_the_source_they_were_written_for_and_nothing_else(tmp_path: Path) -> None:
    source = {
        "": "project(horovod CXX)\n\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n",
        "horovod/torch": 'if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")\n    set(CMAKE_CXX_STANDARD 14)\nendif()\n',
        "horovod/tensorflow": (
            'if (Tensorflow_VERSION VERSION_GREATER_EQUAL "2.10")\n    set(CMAKE_CXX_STANDARD 17)\n'
            "    set(Tensorflow_CXX17 TRUE)\nendif()\n"
        ),
    }
    files = [tmp_path / folder / "CMakeLists.txt" for folder in source]
    for path, text in zip(files, source.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    patch = fixes.file_of("cxx-standard").read_text()
    assert fixes.apply(patch, tmp_path) == 6
    assert all("set(CMAKE_CXX_STANDARD $ENV{HOROVOD_CXX_STANDARD})" in path.read_text() for path in files)
    with pytest.raises(SystemExit, match="does not fit"):
        fixes.apply(patch, tmp_path)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that alone pip may take packages from."""
    settings = {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "index"), "CONFIG_FILE": "/dev/null"}
    for name, value in {**settings, "EXTRA_INDEX_URL": "", "CONSTRAINT": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def write_source(index: Path, name: str, files: dict[str, str]) -> None:
    """A package's source, as an archive."""
    project, _, version = name.partition("-")
    about = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
    texts = {f"{name}/{path}": text.encode() for path, text in {**files, "PKG-INFO": about}.items()}
    (index / f"{name}.tar.gz").write_bytes(gzip.compress(tar_of(*((path, raw, {}) for path, raw in texts.items()))))


def test_nothing_of_another_source_than_horovods_own_is_run(
    index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another package has the name of Horovod's release; its setup.py leaves a mark when it is run."""
    setup = f"open({str(tmp_path / 'it-ran')!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n"
    write_source(index, "horovod-0.28.1", {"setup.py": setup})
    (tmp_path / "target").mkdir()
    with pytest.raises(SystemExit, match="failed with exit code"):
        build.fetch(tmp_path / "target")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (tmp_path / "it-ran").exists()
    assert list((tmp_path / "target").iterdir()) == []


def test_no_tool_without_a_hash_builds_what_has_one(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip fetches build requirements without hashes; a base's settings, or a Python without wheels, lead there."""
    for name, code in (("tool", f"open({str(tmp_path / 'it-ran')!r}, 'w').close()\n"), ("thing", "")):
        file, raw = wheel(name, "1", {f"{name}.py": code.encode()})
        (index / file).write_bytes(raw)
    project = "[build-system]\nrequires = ['tool']\nbuild-backend = 'tool'\n"
    write_source(index, "thing-1", {"pyproject.toml": project})
    hashes = (hashlib.sha256(path.read_bytes()).hexdigest() for path in index.glob("thing-1*"))
    requirement = "thing==1 " + " ".join(f"--hash=sha256:{digest}" for digest in hashes) + "\n"
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    install.by_hash("download", requirement, "--dest", str(tmp_path / "target"))
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["thing-1-py3-none-any.whl"]
    monkeypatch.delenv("PIP_NO_BINARY")
    (index / "thing-1-py3-none-any.whl").unlink()
    with pytest.raises(SystemExit, match="failed with exit code"):
        install.by_hash("download", requirement, "--dest", str(tmp_path / "target"))
    assert not (tmp_path / "it-ran").exists()


def test_what_comes_from_the_package_index_has_hashes() -> None:
    """All of them are kept where only some packages are needed, and there is a Keras for each TensorFlow."""
    texts = {name: (CONTAINERS / f"{name}.txt").read_text() for name in ("cuda", "cmake", "requirements")}
    listed = {
        name: {install.plain(line.partition("==")[0]) for line in text.splitlines() if "==" in line}
        for name, text in texts.items()
    }
    assert {"nvidia-cuda-nvcc", "nvidia-cuda-runtime"} <= listed["cuda"]
    assert listed["cmake"] == {"cmake"}
    assert listed["requirements"] == {*install.REQUIRED, *install.BUILD_TOOLS}
    for name in ("cuda", "cmake"):
        assert install.pinned(texts[name], sorted(listed[name])) == texts[name]
        assert texts[name].count("--hash=sha256:") >= 2 * len(listed[name])
    some = install.pinned(texts["requirements"], ["psutil", "cffi"])
    assert {line.partition("==")[0] for line in some.splitlines() if not line.startswith(" ")} == {"psutil", "cffi"}
    assert some.count("--hash=sha256:") > 10
    for minor in range(16, 22):
        text = install.keras_of(f"2.{minor}.0+nv25.2")
        assert re.fullmatch(rf"tf_keras==2\.{minor}\.\d+ \\\n    --hash=sha256:[0-9a-f]{{64}}\n", text)
    with pytest.raises(SystemExit, match="no tf_keras is known for TensorFlow"):
        install.keras_of("2.99.1")


def test_every_fix_says_what_it_removes_and_for_which_versions() -> None:
    patches = sorted((CONTAINERS / "fixes").glob("*.patch"))
    for patch in patches:
        head = patch.read_text().split("--- a/")[0]
        assert head.startswith("Removes: ")
        assert "\nRange:   " in head
        lines = patch.read_text().splitlines()
        assert 0 < sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in lines) <= 16
    needed = fixes.needed
    known = {*needed(BASE), *needed({**TENSORFLOW, "gpu_stream_value": False}), *needed(TRIXIE), *needed(NGC)}
    assert known == {patch.stem for patch in patches}
    assert needed(BASE) == needed({**TENSORFLOW, "xla_headers": True}) == ["cxx-standard"]
    assert needed(TENSORFLOW) == ["cxx-standard", "xla-ops-left-out"]
    # Also where no compiler is there yet.
    assert needed(TRIXIE) == needed({**BASE, "compiler": ""}) == ["cxx-standard", "gcc-13-headers"]


def test_what_is_promised_is_required() -> None:
    plain = build.switches(TORCH, BASE, "17", [])
    assert plain["HOROVOD_WITH_PYTORCH"] == plain["HOROVOD_WITH_GLOO"] == plain["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in plain
    gpu = build.switches(TORCH, NGC, "20", [80, 90])
    assert gpu["HOROVOD_WITH_MPI"] == "1"
    assert (gpu["HOROVOD_GPU_OPERATIONS"], gpu["HOROVOD_NCCL_LINK"]) == ("NCCL", "SHARED")
    assert (gpu["HOROVOD_BUILD_CUDA_CC_LIST"], gpu["HOROVOD_CXX_STANDARD"]) == ("80,90", "20")
    assert "HOROVOD_NCCL_HOME" not in gpu
    assert build.switches(TORCH, NGC, "17", [80], "/opt/nccl")["HOROVOD_NCCL_HOME"] == "/opt/nccl"
    standards = {  # what the framework's headers want
        ("pytorch", "2.13.0+cpu", "auto"): "17", ("pytorch", "2.0.1", "auto"): "14", ("pytorch", "2.0.1", "20"): "20",
        ("tensorflow", "2.21.0", "auto"): "17", ("tensorflow", "1.15.5+nv", "auto"): "14",
    }  # fmt: skip
    for (framework, version, requested), standard in standards.items():
        assert build.cxx_standard(frameworks.FRAMEWORKS[framework], version, requested) == standard


def test_an_mpi_is_used_as_detected_or_not_at_all_or_is_the_requested_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "mpi_flavour", lambda: OPENMPI)
    assert frameworks.chosen_mpi("auto") == frameworks.chosen_mpi("openmpi") == OPENMPI
    assert frameworks.chosen_mpi("none") == {"flavour": "", "version": ""}
    with pytest.raises(SystemExit, match="mpich was asked for"):
        frameworks.chosen_mpi("mpich")


def test_outside_an_image_nothing_of_the_machine_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither packages, whatever marks its distribution gives them, nor /etc/hosts: what is missing is reported."""

    def unknown(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(prove.socket, "getaddrinfo", unknown)
    monkeypatch.setattr(prove.socket, "gaierror", OSError)
    with pytest.raises(SystemExit, match="does not resolve"):
        prove.resolve_own_name("environment")
    monkeypatch.setattr(build.shutil, "which", lambda name: None if name == "g++" else "/usr/bin/" + name)
    with pytest.raises(SystemExit, match="PATH lacks g"):
        build.ensure_tools("environment", str(CONTAINERS))
    monkeypatch.setenv("PIP_BREAK_SYSTEM_PACKAGES", "")  # what is set below goes away with it
    monkeypatch.delenv("PIP_BREAK_SYSTEM_PACKAGES")
    install.allow_system_packages("environment")
    assert "PIP_BREAK_SYSTEM_PACKAGES" not in os.environ
    install.allow_system_packages("image")
    assert os.environ["PIP_BREAK_SYSTEM_PACKAGES"] == "1"


def test_the_wheels_key_follows_what_goes_into_it() -> None:
    def key(facts: dict[str, object], standard: str = "17", nvcc: str = "", archs: tuple[int, ...] = (80,)) -> str:
        return str(build.wheel_key(facts, build.switches(TORCH, facts, standard, list(archs)), nvcc))

    keys = {key(BASE), key(BASE, "20"), key({**BASE, "python": "3.12.3"})}
    keys |= {key(NGC, nvcc="12.4.131"), key(NGC, nvcc="13.0.88"), key(NGC, nvcc="13.0.88", archs=(80, 90))}
    assert len(keys) == 6
    assert key(BASE) == key(dict(reversed(BASE.items())))


def test_check_build_is_read_by_section() -> None:
    text = "Horovod v0.28.1:\n\nAvailable Frameworks:\n    [ ] TensorFlow\n    [X] PyTorch\n\nAvailable Controllers:\n"
    text += "    [ ] MPI\n    [X] Gloo\n\nAvailable Tensor Operations:\n    [X] NCCL\n    [ ] MPI\n    [X] Gloo\n"
    assert prove.parse_check_build(text) == {
        "frameworks": ["PyTorch"], "controllers": ["Gloo"], "operations": ["NCCL", "Gloo"],
    }  # fmt: skip


def outputs_with(**other: object) -> list[str]:
    """What two ranks print among other things; ``other``: what is wrong on rank 1."""
    answer = {"proof": 1, "size": 2, "local_size": 2, "sum": [11.0, 11.0, 1.0, 1.0], "moved": True, "weights": "a1",
              "nccl_files": ["/usr/lib/libnccl.so.2"]}  # fmt: skip
    return [f"banner\nnoise {json.dumps({**answer, 'rank': rank, **(other if rank else {})})}\n" for rank in (0, 1)]


@pytest.mark.parametrize(
    ("outputs", "codes", "complaint"),
    [
        (outputs_with()[:1], [0, 0], "1 of 2 ranks"),
        (outputs_with(size=1), [0, 0], "world of size 1"),
        (outputs_with(sum=[11.0, 12.0, 1.0, 1.0]), [0, 0], "reduced to"),
        (outputs_with(), [0, 1], "exit codes"),
        (outputs_with(moved=False), [0, 0], "changed nothing"),
        (outputs_with(weights="b2"), [0, 0], "not synchronised"),
        (outputs_with(nccl_files=["/a/libnccl.so.2", "/b/libnccl.so.2"]), [0, 0], "two NCCLs"),
    ],
)
def test_a_proof_that_proves_nothing_fails(outputs: list[str], codes: list[int], complaint: str) -> None:
    with pytest.raises(SystemExit, match=complaint):
        prove.verify("test", outputs, codes)
    prove.verify("test", outputs_with(), [0, 0])


def built(nccl: int) -> dict[str, int]:
    """What Horovod's functions say that is compiled in, as an older one has them."""
    library = SimpleNamespace(nccl_built=lambda: nccl, mpi_built=lambda: False, gloo_built=lambda: True)
    return dict(PROGRAMS.rank.built(library))


def test_a_proofs_server_answers_only_who_shows_its_token() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200, self.path)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), prove.behind("secret", Handler))
    with server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        said = []
        for path in ("/secret:9/global/0", "/secret/global/0", "/global/0", "/secre/global/0", "/", "//", "secret/a/b"):
            client = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            client.request("GET", path)
            answer = client.getresponse()
            said.append(answer.reason if answer.status == 200 else answer.status)
            client.close()
        server.shutdown()
    assert said == ["/global/0", "/global/0", *[403] * 5]


def test_the_library_itself_says_how_it_reduces() -> None:
    assert built(22907) == {"NCCL": 22907, "MPI": 0, "Gloo": 1}
    assert prove.operations_of(built(22907)) == ["NCCL", "Gloo"]
    assert prove.operations_of(built(0)) == ["Gloo"]
    assert [prove.nccl_version(code) for code in (22907, 2804, 1, 0)] == ["2.29.7", "2.8.4", "", ""]


@pytest.mark.parametrize(
    ("cuda", "nccl", "wanted"),
    [("13.0", "auto", True), ("13.0", "/opt/nccl", True), ("13.0", "none", False), (None, "auto", False)],
)
def test_nccl_is_demanded_wherever_the_framework_has_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, nccl: str, wanted: bool
) -> None:
    """Also where no header of it is found, so that the build made a Horovod without it."""
    monkeypatch.setattr(frameworks, "_NCCL_HEADERS", ())
    assert prove.wants_nccl({"cuda": cuda}, frameworks.Variant(nccl=nccl)) is wanted


@pytest.mark.parametrize(
    ("strings", "nccl", "requested", "complaint"),
    [
        (b"\0libc.so.6\0", 0, "auto",
         r"horovod\.torch\.nccl_built\(\) is 0: torch has CUDA 13\.0, and this Horovod has no NCCL \(Gloo only\), "
         r"so that .* the host; build it with NCCL \(load its module, or --nccl DIR\), or .* \(--nccl none\)"),
        (b"\0libc.so.6\0", 0, "/opt/nccl", "no NCCL .* it was built without the NCCL of /opt/nccl"),
        (b"\0NCCL_NET_PLUGIN libnccl-net.so\0libnccl-net.so\0", 22907, "/opt/nccl", "holds an NCCL of its own beside"),
        (b"\0libnccl.so.2\0", 22907, "/opt/nccl", ""),
    ],
)  # fmt: skip
def test_a_horovod_without_nccl_is_distinguished_from_one_that_holds_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strings: bytes, nccl: int, requested: str, complaint: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "horovod/torch").mkdir(parents=True)
    (tmp_path / "horovod/__init__.py").touch()
    (tmp_path / "horovod/torch/__init__.py").touch()
    (tmp_path / "horovod/torch/mpi_lib_v2.cpython-311.so").write_bytes(strings)
    monkeypatch.syspath_prepend(str(tmp_path))
    if not complaint:
        prove.prove_nccl(TORCH, "13.0", built(nccl), requested)
        return
    with pytest.raises(SystemExit, match=f"(?s)PROOF FAILED: .*{complaint}"):
        prove.prove_nccl(TORCH, "13.0", built(nccl), requested)


def test_mapped_files_of_nccl_are_found_and_its_plugins_are_not() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libnccl.so.2.25.1\n"
        "7f02-7f03 r--p 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libnccl.so.2.25.1\n"
        "7f04-7f05 r-xp 00000000 08:01 2  /opt/hpcx/lib/libnccl-net.so\n7f06-7f07 rw-p 00000000 00:00 0\n"
    )
    assert PROGRAMS.rank.mapped_nccl(maps) == ["/usr/lib/x86_64-linux-gnu/libnccl.so.2.25.1"]


def test_an_mpi_is_described_by_its_components_and_by_what_horovod_was_linked_to() -> None:
    pmi = {
        "mca:pmix:isolated:version:mca:2.1.0\nmca:pmix:ext3x:version:mca:2.1.0\n": ["pmix"],
        "mca:pmix:s1:version\nmca:pmix:s2:version\nmca:pmix:pmix3x:version\n": ["pmi1", "pmi2", "pmix"],
        "ompi:version:full:5.0.7\nmca:mtl:ofi:version\n": ["pmix"],
        "mca:pmix:isolated:version\nmca:pmix:flux:version\n": [],
    }
    assert {text: PROGRAMS.describe.pmi_of_openmpi(text) for text in pmi} == pmi
    assert PROGRAMS.describe.mpi_abi(b"\0libc.so.6\0libmpi.so.40\0") == "libmpi.so.40"
    assert PROGRAMS.describe.mpi_abi(b"\0libc.so.6\0") == ""


def test_what_runs_inside_bases_is_python_38() -> None:
    """Words and library alike: TensorFlow 1 images have no newer one."""
    recipes = CONTAINERS.parents[1] / "recipes"
    files = [*CONTAINERS.glob("*.py"), *recipes.rglob("*.py")]
    words = [
        "vermin",
        "--target=3.8-",
        "--violations",
        "--no-tips",
        "--no-parse-comments",
        "--processes=1",
        *map(str, files),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Minimum required versions: 3.8" in done.stdout


def test_the_two_dockerfiles_differ_only_in_the_framework() -> None:
    """What one of them learns, the other must: only the base, the framework's name and Keras may differ."""

    def steps(name: str) -> list[str]:
        lines = (CONTAINERS.parent / name / "Dockerfile").read_text().splitlines()
        kept = (line for line in lines if line and not line.startswith("#") and "KERAS" not in line)
        return [re.sub(r"nvcr.io/\S+", "BASE", line).replace(name, "FRAMEWORK") for line in kept]

    assert steps("pytorch") == steps("tensorflow")
