"""An image's build with collected packages, as its programs do it: pip takes nothing else, and nothing is left."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner.cli import run
from runner.core.errors import Exit
from runner.core.package_directory import PackageDirectory, PackageFile
from runner.images.building.engine_build import EngineBase, pull_error
from tests.support.package_directories import HERE, collected, wheel

CONTAINERS = Path(__file__).parents[4] / "containers" / "horovod"
# As the Dockerfile's two stages: the wheel's, and that of the image itself.
STAGES = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import install
install.without_network()
print(os.environ["PIP_FIND_LINKS"])
if sys.argv[2:]:
    install.hand_on(Path(sys.argv[2]))
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """``/opt/runner`` of a build, with packages in it, below a path with a blank."""
    runner = tmp_path / "opt runner"
    shutil.copytree(CONTAINERS, runner, ignore=shutil.ignore_patterns("__pycache__"))
    (runner / "packages").mkdir()
    for name in ("PyYAML", "cloudpickle", "setuptools", "tf_keras", "cmake", "wheel"):
        (runner / "packages" / f"{name}-1.0-py3-none-any.whl").write_bytes(wheel(name)[1])
    (runner / "packages/horovod-0.28.1.tar.gz").touch()
    manifest(runner, HERE)
    return runner


def manifest(runner: Path, python: str) -> None:
    about = {"pythons": [python], "machine": platform.machine(), "glibc": "2.5"}
    (runner / "packages/manifest.json").write_text(json.dumps(about))


def stage(*words: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", STAGES, *(str(word) for word in words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_next_stage_gets_what_an_installation_needs_and_no_more(context: Path, tmp_path: Path) -> None:
    done = stage(context, tmp_path / "wheel")
    assert done.stdout.strip() == (context / "packages").as_uri()
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "wheel/packages").iterdir())
    assert names == ["PyYAML", "cloudpickle", "setuptools", "tf_keras"]
    shutil.rmtree(context / "packages")
    shutil.copytree(tmp_path / "wheel", context / "wheel")
    assert stage(context).stdout.strip() == (context / "wheel/packages").as_uri()


def test_packages_for_another_python_are_refused_in_the_build(context: Path, tmp_path: Path) -> None:
    manifest(context, "2.7")
    done = stage(context, tmp_path / "wheel")
    assert done.returncode == 1
    assert f"do not fit: they are for Python 2.7, and this is Python {HERE}" in done.stderr


def test_the_context_gets_horovods_part_of_the_packages(tmp_path: Path) -> None:
    """Neither a framework's gigabytes, which the base has, nor NVIDIA's compiler, which a base with CUDA has."""
    manifest = collected(tmp_path / "p")
    compiler = PackageFile("horovod/nvidia_cuda_nvcc-13.0.88-py3-none-any.whl", "0" * 64, 1)
    packages = PackageDirectory(tmp_path / "p", msgspec.structs.replace(manifest, files=(*manifest.files, compiler)))
    names = [name for name, _ in EngineBase("pytorch", "base", "id", {}, None, packages).package_files]
    assert names == ["packages/cffi_like-1.0-py3-none-any.whl", "packages/manifest.json"]
    assert EngineBase("pytorch", "base", "id", {}, None).package_files == ()


def test_a_build_with_packages_refuses_what_does_not_go_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    collected(tmp_path / "p")
    words = ["--wheels", str(tmp_path / "p")]
    for more in (["--with", "enroot"], ["--definition"]):
        assert run(["build", "pytorch", *words, *more]) == Exit.USAGE
        assert "--wheels does not go with" in capfd.readouterr().err
    assert run(["build", "pytorch", "--wheels", str(tmp_path / "none")]) == Exit.USAGE
    assert "no such directory of packages" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("manifest for 127.0.0.1:40343/a/b:1.403 not found: manifest unknown", "has no image"),
        ("manifest for h:401/a/b@sha256:401403 not found", "has no image"),
        ("unexpected status from HEAD request: 403 Forbidden", "denies access"),
        ("error parsing HTTP 403 response body: x", "denies access"),
        ("received unexpected HTTP status code 401: x", "requires a login"),
    ],
)
def test_digits_of_a_name_are_no_status_of_the_registry(message: str, what: str) -> None:
    assert what in pull_error("h.example:40343/a/b:1", message).what
