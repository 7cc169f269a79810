"""The stand-in base with CUDA: its stubs carry a library that was linked to the real ones, and its list is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from runner.core import paths
from runner.images.building import standin
from tests.support.compiler import c_compiler

PLACE = paths.share("containers") / "standin-cuda"
# Name of a library, as the loader knows it -> its function. libcublas has versions, as the real one.
REAL = {"libcublas.so.13": "cublasCreate", "libcublasLt.so.13": "cublasLtMatmul", "libcudnn.so.9": "cudnnCreate",
        "libother.so.1": "other"}  # fmt: skip
PROGRAM = f"int {', '.join(f'{name}(void)' for name in REAL.values())};\n"
PROGRAM += f"int all(void) {{ return {' + '.join(f'{name}()' for name in REAL.values())}; }}\n"


def compiled(name: Path, source: str, *words: str) -> Path:
    command = [c_compiler(), "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(name), *words]
    subprocess.run(command, input=source, text=True, check=True)
    return name


def loaded(library: Path, *places: Path) -> subprocess.CompletedProcess[str]:
    """What a new process sees that loads the library, every symbol at once, and calls its function."""
    program = f"import ctypes; print(ctypes.CDLL({str(library)!r}, mode=2).all())"
    env = {"LD_LIBRARY_PATH": ":".join(map(str, places))}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)


def test_a_library_loads_with_the_stubs_in_place_of_the_real_ones(tmp_path: Path) -> None:
    real, stubs, script = tmp_path / "real", tmp_path / "stubs", tmp_path / "versions"
    real.mkdir()
    stubs.mkdir()
    script.write_text("libcublas.so.13 { cublasCreate; };\n")
    for name, function in REAL.items():
        versions = [f"-Wl,--version-script={script}"] if name == "libcublas.so.13" else []
        compiled(real / name, f"int {function}(void) {{ return 42; }}", f"-Wl,-soname,{name}", *versions)
    user = compiled(tmp_path / "libuser.so", PROGRAM, *(str(real / name) for name in REAL))
    assert loaded(user, real).stdout.strip() == str(4 * 42)

    stubbed = [name for name in REAL if "other" not in name]
    for name in stubbed:
        (real / name).unlink()
    assert "libcublas.so.13: cannot open shared object file" in loaded(user, real).stderr
    words = [sys.executable, str(PLACE / "stubs.py"), str(stubs), str(user)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert dict(re.findall(r"stub (\S+): (\d+) symbols", done.stdout)) == dict.fromkeys(stubbed, "1")
    assert loaded(user, real, stubs).stdout.strip() == str(3 * 1 + 42)


def test_the_list_of_the_base_says_what_its_variables_say() -> None:
    """And every file in it has a hash; torch is CUDA's build, whatever builds for CPUs pip is offered."""
    lines = [line for line in (PLACE / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    listed = dict(re.findall(r"(?m)^([a-z0-9-]+===?)(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", "\n".join(lines)))
    assert len(listed) == len(lines) / 2
    base = standin.find_standin("pytorch", "standin-cuda")
    assert base is not None
    assert base.variables["PYTORCH_VERSION"] == listed["torch==="]
    assert base.variables["NCCL_VERSION"] == listed["nvidia-nccl-cu13=="]
    assert base.variables["CUDA_VERSION"][:4] == listed["nvidia-cuda-nvcc=="][:4]
