"""Which CUDA toolkit and NCCL Horovod is compiled with: wrong ones are refused before anything is compiled."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.compiler import c_compiler
from tests.support.container_programs import CONTAINERS, Programs

PARTS = ("include/cuda_runtime.h", "lib64/libcudart.so")
ARCHITECTURES = (75, 80, 86, 90, 100)
TORCH = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


def nvcc_script(version: str, top: str) -> str:
    """A program that answers as nvcc does; ``top``: where it says that its toolkit is."""
    listed = "\\n".join(f"compute_{each}" for each in (*ARCHITECTURES, "90a"))
    return (
        f'#!/bin/sh\ncase "$1" in\n--version) echo "Cuda compilation tools, release 0, V{version}" ;;\n'
        f"--list-gpu-arch) printf '{listed}\\n' ;;\n--dryrun) printf '#$ _SPACE_= \\n#$ TOP={top}\\n' >&2 ;;\nesac\n"
    )


def make_toolkit(root: Path, version: str = "13.0.88", parts: tuple[str, ...] = PARTS) -> Path:
    """A toolkit made of files; returns its root."""
    for name in ("bin/nvcc", *parts):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "bin/nvcc").write_text(nvcc_script(version, f"{root}/bin/.."))
    (root / "bin/nvcc").chmod(0o755)
    return root


@pytest.fixture
def choose(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``cuda.toolkit`` on a machine that has no CUDA but what its variables name."""
    cuda = programs["cuda"]
    monkeypatch.setattr(cuda, "_USUAL", str(tmp_path / "usual"))
    monkeypatch.setattr(cuda, "own_root", lambda: tmp_path / "own")

    def chosen(version: str = "13.0", place: str = "environment", **environment: object) -> Any:
        return cuda.toolkit(version, place, {name: str(value) for name, value in environment.items()})

    return chosen


def test_the_toolkit_of_the_frameworks_cuda_is_taken_wherever_it_is(choose: Callable[..., Any], tmp_path: Path) -> None:
    older, right = make_toolkit(tmp_path / "12", "12.4.131"), make_toolkit(tmp_path / "13")
    expected = (str(right), "13.0.88", ARCHITECTURES)
    assert choose(CUDA_HOME=right, PATH="") == expected
    assert choose(PATH=f"{older}/bin:{right}/bin", EBROOTCUDA=right) == expected
    assert choose(CUDA_HOME=older, PATH=f"{right}/bin") == expected
    assert choose("12.6", CUDA_HOME=older, PATH=f"{right}/bin")[0] == str(older)
    make_toolkit(tmp_path / "usual")
    assert choose(PATH=f"{older}/bin")[0] == str(tmp_path / "usual")


def test_conda_and_debian_lay_a_toolkit_out_in_their_own_ways(choose: Callable[..., Any], tmp_path: Path) -> None:
    conda = ("targets/x86_64-linux/include/cuda_runtime.h", "targets/x86_64-linux/lib/libcudart.so")
    debian = ("include/cuda_runtime.h", "lib/x86_64-linux-gnu/libcudart.so")
    for name, parts in (("conda", conda), ("debian", debian)):
        root = make_toolkit(tmp_path / name, parts=parts)
        assert choose(PATH=f"{root}/bin")[0] == str(root)


@pytest.mark.parametrize("form", ["script", "link"])
def test_an_nvcc_that_stands_for_another_leads_to_the_real_toolkit(
    choose: Callable[..., Any], tmp_path: Path, form: str
) -> None:
    """The root is where the real one is: CMake finds no cudart beside a script."""
    root = make_toolkit(tmp_path / "cuda")
    stand_in = tmp_path / "tools/bin/nvcc"
    stand_in.parent.mkdir(parents=True)
    if form == "link":
        stand_in.symlink_to(root / "bin/nvcc")
    else:
        stand_in.write_text(f'#!/bin/sh\nexec {root}/bin/nvcc "$@"\n')
        stand_in.chmod(0o755)
    assert choose(PATH=str(stand_in.parent))[0] == str(root)


@pytest.mark.parametrize(
    ("made", "variables", "place", "complaint"),
    [
        ({}, {}, "environment", "no toolkit of CUDA 13 is here .*no nvcc in PATH.*fix: load the module of CUDA 13"),
        ({}, {}, "image", "there is no nvcc in PATH.*fix: take a base that has the toolkit of CUDA 13"),
        ({"version": "12.4.131"}, {"CUDA_HOME": "cuda"}, "environment", "cuda/bin/nvcc is of CUDA 12.4.131; fix: load"),
        ({"version": "11.7.64"}, {"PATH": "cuda/bin"}, "image", "cuda/bin/nvcc is of CUDA 11.7.64; fix: take a base"),
        ({"version": "x"}, {"PATH": "cuda/bin"}, "image", "cuda/bin/nvcc does not say its version"),
        ({"parts": PARTS[:1]}, {"PATH": "cuda/bin"}, "environment",
         "cuda, where .*nvcc .CUDA 13.0.88. belongs, has no libcudart.so; fix"),
        ({"parts": PARTS[1:]}, {"PATH": "cuda/bin"}, "environment", "has no cuda_runtime.h; fix: load the module"),
        ({"parts": ()}, {"PATH": "cuda/bin"}, "environment", "has no cuda_runtime.h and no libcudart.so; fix"),
    ],
)  # fmt: skip
def test_a_toolkit_that_does_not_fit_is_refused_with_what_to_load(
    choose: Callable[..., Any],
    tmp_path: Path,
    made: dict[str, Any],
    variables: dict[str, str],
    place: str,
    complaint: str,
) -> None:
    if made:
        make_toolkit(tmp_path / "cuda", **made)
    environment = {name: tmp_path / below for name, below in variables.items()}
    with pytest.raises(SystemExit, match=complaint):
        choose(place=place, **{"PATH": "", **environment})


def test_nvcc_comes_from_the_package_index_only_where_the_framework_is_of_its_cuda(
    choose: Callable[..., Any], programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "own/lib").mkdir(parents=True)
    (tmp_path / "own/lib/libcudart.so.13").write_text("")
    found = choose(PATH="")
    assert (found.root, found.version) == (programs["cuda"].INDEX, "13.0.88")
    assert {80, 90, 120} <= set(found.architectures)
    older = make_toolkit(tmp_path / "12", "12.4.131")
    assert choose(PATH=f"{older}/bin").root == programs["cuda"].INDEX
    with pytest.raises(SystemExit, match="no toolkit of CUDA 12 is here"):
        choose("12.8", PATH="")
    right = make_toolkit(tmp_path / "13")
    assert choose(PATH=f"{right}/bin").root == str(right)


def test_cmake_torch_and_horovods_helper_are_led_to_one_toolkit(programs: Programs) -> None:
    led = programs["cuda"].variables("/opt/cuda", {"PATH": "/usr/bin", "CUDA_HOME": "/elsewhere"})
    assert led == {"CUDA_HOME": "/opt/cuda", "HOROVOD_CUDA_HOME": "/opt/cuda", "PATH": "/opt/cuda/bin:/usr/bin"}


def test_what_comes_from_the_package_index_has_hashes(programs: Programs) -> None:
    for file, names in (("cuda.txt", {"nvidia-cuda-nvcc", "nvidia-cuda-runtime"}), ("cmake.txt", {"cmake"})):
        text = (CONTAINERS / file).read_text()
        lines = [line for line in text.splitlines() if not line.startswith(" ")]
        assert names <= {line.partition("==")[0] for line in lines}
        assert programs["install"].pinned(text, [line.partition("==")[0] for line in lines]) == text
        assert text.count("--hash=sha256:") >= 2 * len(lines)


@pytest.mark.parametrize(
    ("requested", "own", "chosen"),
    [
        ("auto", TORCH, [75, 80, 86, 90, 100]),  # this nvcc does not know 120
        ("auto", ["sm_60", "sm_80", "sm_89", "compute_90"], [80, 90]),
        ("auto", ["sm_90a", "sm_80"], [80, 90]),
        ("auto", [], [80, 90]),
        ("80", TORCH, [80]),
        ("90,8.0,sm_86", TORCH, [80, 86, 90]),
        ("90a", TORCH, [90]),  # Horovod's helper takes numbers only
    ],
)
def test_architectures_are_the_frameworks_cut_to_what_nvcc_can_do_or_the_users(
    programs: Programs, requested: str, own: list[str], chosen: list[int]
) -> None:
    assert programs["cuda"].architectures(requested, own, ARCHITECTURES, "13.0.88") == chosen


@pytest.mark.parametrize(
    ("requested", "own", "complaint"),
    [
        ("80,70", TORCH, r"nvcc 13.0.88 compiles for no GPU of architecture 70 \(it knows 75, .*; fix: leave it out"),
        ("ampere", TORCH, "'ampere' is no CUDA architecture; fix: numbers such as 80,90, or auto"),
        ("80+PTX", TORCH, "'80.PTX' is no CUDA architecture"),
        ("auto", ["sm_37", "sm_70"], "none of the framework's architectures .sm_37, sm_70; it knows.*fix: name those"),
        (",", TORCH, "compiles for none of"),
    ],
)
def test_an_architecture_that_nvcc_does_not_know_is_refused(
    programs: Programs, requested: str, own: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit, match=complaint):
        programs["cuda"].architectures(requested, own, ARCHITECTURES, "13.0.88")


def make_nccl(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        text = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 7\n" if name.endswith(".h") else ""
        (root / name).write_text(text)
    return root


@pytest.fixture
def no_nccl(programs: Programs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """``frameworks`` on a machine without any NCCL."""
    frameworks = programs["frameworks"]
    monkeypatch.setattr(frameworks, "_NCCL_HEADERS", (str(tmp_path / "usr/include/nccl.h"),))
    monkeypatch.setattr(frameworks, "packaged_nccl", list)
    for name in frameworks._NCCL_HOMES:
        monkeypatch.delenv(name, raising=False)
    return frameworks


def test_the_nccl_that_the_framework_has_loaded_comes_before_all_others(
    no_nccl: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = make_nccl(tmp_path / "site/nvidia/nccl", "include/nccl.h", "lib/libnccl.so.2")
    module = make_nccl(tmp_path / "module", "include/nccl.h", "lib/libnccl.so")
    make_nccl(tmp_path / "usr", "include/nccl.h")
    monkeypatch.setenv("EBROOTNCCL", str(module))
    loaded = str(own / "lib/libnccl.so.2")
    assert no_nccl.nccl_home("auto", loaded) == str(own)
    assert no_nccl.nccl_problem("auto", loaded) == ""  # its package has no libnccl.so
    assert no_nccl.nccl_home(str(module), loaded) == str(module)
    assert no_nccl.nccl_home("auto") == ""
    (tmp_path / "usr/include/nccl.h").unlink()
    assert no_nccl.nccl_home("auto") == str(module)
    monkeypatch.delenv("EBROOTNCCL")
    monkeypatch.setattr(no_nccl, "packaged_nccl", lambda: [str(own)])
    assert no_nccl.nccl_home("auto") == str(own)


def test_a_cuda_framework_without_a_whole_nccl_is_refused_unless_none_is_wanted(
    programs: Programs, no_nccl: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = no_nccl.FRAMEWORKS["pytorch"]
    found = {"version": "2.13.0+cu130", "cuda": "13.0", "nccl_file": "", "archs": TORCH}

    def gpu(nccl: str = "auto", **other: object) -> Any:
        return programs["build"].gpu_of(torch, {**found, **other}, no_nccl.Variant(nccl=nccl), "auto")

    fix = "fix: load NCCL's module, install nvidia-nccl-cu13 with pip .*--nccl none"
    with pytest.raises(SystemExit, match=f"pytorch 2.13.0.cu130 is of CUDA 13.0, .*no nccl.h in .*{fix}"):
        gpu()
    header = make_nccl(tmp_path / "half", "include/nccl.h")
    monkeypatch.setenv("NCCL_HOME", str(header))
    with pytest.raises(SystemExit, match=r"half/include/nccl.h is there, and no libnccl.so or libnccl.so.2 beside it"):
        gpu()
    monkeypatch.setattr(programs["cuda"], "_USUAL", str(tmp_path / "usual"))
    for name in (*programs["cuda"]._HOMES, "PATH"):
        monkeypatch.delenv(name, raising=False)
    assert gpu(nccl="none") is None
    assert gpu(cuda=None) is None
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", "12.4.131")))  # torch compiles with it
    with pytest.raises(SystemExit, match=r"cuda/bin/nvcc is of CUDA 12.4.131; fix: take a base"):
        gpu(nccl="none")
    make_toolkit(tmp_path / "cuda")
    assert gpu(nccl="none").record() | {"cuda_architectures": []} == {
        "cuda_architectures": [], "ptx": 100, "nvcc": "13.0.88", "nccl": ""
    }  # fmt: skip


def test_what_is_compiled_is_recorded(
    programs: Programs, no_nccl: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build, torch = programs["build"], no_nccl.FRAMEWORKS["pytorch"]
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    monkeypatch.setattr(programs["install"], "packages", lambda: tmp_path / "site")
    own = make_nccl(tmp_path / "site/nvidia/nccl", "include/nccl.h", "lib/libnccl.so.2")
    found = {"version": "2.13", "cuda": "13.0", "nccl_file": str(own / "lib/libnccl.so.2"), "archs": TORCH}
    gpu = build.gpu_of(torch, found, no_nccl.AS_FOUND, "80,90")
    assert gpu.record() == {"cuda_architectures": [80, 90], "ptx": 90, "nvcc": "13.0.88", "nccl": "2.29.7"}
    assert (gpu.nccl, gpu.beside) == (str(own), True)
    facts = {"framework_version": "2.13", "cuda": "13.0", "nccl_headers": True, "mpi": {"flavour": ""}}
    # One beside Horovod is found in every environment: the wheel has no directory of the first one for it.
    chosen = build.switches(torch, facts, "17", gpu.architectures, build.NCCL_OF_PIP)
    assert chosen["LDFLAGS"].endswith("-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib")
    assert "HOROVOD_NCCL_HOME" not in chosen


def shared_library(directory: Path, *flags: str) -> bytes:
    (directory / "x.c").write_text("int x;\n")
    words = [c_compiler(), "-shared", "-fPIC", "-o", str(directory / "x.so"), str(directory / "x.c"), *flags]
    subprocess.run(words, check=True)
    return (directory / "x.so").read_bytes()


def nccl_link(directory: Path) -> tuple[str, ...]:
    """Flags that link an NCCL, of which only the name is real."""
    shared_library(directory, "-Wl,-soname,libnccl.so.2")
    (directory / "x.so").rename(directory / "libnccl.so")
    return ("-Wl,--no-as-needed", f"-L{directory}", "-lnccl")


def make_wheel(path: Path, library: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("horovod/torch/mpi_lib_v2.so", library)
        wheel.writestr("horovod-0.28.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
        wheel.writestr(
            "horovod-0.28.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("horovod-0.28.1.dist-info/RECORD", "horovod/torch/mpi_lib_v2.so,,\n")
    return path


def test_a_librarys_directories_and_needs_are_read(programs: Programs, tmp_path: Path) -> None:
    library = shared_library(tmp_path, "-Wl,-rpath,$ORIGIN/../a:/opt/b", "-Wl,--no-as-needed", "-lm")
    read = programs["wheel_record"].dynamic_section
    found = read(library)
    assert found["runpath"] == ["$ORIGIN/../a", "/opt/b"]
    assert "libm.so.6" in found["needed"]
    for broken in (b"", b"#!/bin/sh\n", library[:70], library[:54] + struct.pack("<HH", 56, 9) + b"\0" * 9):
        with pytest.raises(ValueError, match="library"):
            read(broken)


def test_a_wheel_that_looks_into_the_builds_own_directories_is_refused(programs: Programs, tmp_path: Path) -> None:
    build, work = programs["build"], str(tmp_path / "work")
    lost = make_wheel(tmp_path / "a.whl", shared_library(tmp_path, f"-Wl,-rpath,/opt/b:{work}/cuda/lib"))
    with pytest.raises(SystemExit, match=f"which are gone afterwards.*mpi_lib_v2.so: {work}/cuda/lib"):
        build.examine(lost, "", None, [work])
    lasting = make_wheel(tmp_path / "b.whl", shared_library(tmp_path, f"-Wl,-rpath,$ORIGIN:{work}2/lib"))
    build.examine(lasting, "", None, [work])


def test_a_wheel_carries_its_record_to_where_it_is_installed(programs: Programs, tmp_path: Path) -> None:
    build = programs["build"]
    toolkit = programs["cuda"].Toolkit("/opt/cuda", "13.0.88", ARCHITECTURES)
    gpu = build.Gpu("13.0", toolkit, [80, 90], "", "2.29.7", False)
    library = shared_library(tmp_path, *nccl_link(tmp_path))
    wheel = make_wheel(tmp_path / "horovod-0.28.1-py3-none-any.whl", library)
    flags = '-O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=\\"sm_90,compute_90\\"'
    with pytest.raises(SystemExit, match=r"nvcc was not given the architectures \[80, 90\]; .*no flags"):
        build.examine(wheel, "", gpu, [])
    build.examine(wheel, flags, gpu, [])
    target = tmp_path / "site"
    words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, *words], check=True)
    program = f"import sys; sys.path[:0] = [{str(CONTAINERS)!r}, {str(target)!r}]; import wheel_record, json; "
    program += "print(json.dumps(wheel_record.installed_record()))"
    answer = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(answer) == {"cuda_architectures": [80, 90], "ptx": 90, "nvcc": "13.0.88", "nccl": "2.29.7"}
    assert (target / "horovod-0.28.1.dist-info/gpu-runner.json").is_file()
    assert "gpu-runner.json,sha256=" in (target / "horovod-0.28.1.dist-info/RECORD").read_text()


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"cuda_architectures": [80], "ptx": 80, "nvcc": "13.0.88", "nccl": ""}', True),
        ('{"cuda_architectures": "all", "ptx": 80, "nvcc": "13.0.88", "nccl": ""}', False),
        ('{"cuda_architectures": [80], "ptx": true, "nvcc": "13.0.88", "nccl": ""}', False),
        ('{"cuda_architectures": [80], "ptx": 80, "nvcc": null, "nccl": ""}', False),
        ('{"cuda_architectures": [80], "ptx": 80, "nvcc": "", "nccl": "", "operations": ["NCCL"]}', False),
        ("{}", False), ("[]", False), ("no JSON", False),
    ],
)  # fmt: skip
def test_a_record_that_is_not_of_our_form_is_none(
    text: str, good: bool, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "horovod-0.28.1.dist-info").mkdir()
    (tmp_path / "horovod-0.28.1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n"
    )
    (tmp_path / "horovod-0.28.1.dist-info/gpu-runner.json").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert bool(programs["wheel_record"].installed_record()) is good


def test_a_wheel_that_does_not_load_nccl_is_refused_and_not_taken_from_the_shelf(
    programs: Programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the library's own list of what it loads, whatever the build was given."""
    build, shelf, out = programs["build"], tmp_path / "shelf", tmp_path / "out"
    toolkit = programs["cuda"].Toolkit("/opt/cuda", "13.0.88", ARCHITECTURES)
    gpu = build.Gpu("13.0", toolkit, [80], "", "2.29.7", False)
    flags = '-gencode arch=compute_80,code=\\"sm_80,compute_80\\"'
    (shelf / "k").mkdir(parents=True)
    out.mkdir()
    with_nccl = shared_library(tmp_path, *nccl_link(tmp_path))
    for library, good in ((shared_library(tmp_path), False), (b"libnccl.so.2", False), (with_nccl, True)):
        wheel = make_wheel(shelf / "k/horovod-0.28.1-py3-none-any.whl", library)
        assert build.take_kept("k", out, shelf, with_nccl=True) is good
        assert build.take_kept("k", out, shelf), "a build for CPUs"
        if good:
            build.examine(wheel, flags, gpu, [])
    assert capsys.readouterr().out.count("does not load NCCL: it is not taken") == 2
    wheel = make_wheel(tmp_path / "horovod-0.28.1-py3-none-any.whl", shared_library(tmp_path))
    complaint = r"does not load NCCL as a shared library: horovod/torch/mpi_lib_v2\.so; fix: "
    with pytest.raises(SystemExit, match=complaint):
        build.examine(wheel, flags, gpu, [])
    build.examine(wheel, "", None, [])


def test_a_wheel_for_gpus_that_is_to_have_no_nccl_need_not_load_it(
    programs: Programs, no_nccl: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch has its kernels compiled wherever there is an nvcc, as NVIDIA's images do."""
    build = programs["build"]
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    found = {"version": "2.13.0+cu130", "cuda": "13.0", "nccl_file": "", "archs": ["sm_80"]}
    gpu = build.gpu_of(no_nccl.FRAMEWORKS["pytorch"], found, no_nccl.Variant(nccl="none"), "auto")
    wheel = make_wheel(tmp_path / "horovod-0.28.1-py3-none-any.whl", shared_library(tmp_path))
    build.examine(wheel, '-gencode arch=compute_80,code=\\"sm_80,compute_80\\"', gpu, [])
    with zipfile.ZipFile(wheel) as archive:
        assert json.loads(archive.read("horovod-0.28.1.dist-info/gpu-runner.json"))["nccl"] == ""


def test_the_first_error_of_a_compile_is_in_the_message(programs: Programs) -> None:
    lines = [
        "-- HVD_NVCC_COMPILE_FLAGS = -O3",
        "CMake Error at FindNCCL.cmake:1 (message):",
        "",
        "  Could NOT find NCCL",
        "x.cc:1:1: error: later",
        "error: subprocess-exited-with-error",
    ]
    program = f"print({chr(10).join(lines)!r}); raise SystemExit(%d)"
    compile_with = programs["install"].compile_with
    words = [sys.executable, "-c", program % 3]
    with pytest.raises(SystemExit, match=r"exit code 3; the first error: CMake Error at .*Could NOT find NCCL"):
        compile_with(words, dict(os.environ))
    assert compile_with([sys.executable, "-c", program % 0], dict(os.environ)) == lines[0]
    words = [sys.executable, "-c", "print('a.h:3:10: fatal error: nccl.h: No such file'); raise SystemExit(1)"]
    with pytest.raises(SystemExit, match=r"the first error: a.h:3:10: fatal error: nccl.h: No such file"):
        compile_with(words, dict(os.environ))


def test_a_base_that_pins_another_horovod_does_not_stop_ours_and_keeps_its_other_pins(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NVIDIA's constraint file does; pip's own answer without the override is ResolutionImpossible."""
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("horovod==0.28.1+nv25.2\npsutil==5.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraint))
    wheel = make_wheel(tmp_path / "horovod-0.28.1-py3-none-any.whl", b"")
    install = programs["install"]
    words = ("install", "--no-index", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))
    with pytest.raises(SystemExit, match="failed with exit code"):
        install.pip(*words)
    install.pip(*words, env={**os.environ, **install.UNCONSTRAINED})
    assert (tmp_path / "site/horovod-0.28.1.dist-info").is_dir()
    assert "psutil" in install.constrained()


def test_marks_of_a_distribution_are_overridden_only_in_images(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_BREAK_SYSTEM_PACKAGES", "")  # what is set below goes away with it
    monkeypatch.delenv("PIP_BREAK_SYSTEM_PACKAGES")
    programs["install"].allow_system_packages("environment")
    assert "PIP_BREAK_SYSTEM_PACKAGES" not in os.environ
    programs["install"].allow_system_packages("image")
    assert os.environ["PIP_BREAK_SYSTEM_PACKAGES"] == "1"


@pytest.mark.parametrize(
    ("header", "library", "has"),
    [
        ("void* platform_specific_handle()", b"\0other\0", False),  # TensorFlow 2.21
        ("void* platform_specific_handle()", b"\0_ZN15stream_executor3gpu16AsGpuStreamValueEPNS_6StreamE\0", True),
        ("GpuStreamHandle gpu_stream", b"\0other\0", True),  # older: nothing else to take
    ],
)
def test_tensorflow_without_the_function_for_gpu_streams_gets_the_fix(
    programs: Programs, tmp_path: Path, header: str, library: bytes, has: bool
) -> None:
    stream = tmp_path / "include/tensorflow/compiler/xla/stream_executor/stream.h"
    stream.parent.mkdir(parents=True)
    stream.write_text(header)
    (tmp_path / "libtensorflow_framework.so.2").write_bytes(b"\0x\0")
    (tmp_path / "libtensorflow_cc.so.2").write_bytes(b"\x7fELF" + library)
    assert programs["frameworks"].has_gpu_stream_value([str(tmp_path / "include")]) is has
    facts = {"framework": "tensorflow", "compiler": "12.2", "xla_headers": True, "cuda": "12.5", "nccl_headers": True}
    fixes = programs["fixes"].needed({**facts, "gpu_stream_value": has})
    assert ("gpu-stream-handle" in fixes) is not has


def test_packages_are_where_pip_installs(programs: Programs) -> None:
    assert str(programs["install"].packages()) == sysconfig.get_paths()["platlib"]
