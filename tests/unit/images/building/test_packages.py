"""What pip may install in an image's build: further packages as they are named, and collected ones with no network."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError, UsageError
from runner.core.package_directory import Manifest, PackageDirectory, PackageFile
from runner.images.building import more_packages
from runner.images.building.engine_build import EngineBase
from runner.model.image import Package, facts_of
from tests.support.container_programs import CONTAINERS, PROGRAMS
from tests.support.package_directories import HERE, collected, wheel


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("einops==0.8.1", "einops==0.8.1"),
        (" scikit-learn == 1.7.2 ", "scikit-learn==1.7.2"),
        ("ray[default, tune]==2.9.0", "ray[default,tune]==2.9.0"),
        ("x==1!2.0.post1+cpu; python_version<'3.9'", "x==1!2.0.post1+cpu ; python_version<'3.9'"),
        *((text, "") for text in (
            "", "einops", "einops>=0.8", "einops==0.*", "-r more.txt", "--index-url=https://evil", "./local",
            "x==1 --hash=sha256:0", "git+https://host/x", "x @ https://host/x.whl", "x==1\ny==2", "x==$(id)",
            "x==1 ; a \\\n-e .", "x==1 ; a\n-r y", "x==1 ; a\u2028-r y", "x\n==1",
        )),
    ],
)  # fmt: skip
def test_a_package_with_its_version(text: str, line: str) -> None:
    with nullcontext() if line else pytest.raises(UsageError, match="is no package with its version"):
        assert more_packages.requirement(text, "--requirement") == line


def test_the_packages_of_files_come_once_whatever_the_order() -> None:
    text = "# ours\n\nb==1  # for views\na==1\nb==1\n"
    lines = more_packages.requirements_of_file(text, "r.txt")
    assert lines == ["b==1", "a==1", "b==1"]
    assert more_packages.together(lines) == ("a==1", "b==1")
    with pytest.raises(UsageError, match="'numpy' is no package") as refused:
        more_packages.requirements_of_file("x==1\nnumpy\n", "r.txt")
    assert refused.value.where == "r.txt:2"
    with pytest.raises(UsageError, match=r"A_b==2 and a-b==1 are both asked for"):
        more_packages.together(["a-b==1", "A_b==2"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--with ch-image --requirement einops==0.8.1", "--requirement does not go with --with ch-image"),
        ("--definition --requirement einops==0.8.1", "--requirement does not go with --definition"),
        ("--wheels /nowhere --requirement einops==0.8.1", "further packages need the package index"),
        ("--wheels p --with enroot", "--wheels does not go with"),
        ("--wheels p --definition", "--wheels does not go with"),
        ("--wheels none", "no such directory of packages"),
    ],
)
def test_a_build_refuses_what_does_not_go_together(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    collected(tmp_path / "p")
    assert run(["build", "pytorch", *words.split()]) == Exit.USAGE
    assert says in capsys.readouterr().err


def test_what_pip_installed_is_written_down() -> None:
    """With its hash, in pip's form of today and of before 23.1; what came along is marked."""
    new = {"hashes": {"sha256": "ab"}}
    report = {
        "install": [
            {"metadata": {"name": "b", "version": "2"}, "requested": True, "download_info": {"archive_info": new}},
            {"metadata": {"name": "A", "version": "1"}, "download_info": {"archive_info": {"hash": "sha256=cd"}}},
            {"metadata": {"name": "c", "version": "3"}, "download_info": {"vcs_info": {}}},
        ]
    }
    facts = facts_of({"framework": "pytorch", "packages": PROGRAMS.more_packages.installed(report)})
    assert facts is not None
    assert facts.packages == (
        Package("A", "1", "cd", requested=False),
        Package("b", "2", "ab", requested=True),
        Package("c", "3", "", requested=False),
    )


def test_what_the_image_has_is_held() -> None:
    """Of two with one name, the one that Python imports: Debian has pip's setuptools before its own."""
    have = [("torch", "2.13.0+cpu"), ("setuptools", "84.2.1"), ("-e", "1"), ("gpg", "1.18.0-unknown"), ("", "")]
    constraints = PROGRAMS.more_packages.constraints([*have, ("Setuptools", "66.1.1")])
    assert constraints == "setuptools==84.2.1\ntorch==2.13.0+cpu\n"


@pytest.mark.parametrize(
    ("files", "top_level", "names"),
    [
        (("sklearn/__init__.py", "sklearn/svm/x.py", "scikit_learn.libs/lib.so"), "", ["sklearn"]),
        (("six.py", "six-1.dist-info/METADATA"), "", ["six"]),
        (("_cffi_backend.cpython-311-x86_64-linux-gnu.so", "cffi/__init__.py", "tests/__init__.py"), "", ["cffi"]),
        ((), "yaml\n_yaml\n", ["yaml"]),
    ],
)
def test_what_is_imported_of_a_package(files: tuple[str, ...], top_level: str, names: list[str]) -> None:
    assert PROGRAMS.more_packages.modules(files, top_level) == names


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


def stage(*words: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", STAGES, *(str(word) for word in words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_next_stage_gets_what_an_installation_needs_and_no_more(tmp_path: Path) -> None:
    runner = tmp_path / "opt runner"  # of the build
    packages, handed_on = runner / "packages", tmp_path / "wheel"
    shutil.copytree(CONTAINERS, runner, ignore=shutil.ignore_patterns("__pycache__"))
    packages.mkdir()
    for name in ("PyYAML", "cloudpickle", "setuptools", "tf_keras", "cmake", "wheel"):
        (packages / f"{name}-1.0-py3-none-any.whl").write_bytes(wheel(name)[1])
    (packages / "horovod-0.28.1.tar.gz").touch()
    about = {"pythons": ["2.7"], "machine": platform.machine(), "glibc": "2.5"}
    (packages / "manifest.json").write_text(json.dumps(about))
    refused = stage(runner, handed_on)
    assert refused.returncode == 1
    assert f"do not fit: they are for Python 2.7, and this is Python {HERE}" in refused.stderr
    (packages / "manifest.json").write_text(json.dumps({**about, "pythons": [HERE]}))
    assert stage(runner, handed_on).stdout.strip() == packages.as_uri()
    names = sorted(path.name.split("-")[0] for path in (handed_on / "packages").iterdir())
    assert names == ["PyYAML", "cloudpickle", "setuptools", "tf_keras"]
    shutil.rmtree(packages)
    handed_on.rename(runner / "wheel")
    assert stage(runner).stdout.strip() == (runner / "wheel/packages").as_uri()


def test_the_context_gets_horovods_part_of_the_packages(tmp_path: Path) -> None:
    """Neither a framework's gigabytes, which the base has, nor NVIDIA's compiler, which a base with CUDA has."""
    manifest = collected(tmp_path / "p")
    compiler = PackageFile("horovod/nvidia_cuda_nvcc-13.0.88-py3-none-any.whl", "0" * 64, 1)
    packages = PackageDirectory(tmp_path / "p", msgspec.structs.replace(manifest, files=(*manifest.files, compiler)))
    base = EngineBase("pytorch", "base", "id", {}, None, packages)
    sent = dict(base.package_files())
    assert [*sent] == ["packages/manifest.json", "packages/cffi_like-1.0-py3-none-any.whl"]
    assert msgspec.json.decode(sent["packages/manifest.json"], type=Manifest) == packages.manifest
    kept, wheel_file = tmp_path / "kept", tmp_path / "p/horovod/cffi_like-1.0-py3-none-any.whl"
    assert sent["packages/cffi_like-1.0-py3-none-any.whl"] == wheel_file.read_bytes()
    wheel_file.rename(kept)
    for content in (b"of this user alone", kept.read_bytes() + b"more"):  # after all were compared
        wheel_file.write_bytes(content)
        with pytest.raises(RefusedError, match="not the package that was collected") as caught:
            [*base.package_files()]
        assert caught.value.where == str(wheel_file)
    assert [*EngineBase("pytorch", "base", "id", {}, None).package_files()] == []
