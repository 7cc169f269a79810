"""Which CUDA toolkit and NCCL Horovod is compiled with: wrong ones are refused before anything is compiled."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiler import c_compiler
from tests.support.container_programs import CONTAINERS, PROGRAMS
from tests.support.package_directories import wheel
from tests.support.shell_files import stand_in

build, cuda, frameworks, install = PROGRAMS.build, PROGRAMS.cuda, PROGRAMS.frameworks, PROGRAMS.install
TORCH = frameworks.FRAMEWORKS["pytorch"]
PARTS = ("include/cuda_runtime.h", "lib64/libcudart.so")
ARCHITECTURES = (75, 80, 86, 90, 100)
OF_TORCH = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
FLAGS = '-gencode arch=compute_80,code=\\"sm_80,compute_80\\"'
NAME, ABOUT = "horovod-0.28.1-py3-none-any.whl", "horovod-0.28.1.dist-info"


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA and no NCCL but what a test makes."""
    monkeypatch.setattr(cuda, "_USUAL", str(tmp_path / "usual"))
    monkeypatch.setattr(cuda, "own_root", lambda: tmp_path / "own")
    monkeypatch.setattr(frameworks, "_NCCL_HEADERS", (str(tmp_path / "usr/include/nccl.h"),))
    monkeypatch.setattr(frameworks, "packaged_nccl", list)
    for name in (*frameworks._NCCL_HOMES, *cuda._HOMES):
        monkeypatch.delenv(name, raising=False)


def make_toolkit(root: Path, version: str = "13.0.88", parts: tuple[str, ...] = PARTS) -> Path:
    """A toolkit made of files, its nvcc a script that answers as the real one does; returns its root."""
    for name in parts:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    listed = "\\n".join(f"compute_{each}" for each in (*ARCHITECTURES, "90a"))
    answers = f'--version) echo "Cuda compilation tools, release 0, V{version}" ;;\n'
    answers += f"--list-gpu-arch) printf '{listed}\\n' ;;\n"
    answers += f"--dryrun) printf '#$ _SPACE_= \\n#$ TOP={root}/bin/..\\n' >&2 ;;\n"
    (root / "bin").mkdir(parents=True)
    stand_in(root / "bin", "nvcc", f'case "$1" in\n{answers}esac')
    return root


def choose(version: str = "13.0", /, *, place: str = "environment", **variables: object) -> Any:
    return cuda.toolkit(version, place, {"PATH": "", **{name: str(value) for name, value in variables.items()}})


def test_the_toolkit_of_the_frameworks_cuda_is_taken_wherever_it_is(tmp_path: Path) -> None:
    older, right = make_toolkit(tmp_path / "12", "12.4.131"), make_toolkit(tmp_path / "13")
    expected = (str(right), "13.0.88", ARCHITECTURES)
    assert choose(CUDA_HOME=right) == expected
    assert choose(PATH=f"{older}/bin:{right}/bin", EBROOTCUDA=right) == expected
    assert choose(CUDA_HOME=older, PATH=f"{right}/bin") == expected
    assert choose("12.6", CUDA_HOME=older, PATH=f"{right}/bin")[0] == str(older)
    make_toolkit(tmp_path / "usual")
    assert choose(PATH=f"{older}/bin")[0] == str(tmp_path / "usual")
    conda = ("targets/x86_64-linux/include/cuda_runtime.h", "targets/x86_64-linux/lib/libcudart.so")
    debian = ("include/cuda_runtime.h", "lib/x86_64-linux-gnu/libcudart.so")
    for name, parts in (("conda", conda), ("debian", debian)):
        assert choose(PATH=f"{make_toolkit(tmp_path / name, parts=parts)}/bin")[0] == str(tmp_path / name)


def test_an_nvcc_that_stands_for_another_leads_to_the_real_toolkit(tmp_path: Path) -> None:
    """The root is where the real one is: CMake finds no cudart beside a script."""
    root = make_toolkit(tmp_path / "cuda")
    for form in ("script", "link"):
        (tmp_path / form / "bin").mkdir(parents=True)
    stand_in(tmp_path / "script/bin", "nvcc", f'exec {root}/bin/nvcc "$@"')
    (tmp_path / "link/bin/nvcc").symlink_to(root / "bin/nvcc")
    assert [choose(PATH=tmp_path / form / "bin").root for form in ("script", "link")] == [str(root)] * 2


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
        ({"parts": ()}, {"PATH": "cuda/bin"}, "environment", "has no cuda_runtime.h and no libcudart.so; fix"),
    ],
)  # fmt: skip
def test_a_toolkit_that_does_not_fit_is_refused_with_what_to_load(
    tmp_path: Path, made: dict[str, Any], variables: dict[str, str], place: str, complaint: str
) -> None:
    if made:
        make_toolkit(tmp_path / "cuda", **made)
    with pytest.raises(SystemExit, match=complaint):
        choose("13.0", place=place, **{name: str(tmp_path / below) for name, below in variables.items()})


def test_nvcc_comes_from_the_package_index_only_where_the_framework_is_of_its_cuda(tmp_path: Path) -> None:
    (tmp_path / "own/lib").mkdir(parents=True)
    (tmp_path / "own/lib/libcudart.so.13").touch()
    chosen = choose()
    assert (chosen.root, chosen.version) == (cuda.INDEX, "13.0.88")
    assert {80, 90, 120} <= set(chosen.architectures)
    assert choose(PATH=f"{make_toolkit(tmp_path / '12', '12.4.131')}/bin").root == cuda.INDEX
    with pytest.raises(SystemExit, match="no toolkit of CUDA 12 is here"):
        choose("12.8")
    right = make_toolkit(tmp_path / "13")
    assert choose(PATH=f"{right}/bin").root == str(right)


def test_cmake_torch_and_horovods_helper_are_led_to_one_toolkit() -> None:
    led = cuda.variables("/opt/cuda", {"PATH": "/usr/bin", "CUDA_HOME": "/elsewhere"})
    assert led == {"CUDA_HOME": "/opt/cuda", "HOROVOD_CUDA_HOME": "/opt/cuda", "PATH": "/opt/cuda/bin:/usr/bin"}


@pytest.mark.parametrize(
    ("requested", "own", "chosen"),
    [
        ("auto", OF_TORCH, [75, 80, 86, 90, 100]),  # this nvcc does not know 120
        ("auto", ["sm_60", "sm_80", "sm_89", "compute_90"], [80, 90]),
        ("auto", ["sm_90a", "sm_80"], [80, 90]),
        ("auto", [], [80, 90]),
        ("80", OF_TORCH, [80]),
        ("90,8.0,sm_86", OF_TORCH, [80, 86, 90]),
        ("90a", OF_TORCH, [90]),  # Horovod's helper takes numbers only
        ("80,70", OF_TORCH, r"13.0.88 compiles for no GPU of architecture 70 \(it knows 75, .*; fix: leave it out"),
        ("ampere", OF_TORCH, "'ampere' is no CUDA architecture; fix: numbers such as 80,90, or auto"),
        ("80+PTX", OF_TORCH, "'80.PTX' is no CUDA architecture"),
        ("auto", ["sm_37", "sm_70"], "none of the framework's architectures .sm_37, sm_70; it knows.*fix: name those"),
        (",", OF_TORCH, "compiles for none of"),
    ],
)
def test_architectures_are_the_frameworks_cut_to_what_nvcc_can_do_or_the_users(
    requested: str, own: list[str], chosen: list[int] | str
) -> None:
    with pytest.raises(SystemExit, match=chosen) if isinstance(chosen, str) else nullcontext():
        assert cuda.architectures(requested, own, ARCHITECTURES, "13.0.88") == chosen


def make_nccl(root: Path, *libraries: str) -> Path:
    for name in ("include/nccl.h", *libraries):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 7\n")
    return root


def test_the_nccl_that_the_framework_has_loaded_comes_before_all_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (frameworks.nccl_home("auto"), frameworks.nccl_header("auto")) == ("", None)
    with pytest.raises(SystemExit, match="there is no"):
        frameworks.nccl_home(str(tmp_path))
    own = make_nccl(tmp_path / "site/nvidia/nccl", "lib/libnccl.so.2")
    module = make_nccl(tmp_path / "module", "lib/libnccl.so")
    monkeypatch.setattr(frameworks, "packaged_nccl", lambda: [str(own)])
    assert frameworks.nccl_home("auto") == str(own)
    monkeypatch.setenv("EBROOTNCCL", str(module))
    assert frameworks.nccl_home("auto") == str(module)
    assert frameworks.nccl_header("auto") == module / "include/nccl.h"
    assert frameworks.nccl_header("none") is None
    make_nccl(tmp_path / "usr")
    assert frameworks.nccl_home("auto") == ""  # compilers look there themselves
    loaded = str(own / "lib/libnccl.so.2")
    assert frameworks.nccl_home("auto", loaded) == str(own)
    assert frameworks.nccl_problem("auto", loaded) == ""  # its package has no libnccl.so
    assert frameworks.nccl_home(str(module), loaded) == str(module)


def gpu_of(nccl: str = "auto", archs: str = "auto", **answer: object) -> Any:
    known = {"version": "2.13.0+cu130", "cuda": "13.0", "nccl_file": "", "archs": OF_TORCH}
    return build.gpu_of(TORCH, {**known, **answer}, frameworks.Variant(nccl=nccl), archs)


def test_a_cuda_framework_without_a_whole_nccl_is_refused_unless_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fix = "fix: load NCCL's module, install nvidia-nccl-cu13 with pip .*--nccl none"
    with pytest.raises(SystemExit, match=f"pytorch 2.13.0.cu130 is of CUDA 13.0, .*no nccl.h in .*{fix}"):
        gpu_of()
    monkeypatch.setenv("NCCL_HOME", str(make_nccl(tmp_path / "half")))
    with pytest.raises(SystemExit, match=r"half/include/nccl.h is there, and no libnccl.so or libnccl.so.2 beside it"):
        gpu_of()
    monkeypatch.delenv("PATH")
    assert gpu_of(nccl="none") is None
    assert gpu_of(cuda=None) is None
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda", "12.4.131")))  # torch compiles with it
    with pytest.raises(SystemExit, match=r"cuda/bin/nvcc is of CUDA 12.4.131; fix: take a base"):
        gpu_of(nccl="none")


def test_what_is_compiled_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    monkeypatch.setattr(install, "packages", lambda: tmp_path / "site")
    own = make_nccl(tmp_path / "site/nvidia/nccl", "lib/libnccl.so.2")
    gpu = gpu_of(nccl_file=str(own / "lib/libnccl.so.2"), archs="80,90")
    assert gpu.record() == {"cuda_architectures": [80, 90], "ptx": 90, "nvcc": "13.0.88", "nccl": "2.29.7"}
    assert (gpu.nccl, gpu.beside) == (str(own), True)
    facts = {"framework_version": "2.13", "cuda": "13.0", "nccl_headers": True, "mpi": {"flavour": ""}}
    # One beside Horovod is found in every environment: the wheel has no directory of the first one for it.
    chosen = build.switches(TORCH, facts, "17", gpu.architectures, build.NCCL_OF_PIP)
    assert chosen["LDFLAGS"].endswith("-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib")
    assert "HOROVOD_NCCL_HOME" not in chosen
    # torch has its kernels compiled wherever there is an nvcc, as NVIDIA's images do: also without NCCL.
    bare = gpu_of(nccl="none", archs="80")
    assert bare.record() == {"cuda_architectures": [80], "ptx": 80, "nvcc": "13.0.88", "nccl": ""}
    made = make_wheel(tmp_path / NAME, shared_library(tmp_path))
    build.examine(made, FLAGS, bare, [])
    with zipfile.ZipFile(made) as archive:
        assert json.loads(archive.read(f"{ABOUT}/gpu-runner.json")) == bare.record()


def shared_library(directory: Path, *flags: str) -> bytes:
    (directory / "x.c").write_text("int x;\n")
    words = [c_compiler(), "-shared", "-fPIC", "-o", str(directory / "x.so"), str(directory / "x.c"), *flags]
    subprocess.run(words, check=True)
    return (directory / "x.so").read_bytes()


def library_with_nccl(directory: Path) -> bytes:
    """One that is linked to an NCCL, of which only the name is real."""
    shared_library(directory, "-Wl,-soname,libnccl.so.2")
    (directory / "x.so").rename(directory / "libnccl.so")
    return shared_library(directory, "-Wl,--no-as-needed", f"-L{directory}", "-lnccl")


def make_wheel(path: Path, library: bytes) -> Path:
    path.write_bytes(wheel("horovod", "0.28.1", {"horovod/torch/mpi_lib_v2.so": library})[1])
    return path


def gpu_for(*architectures: int) -> Any:
    toolkit = cuda.Toolkit("/opt/cuda", "13.0.88", ARCHITECTURES)
    return build.Gpu("13.0", toolkit, list(architectures), "", "2.29.7", False)


def test_a_librarys_directories_and_needs_are_read(tmp_path: Path) -> None:
    library = shared_library(tmp_path, "-Wl,-rpath,$ORIGIN/../a:/opt/b", "-Wl,--no-as-needed", "-lm")
    section = PROGRAMS.wheel_record.dynamic_section(library)
    assert section["runpath"] == ["$ORIGIN/../a", "/opt/b"]
    assert "libm.so.6" in section["needed"]
    for broken in (b"", b"#!/bin/sh\n", library[:70], library[:54] + struct.pack("<HH", 56, 9) + b"\0" * 9):
        with pytest.raises(ValueError, match="library"):
            PROGRAMS.wheel_record.dynamic_section(broken)


def test_a_wheel_that_looks_into_the_builds_own_directories_is_refused(tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    lost = make_wheel(tmp_path / "a.whl", shared_library(tmp_path, f"-Wl,-rpath,/opt/b:{work}/cuda/lib"))
    with pytest.raises(SystemExit, match=f"which are gone afterwards.*mpi_lib_v2.so: {work}/cuda/lib"):
        build.examine(lost, "", None, [work])
    lasting = make_wheel(tmp_path / "b.whl", shared_library(tmp_path, f"-Wl,-rpath,$ORIGIN:{work}2/lib"))
    build.examine(lasting, "", None, [work])


def test_a_wheel_carries_its_record_to_where_it_is_installed(tmp_path: Path) -> None:
    gpu, made, target = gpu_for(80, 90), make_wheel(tmp_path / NAME, library_with_nccl(tmp_path)), tmp_path / "site"
    flags = '-O3 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=\\"sm_90,compute_90\\"'
    with pytest.raises(SystemExit, match=r"nvcc was not given the architectures \[80, 90\]; .*no flags"):
        build.examine(made, "", gpu, [])
    build.examine(made, flags, gpu, [])
    words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(made)]
    subprocess.run([sys.executable, *words], check=True)
    script = f"import sys; sys.path[:0] = [{str(CONTAINERS)!r}, {str(target)!r}]; import wheel_record, json; "
    script += "print(json.dumps(wheel_record.installed_record()))"
    answer = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(answer) == gpu.record()
    assert (target / ABOUT / "gpu-runner.json").is_file()
    assert "gpu-runner.json,sha256=" in (target / ABOUT / "RECORD").read_text()


RECORD = {"cuda_architectures": [80], "ptx": 80, "nvcc": "13.0.88", "nccl": ""}


@pytest.mark.parametrize(
    ("record", "good"),
    [
        (RECORD, True), ({**RECORD, "cuda_architectures": "all"}, False), ({**RECORD, "ptx": True}, False),
        ({**RECORD, "nvcc": None}, False), ({**RECORD, "operations": ["NCCL"]}, False), ({}, False), ([], False),
        ("no JSON", False),
    ],
)  # fmt: skip
def test_a_record_that_is_not_of_our_form_is_none(
    record: object, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ABOUT).mkdir()
    (tmp_path / ABOUT / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (tmp_path / ABOUT / "gpu-runner.json").write_text(record if isinstance(record, str) else json.dumps(record))
    monkeypatch.syspath_prepend(tmp_path)
    assert bool(PROGRAMS.wheel_record.installed_record()) is good


def test_a_wheel_that_does_not_load_nccl_is_refused_and_not_taken_from_the_shelf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the library's own list of what it loads, whatever the build was given."""
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    (shelf / "k").mkdir(parents=True)
    out.mkdir()
    plain = shared_library(tmp_path)
    for library, good in ((plain, False), (b"libnccl.so.2", False), (library_with_nccl(tmp_path), True)):
        made = make_wheel(shelf / "k" / NAME, library)
        assert build.take_kept("k", out, shelf, with_nccl=True) is good
        assert build.take_kept("k", out, shelf), "a build for CPUs"
    build.examine(made, FLAGS, gpu_for(80), [])
    assert capsys.readouterr().out.count("does not load NCCL: it is not taken") == 2
    made = make_wheel(tmp_path / NAME, plain)
    complaint = r"does not load NCCL as a shared library: horovod/torch/mpi_lib_v2\.so; fix: "
    with pytest.raises(SystemExit, match=complaint):
        build.examine(made, FLAGS, gpu_for(80), [])
    build.examine(made, "", None, [])


def test_the_first_error_of_a_compile_is_in_the_message() -> None:
    flags = "-- HVD_NVCC_COMPILE_FLAGS = -O3"
    cmake = f"{flags}\nCMake Error at FindNCCL.cmake:1 (message):\n\n  Could NOT find NCCL\nx.cc:1:1: error: later"

    def compiled(text: str, code: int) -> str:
        words = [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]
        return str(install.compile_with(words, dict(os.environ)))

    with pytest.raises(SystemExit, match=r"exit code 3; the first error: CMake Error at .*Could NOT find NCCL"):
        compiled(cmake, 3)
    assert compiled(cmake, 0) == flags
    with pytest.raises(SystemExit, match=r"the first error: a.h:3:10: fatal error: nccl.h: No such file"):
        compiled("a.h:3:10: fatal error: nccl.h: No such file", 1)


def test_a_base_that_pins_another_horovod_does_not_stop_ours_and_keeps_its_other_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NVIDIA's constraint file does; pip's own answer without the override is ResolutionImpossible."""
    constraint, made = tmp_path / "constraint.txt", make_wheel(tmp_path / NAME, b"")
    constraint.write_text("# of the base\nhorovod==0.28.1+nv25.2\nPyYAML==5.4\nmarkdown_it-py @ file:///x\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(constraint))
    words = ("install", "--no-index", "--no-deps", "--target", str(tmp_path / "site"), str(made))
    with pytest.raises(SystemExit, match="failed with exit code"):
        install.pip(*words)
    install.pip(*words, env={**os.environ, **install.UNCONSTRAINED})
    assert (tmp_path / "site" / ABOUT).is_dir()
    monkeypatch.setenv("PIP_CONSTRAINT", f"{constraint} /nowhere")
    assert install.constrained() == {"horovod", "pyyaml", "markdown-it-py"}


@pytest.mark.parametrize(
    ("header", "library", "has"),
    [
        ("void* platform_specific_handle()", b"\0other\0", False),  # TensorFlow 2.21
        ("void* platform_specific_handle()", b"\0_ZN15stream_executor3gpu16AsGpuStreamValueEPNS_6StreamE\0", True),
        ("GpuStreamHandle gpu_stream", b"\0other\0", True),  # older: nothing else to take
    ],
)
def test_tensorflow_without_the_function_for_gpu_streams_gets_the_fix(
    tmp_path: Path, header: str, library: bytes, has: bool
) -> None:
    stream = tmp_path / "include/tensorflow/compiler/xla/stream_executor/stream.h"
    stream.parent.mkdir(parents=True)
    stream.write_text(header)
    (tmp_path / "libtensorflow_framework.so.2").write_bytes(b"\0x\0")
    (tmp_path / "libtensorflow_cc.so.2").write_bytes(b"\x7fELF" + library)
    assert frameworks.has_gpu_stream_value([str(tmp_path / "include")]) is has
    facts = {"framework": "tensorflow", "compiler": "12.2", "xla_headers": True, "cuda": "12.5", "nccl_headers": True}
    assert ("gpu-stream-handle" in PROGRAMS.fixes.needed({**facts, "gpu_stream_value": has})) is not has
