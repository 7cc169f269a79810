"""The programs that build and prove Horovod inside a base, where they decide without one."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.container_programs import CONTAINERS, Programs

BASE: dict[str, object] = {
    "framework": "pytorch",
    "framework_version": "2.13.0+cpu",
    "xla_headers": False,
    "cuda": None,
    "nccl": None,
    "nccl_headers": False,
    "mpi": {"flavour": "", "version": ""},
    "python": "3.11.2",
    "compiler": "12.2.0",
}
NGC: dict[str, object] = {
    **BASE,
    "cuda": "12.8",
    "nccl": "2.25.1",
    "nccl_headers": True,
    "mpi": {"flavour": "openmpi", "version": "4"},
}
TRIXIE: dict[str, object] = {**BASE, "framework_version": "2.6.0+debian", "compiler": "14.2.0"}
TENSORFLOW: dict[str, object] = {**BASE, "framework": "tensorflow", "framework_version": "2.21.0"}


def test_fixes_fit_the_source_they_were_written_for_and_nothing_else(programs: Programs, tmp_path: Path) -> None:
    fixes = programs["fixes"]
    source = {
        "CMakeLists.txt": "project(horovod CXX)\n\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n",
        "horovod/torch/CMakeLists.txt": (
            'if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")\n    set(CMAKE_CXX_STANDARD 14)\nendif()\n'
        ),
        "horovod/tensorflow/CMakeLists.txt": (
            'if (Tensorflow_VERSION VERSION_GREATER_EQUAL "2.10")\n    set(CMAKE_CXX_STANDARD 17)\n'
            "    set(Tensorflow_CXX17 TRUE)\nendif()\n"
        ),
    }
    for name, text in source.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    patch = fixes.file_of("cxx-standard").read_text()
    assert fixes.apply(patch, tmp_path) == 6
    assert all("set(CMAKE_CXX_STANDARD $ENV{HOROVOD_CXX_STANDARD})" in (tmp_path / name).read_text() for name in source)
    with pytest.raises(SystemExit, match="does not fit"):
        fixes.apply(patch, tmp_path)


def write_source(index: Path, name: str, files: dict[str, str]) -> None:
    """A package's source, as an archive."""
    with tarfile.open(index / f"{name}.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def offer(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    """Let pip take packages from there alone."""
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(index)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)


def other_horovod(directory: Path, marker: Path) -> None:
    """Another package under the name of Horovod's release; its setup.py leaves a mark when it is run."""
    directory.mkdir()
    setup = (
        f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='horovod', version='0.28.1')\n"
    )
    files = {"setup.py": setup, "PKG-INFO": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n"}
    write_source(directory, "horovod-0.28.1", files)


def test_nothing_of_another_source_than_horovods_own_is_run(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other_horovod(tmp_path / "index", tmp_path / "it-ran")
    offer(monkeypatch, tmp_path / "index")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "target").mkdir()
    with pytest.raises(SystemExit, match="failed with exit code"):
        programs["build"].fetch(tmp_path / "target")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not (tmp_path / "it-ran").exists()
    assert list((tmp_path / "target").iterdir()) == []


def source_and_wheel(index: Path, marker: Path) -> str:
    """A package in both forms, and the tool that builds it, which leaves a mark; returns its requirement."""
    index.mkdir()
    head = "Metadata-Version: 2.1\nName: {}\nVersion: 1\n"
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for name, code in (("tool", f"open({str(marker)!r}, 'w').close()\n"), ("thing", "")):
        with zipfile.ZipFile(index / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", code)
            wheel.writestr(f"{name}-1.dist-info/METADATA", head.format(name))
            wheel.writestr(f"{name}-1.dist-info/WHEEL", about)
            wheel.writestr(f"{name}-1.dist-info/RECORD", "")
    project = "[build-system]\nrequires = ['tool']\nbuild-backend = 'tool'\n"
    write_source(index, "thing-1", {"pyproject.toml": project, "PKG-INFO": head.format("thing")})
    hashes = (hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(index.glob("thing-1*")))
    return "thing==1 " + " ".join(f"--hash=sha256:{digest}" for digest in hashes) + "\n"


@pytest.mark.parametrize("form", ["both", "source"])
def test_no_tool_without_a_hash_builds_what_has_one(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """pip fetches build requirements without hashes; a base's settings, or a Python without wheels, lead there."""
    requirement = source_and_wheel(tmp_path / "index", tmp_path / "it-ran")
    offer(monkeypatch, tmp_path / "index")
    target = tmp_path / "target"
    if form == "both":
        monkeypatch.setenv("PIP_NO_BINARY", ":all:")
        programs["install"].by_hash("download", requirement, "--dest", str(target))
        assert [path.name for path in target.iterdir()] == ["thing-1-py3-none-any.whl"]
    else:
        (tmp_path / "index/thing-1-py3-none-any.whl").unlink()
        with pytest.raises(SystemExit, match="failed with exit code"):
            programs["install"].by_hash("download", requirement, "--dest", str(target))
    assert not (tmp_path / "it-ran").exists()


def test_keras_comes_by_its_hash_for_each_tensorflow(programs: Programs) -> None:
    keras_of = programs["install"].keras_of
    for minor in range(16, 22):
        text = keras_of(f"2.{minor}.0+nv25.2")
        assert re.fullmatch(rf"tf_keras==2\.{minor}\.\d+ \\\n    --hash=sha256:[0-9a-f]{{64}}\n", text)
    with pytest.raises(SystemExit, match="no tf_keras is known for TensorFlow"):
        keras_of("2.99.1")


def test_every_fix_says_what_it_removes_and_for_which_versions(programs: Programs) -> None:
    patches = sorted((CONTAINERS / "fixes").glob("*.patch"))
    for patch in patches:
        head = patch.read_text().split("--- a/")[0]
        assert head.startswith("Removes: ")
        assert "\nRange:   " in head
        lines = patch.read_text().splitlines()
        assert 0 < sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in lines) <= 16
    needed = programs["fixes"].needed
    without = {**TENSORFLOW, "gpu_stream_value": False}
    known = {*needed(BASE), *needed(without), *needed(TRIXIE), *needed(NGC)}
    assert known == {patch.stem for patch in patches}
    assert needed(BASE) == needed({**TENSORFLOW, "xla_headers": True}) == ["cxx-standard"]
    assert needed(TENSORFLOW) == ["cxx-standard", "xla-ops-left-out"]
    # Also where no compiler is there yet.
    assert needed(TRIXIE) == needed({**BASE, "compiler": ""}) == ["cxx-standard", "gcc-13-headers"]


@pytest.mark.parametrize(
    ("framework", "version", "asked", "standard"),
    [
        ("pytorch", "2.13.0+cpu", "auto", "17"),
        ("pytorch", "2.0.1", "auto", "14"),
        ("pytorch", "2.0.1", "20", "20"),
        ("tensorflow", "2.21.0", "auto", "17"),
        ("tensorflow", "1.15.5+nv", "auto", "14"),
    ],
)
def test_the_cxx_standard_is_what_the_frameworks_headers_want(
    programs: Programs, framework: str, version: str, asked: str, standard: str
) -> None:
    chosen = programs["build"].cxx_standard(programs["frameworks"].FRAMEWORKS[framework], version, asked)
    assert chosen == standard


def test_what_is_promised_is_required(programs: Programs) -> None:
    torch = programs["frameworks"].FRAMEWORKS["pytorch"]
    plain = programs["build"].switches(torch, BASE, "17", [])
    assert plain["HOROVOD_WITH_PYTORCH"] == plain["HOROVOD_WITH_GLOO"] == plain["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in plain
    gpu = programs["build"].switches(torch, NGC, "20", [80, 90])
    assert gpu["HOROVOD_WITH_MPI"] == "1"
    assert (gpu["HOROVOD_GPU_OPERATIONS"], gpu["HOROVOD_NCCL_LINK"]) == ("NCCL", "SHARED")
    assert (gpu["HOROVOD_BUILD_CUDA_CC_LIST"], gpu["HOROVOD_CXX_STANDARD"]) == ("80,90", "20")


def test_an_mpi_is_used_as_detected_or_not_at_all_or_is_the_requested_one(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    frameworks = programs["frameworks"]
    found = {"flavour": "openmpi", "version": "4.1.4"}
    monkeypatch.setattr(frameworks, "mpi_flavour", lambda: found)
    assert frameworks.chosen_mpi("auto") == frameworks.chosen_mpi("openmpi") == found
    assert frameworks.chosen_mpi("none") == {"flavour": "", "version": ""}
    with pytest.raises(SystemExit, match="mpich was asked for"):
        frameworks.chosen_mpi("mpich")


def test_an_nccl_of_a_module_is_found_and_passed_to_the_compiler(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frameworks, build = programs["frameworks"], programs["build"]
    monkeypatch.setattr(frameworks, "_NCCL_HEADERS", (str(tmp_path / "usr/nccl.h"),))
    for name in frameworks._NCCL_HOMES:
        monkeypatch.delenv(name, raising=False)
    assert frameworks.nccl_home("auto") == ""
    assert frameworks.nccl_header("auto") is None
    home = tmp_path / "nccl"
    (home / "include").mkdir(parents=True)
    (home / "include/nccl.h").write_text("")
    monkeypatch.setenv("EBROOTNCCL", str(home))
    assert frameworks.nccl_home("auto") == frameworks.nccl_home(str(home)) == str(home)
    assert frameworks.nccl_header("auto") == home / "include/nccl.h"
    assert frameworks.nccl_header("none") is None
    with pytest.raises(SystemExit, match="there is no"):
        frameworks.nccl_home(str(tmp_path))
    torch = frameworks.FRAMEWORKS["pytorch"]
    assert build.switches(torch, NGC, "17", [80], str(home))["HOROVOD_NCCL_HOME"] == str(home)
    assert "HOROVOD_NCCL_HOME" not in build.switches(torch, NGC, "17", [80])
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/nccl.h").write_text("")
    assert frameworks.nccl_home("auto") == ""


def test_outside_an_image_nothing_of_the_machine_is_changed(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither packages nor /etc/hosts: what is missing is reported."""
    prove, build = programs["prove"], programs["build"]

    def unknown(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(prove.socket, "getaddrinfo", unknown)
    monkeypatch.setattr(prove.socket, "gaierror", OSError)
    with pytest.raises(SystemExit, match="does not resolve"):
        prove.resolve_own_name("environment")
    monkeypatch.setattr(build.shutil, "which", lambda name: None if name == "g++" else "/usr/bin/" + name)
    with pytest.raises(SystemExit, match="PATH lacks g"):
        build.ensure_tools("environment", str(prove.HERE))


def test_the_wheels_key_follows_what_goes_into_it(programs: Programs) -> None:
    build, torch = programs["build"], programs["frameworks"].FRAMEWORKS["pytorch"]

    def key(facts: dict[str, object], standard: str = "17", nvcc: str = "", archs: tuple[int, ...] = (80,)) -> str:
        return str(build.wheel_key(facts, build.switches(torch, facts, standard, list(archs)), nvcc))

    keys = {key(BASE), key(BASE, "20"), key({**BASE, "python": "3.12.3"})}
    keys |= {key(NGC, nvcc="12.4.131"), key(NGC, nvcc="13.0.88"), key(NGC, nvcc="13.0.88", archs=(80, 90))}
    assert len(keys) == 6
    assert key(BASE) == key(dict(reversed(BASE.items())))


def test_check_build_is_read_by_section(programs: Programs) -> None:
    text = """Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [X] NCCL
    [ ] MPI
    [X] Gloo
"""
    assert programs["prove"].parse_check_build(text) == {
        "frameworks": ["PyTorch"],
        "controllers": ["Gloo"],
        "operations": ["NCCL", "Gloo"],
    }


ANSWER = {
    "proof": 1,
    "size": 2,
    "local_size": 2,
    "sum": [11.0, 11.0, 1.0, 1.0],
    "moved": True,
    "weights": "a1",
    "nccl_files": ["/usr/lib/libnccl.so.2"],
}


def outputs_with(**other: object) -> list[str]:
    """What two ranks print among other things; ``other``: what is wrong on rank 1."""
    return [f"banner\nnoise {json.dumps({**ANSWER, 'rank': rank, **(other if rank else {})})}\n" for rank in (0, 1)]


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
def test_a_proof_that_proves_nothing_fails(
    programs: Programs, outputs: list[str], codes: list[int], complaint: str
) -> None:
    with pytest.raises(SystemExit, match=complaint):
        programs["prove"].verify("test", outputs, codes)
    programs["prove"].verify("test", outputs_with(), [0, 0])


class Library:
    """Horovod's functions that say what is compiled in, as an older one has them."""

    def __init__(self, nccl: int) -> None:
        self.nccl = nccl

    def nccl_built(self) -> int:
        return self.nccl

    def mpi_built(self) -> bool:
        return False

    def gloo_built(self) -> bool:
        return True


def test_the_library_itself_says_how_it_reduces(programs: Programs) -> None:
    built, prove = programs["rank"].built, programs["prove"]
    assert built(Library(22907)) == {"NCCL": 22907, "MPI": 0, "Gloo": 1}
    assert prove.operations_of(built(Library(22907))) == ["NCCL", "Gloo"]
    assert prove.operations_of(built(Library(0))) == ["Gloo"]
    assert [prove.nccl_version(code) for code in (22907, 2804, 1, 0)] == ["2.29.7", "2.8.4", "", ""]


@pytest.mark.parametrize(
    ("cuda", "nccl", "wanted"),
    [("13.0", "auto", True), ("13.0", "/opt/nccl", True), ("13.0", "none", False), (None, "auto", False)],
)
def test_nccl_is_demanded_wherever_the_framework_has_cuda(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, cuda: str | None, nccl: str, wanted: bool
) -> None:
    """Also where no header of it is found, so that the build made a Horovod without it."""
    monkeypatch.setattr(programs["frameworks"], "_NCCL_HEADERS", ())
    variant = programs["frameworks"].Variant(nccl=nccl)
    assert programs["prove"].wants_nccl({"cuda": cuda}, variant) is wanted


def installed_horovod(site: Path, strings: bytes) -> None:
    (site / "horovod/torch").mkdir(parents=True)
    for name in ("horovod/__init__.py", "horovod/torch/__init__.py"):
        (site / name).write_text("")
    (site / "horovod/torch/mpi_lib_v2.cpython-311.so").write_bytes(strings)


@pytest.mark.parametrize(
    ("strings", "nccl", "asked", "complaint"),
    [
        (
            b"\0libc.so.6\0",
            0,
            "auto",
            r"horovod\.torch\.nccl_built\(\) is 0: torch has CUDA 13\.0, and this Horovod has no NCCL \(Gloo only\), "
            r"so that .* the host; build it with NCCL \(load its module, or --nccl DIR\), or .* \(--nccl none\)",
        ),
        (b"\0libc.so.6\0", 0, "/opt/nccl", "no NCCL .* it was built without the NCCL of /opt/nccl"),
        (b"\0NCCL_NET_PLUGIN libnccl-net.so\0libnccl-net.so\0", 22907, "/opt/nccl", "holds an NCCL of its own beside"),
        (b"\0libnccl.so.2\0", 22907, "/opt/nccl", ""),
    ],
)
def test_a_horovod_without_nccl_is_distinguished_from_one_that_holds_its_own(
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    strings: bytes,
    nccl: int,
    asked: str,
    complaint: str,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    installed_horovod(tmp_path, strings)
    monkeypatch.syspath_prepend(str(tmp_path))
    prove, torch = programs["prove"], programs["frameworks"].FRAMEWORKS["pytorch"]
    built = programs["rank"].built(Library(nccl))
    if not complaint:
        prove.prove_nccl(torch, "13.0", built, asked)
        return
    with pytest.raises(SystemExit, match=f"(?s)PROOF FAILED: .*{complaint}"):
        prove.prove_nccl(torch, "13.0", built, asked)


def test_mapped_files_of_nccl_are_found_and_its_plugins_are_not(programs: Programs) -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libnccl.so.2.25.1\n"
        "7f02-7f03 r--p 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libnccl.so.2.25.1\n"
        "7f04-7f05 r-xp 00000000 08:01 2  /opt/hpcx/lib/libnccl-net.so\n7f06-7f07 rw-p 00000000 00:00 0\n"
    )
    assert programs["rank"].mapped_nccl(maps) == ["/usr/lib/x86_64-linux-gnu/libnccl.so.2.25.1"]


def test_pinned_requirements_keep_their_hashes_and_only_what_is_needed(programs: Programs) -> None:
    install = programs["install"]
    text = (CONTAINERS / "requirements.txt").read_text()
    pinned = install.pinned(text, ["psutil", "cffi"])
    names = [line.split("==")[0] for line in pinned.splitlines() if not line.startswith(" ")]
    assert set(names) == {"psutil", "cffi"}
    assert pinned.count("--hash=sha256:") > 10
    wanted = {*install.REQUIRED, *install.BUILD_TOOLS}
    assert {install.plain(line.split("==")[0]) for line in text.splitlines() if "==" in line} == wanted


def test_what_the_constraint_file_names_is_left_to_it(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "constraint.txt"
    file.write_text("# of the base\ntorch==2.7\nPyYAML==5.4\nmarkdown_it-py @ file:///x\n")
    monkeypatch.setenv("PIP_CONSTRAINT", f"{file} /nowhere")
    assert programs["install"].constrained() == {"torch", "pyyaml", "markdown-it-py"}


@pytest.mark.parametrize(
    ("text", "pmi"),
    [
        ("mca:pmix:isolated:version:mca:2.1.0\nmca:pmix:ext3x:version:mca:2.1.0\n", ["pmix"]),
        ("mca:pmix:s1:version\nmca:pmix:s2:version\nmca:pmix:pmix3x:version\n", ["pmi1", "pmi2", "pmix"]),
        ("ompi:version:full:5.0.7\nmca:mtl:ofi:version\n", ["pmix"]),
        ("mca:pmix:isolated:version\nmca:pmix:flux:version\n", []),
    ],
)
def test_pmi_of_open_mpi_is_what_its_components_are(programs: Programs, text: str, pmi: list[str]) -> None:
    assert programs["describe"].pmi_of_openmpi(text) == pmi


def test_the_mpi_that_horovod_was_linked_to_is_in_its_library(programs: Programs) -> None:
    assert programs["describe"].mpi_abi(b"\0libc.so.6\0libmpi.so.40\0") == "libmpi.so.40"
    assert programs["describe"].mpi_abi(b"\0libc.so.6\0") == ""


def test_what_runs_inside_bases_is_python_38() -> None:
    """Words and library alike: TensorFlow 1 images have no newer one."""
    recipes = CONTAINERS.parents[1] / "recipes"
    files = [*CONTAINERS.glob("*.py"), *recipes.rglob("*.py")]
    words = ["vermin", "--target=3.8-", "--violations", "--no-tips", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Minimum required versions: 3.8" in done.stdout


def test_the_two_dockerfiles_differ_only_in_the_framework() -> None:
    """What one of them learns, the other must: only the base, the framework's name and Keras may differ."""
    texts = {name: (CONTAINERS.parent / name / "Dockerfile").read_text() for name in ("pytorch", "tensorflow")}
    steps = {
        name: [
            re.sub(r"nvcr.io/\S+", "BASE", line).replace(name, "FRAMEWORK")
            for line in text.splitlines()
            if line and not line.startswith("#") and "KERAS" not in line
        ]
        for name, text in texts.items()
    }
    assert steps["pytorch"] == steps["tensorflow"]
