"""Packages for machines without a network: what is collected, and that pip takes these and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import pip
import pytest

from runner.core.errors import Exit, InfrastructureError, ProgramFailedError
from runner.core.package_directory import PackageFile
from runner.environments import make
from runner.environments.collect import framework_version, requirements_of
from runner.environments.make import failure
from runner.environments.script import (
    EnvironmentSpec,
    Places,
    collection,
    creation,
    packages_of_images,
    packages_of_site,
)
from runner.model.exit_codes import NO_FRAMEWORK, WRONG_PACKAGES
from runner.model.image import Setup
from runner.sites.loader import read_site
from tests.support.commands import Call
from tests.support.container_programs import imported
from tests.support.package_directories import HERE, collected
from tests.support.shell_files import stand_in
from tests.support.waiting import until

HOSTILE = "it's a $HOME `id` wheéls"


@pytest.fixture
def program() -> Iterator[ModuleType]:
    """``collect.py``, which runs where packages are collected."""
    with imported() as modules:
        yield modules["collect"]


def places(root: Path, packages: Path) -> Places:
    (root / "work").mkdir(exist_ok=True)
    return Places(root / "made", root / "work", root / "c", root / "w", make.programs(), root / "lock", None, packages)


def installed(root: Path, packages: Path) -> tuple[int, str, list[str]]:
    """Run the script up to Horovod, by real pip and a real virtual environment: exit code, output, modules.

    It is these tests' own pip, which is compiled already: to unpack and compile another one takes seconds.
    """
    wanted = EnvironmentSpec("x", "virtualenv", "pytorch", Setup(), ("torchlike==1.0",), packages="identity")
    whole = creation(wanted, places(root, packages))
    until_horovod = whole[: whole.index("python3 " + str(make.programs() / "build.py"))]
    (venv,) = re.findall(r"^python3 -m venv (\S+) \|\|", until_horovod, re.MULTILINE)
    link = f"ln -sfn {Path(pip.__file__).parent} {venv}/lib/python{HERE}/site-packages/pip"
    until_horovod = until_horovod.replace(f"-m venv {venv}", f"-m venv --without-pip {venv} && {link}")
    done = subprocess.run(["bash", "-c", until_horovod], capture_output=True, text=True, check=False)
    modules = [path.stem for path in (root / "made").glob("lib/python*/site-packages/*_like.py")]
    modules += [path.stem for path in (root / "made").glob("lib/python*/site-packages/torchlike.py")]
    return done.returncode, done.stdout + done.stderr, sorted(modules)


def test_pip_installs_the_framework_from_the_directory_whatever_its_path_and_no_wheel_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://192.0.2.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    (tmp_path / "constraint.txt").write_text("torchlike==2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraint.txt"))
    collected(tmp_path / HOSTILE)
    wheel = tmp_path / HOSTILE / "framework/torchlike-1.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.write_bytes(whole + b"x")
    code, output, modules = installed(tmp_path, tmp_path / HOSTILE)
    assert (code, modules) == (NO_FRAMEWORK, [])
    assert "DO NOT MATCH THE HASHES" in output
    wheel.write_bytes(whole)
    code, output, modules = installed(tmp_path, tmp_path / HOSTILE)
    assert (code, modules) == (0, ["numbers_like", "torchlike"]), output
    assert "192.0.2.1" not in output


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pythons": ("2.7",)}, f"they are for Python 2.7, and this is Python {HERE}"),
        ({"machine": "vax"}, "they are for vax, and this machine is"),
        ({"glibc": "9.99"}, "they need glibc 9.99 or later"),
    ],
)
def test_packages_for_something_else_are_refused_in_words(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    collected(tmp_path / HOSTILE, **changes)
    words = [sys.executable, str(make.programs() / "fits.py"), str(tmp_path / HOSTILE)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    error = failure(WRONG_PACKAGES, [done.stderr], "log")
    assert (error.code, "--python PROGRAM" in error.fix) == (Exit.REFUSED, True)


def test_requirements_are_made_of_the_names_and_hashes() -> None:
    files = [PackageFile("framework/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "ab", 1)]
    assert requirements_of(files) == "torch==2.13.0+cpu --hash=sha256:ab\n"
    assert framework_version("pytorch", ["torchvision-1-x.whl", "torch-2.13.0+cpu-x.whl"]) == "2.13.0+cpu"
    assert framework_version("tensorflow", ["tensorflow_cpu-2.21.0-x.whl"]) == "2.21.0"
    assert framework_version("tensorflow", []) == ""


@pytest.mark.parametrize(("version", "names"), [("3.8", ["a==1"]), ("3.10", ["b==2", "c==3"]), ("3.9", ["c==3"])])
def test_the_lines_of_another_python_are_chosen(program: ModuleType, version: str, names: list[str]) -> None:
    text = (
        "a==1 ; python_full_version < '3.9' \\\n    --hash=sha256:11\n"
        "b==2 ; python_full_version == '3.10.*' and implementation_name != 'PyPy' \\\n    --hash=sha256:22 \\\n"
        "    --hash=sha256:23\nc==3 ; python_full_version >= '3.9' \\\n    --hash=sha256:33\n"
    )
    chosen = program.for_python(text, version)
    assert [line.split()[0] for line in chosen.splitlines() if "==" in line] == names
    assert ";" not in chosen
    assert chosen.count("--hash") == sum({"a==1": 1, "b==2": 2, "c==3": 1}[name] for name in names)


def test_every_python_of_an_image_has_a_line_for_each_package(program: ModuleType) -> None:
    text = (make.programs() / "requirements.txt").read_text()
    for version in packages_of_images(read_site("local"), "pytorch", "").pythons:
        chosen = program.for_python(text, version)
        names = [line.split("==")[0] for line in chosen.splitlines() if "==" in line]
        assert sorted(names) == sorted(program.NAMES), version


def test_a_compiler_for_the_gpu_is_collected_where_the_framework_is_of_its_cuda(
    program: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "nvidia_cuda_runtime_cu12-12.8.90-py3-none-manylinux2014_x86_64.whl").touch()
    assert program.tools(tmp_path).partition("==")[0] == program.tools(None).partition("==")[0] == "cmake"
    assert "nvidia-cuda-nvcc" not in program.tools(tmp_path) + program.tools(None)
    (tmp_path / "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl").touch()
    assert "nvidia-cuda-nvcc==13" in program.tools(tmp_path)


def test_keras_2_goes_with_the_tensorflow_that_is_collected(program: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl").touch()
    assert program.tensorflow_versions(tmp_path) == ["2.21.0"]
    assert [line.split()[0] for line in program.keras_lines(["2.21.0"])] == ["tf_keras==2.21.0"]
    assert program.keras_lines(["2.15.1"]) == []  # its Keras is 2
    assert len(program.keras_lines([])) > 4


def test_the_collection_follows_the_site_and_its_options() -> None:
    neuron = packages_of_site(read_site("neuron"))
    assert (neuron.python, neuron.device, neuron.requirements[0]) == ("python3.11", "cuda", "torch==2.13.0")
    assert neuron.setup == read_site("neuron").ways["native"].setup
    laptop = packages_of_site(read_site("neuron"), python="/opt/python3.11")
    assert (laptop.python, laptop.setup) == ("/opt/python3.11", Setup())
    assert packages_of_site(read_site("alpha")).requirements == ()
    polaris = packages_of_images(read_site("polaris"), "tensorflow", "aarch64")
    assert ("https_proxy", "http://proxy.alcf.anl.gov:3128") in polaris.proxies
    script = collection(polaris, PurePath("/w"), PurePath("/p"))
    assert "--pythons 3.8,3.9," in script
    assert "--machine aarch64" in script
    assert "pip wheel" not in script


def test_a_full_disk_is_reported_as_such() -> None:
    lines = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    assert isinstance(failure(NO_FRAMEWORK, lines, "log"), InfrastructureError)
    assert isinstance(failure(NO_FRAMEWORK, ["no such version"], "log"), ProgramFailedError)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collections for this and that, and a directory with other files."""
    root = tmp_path_factory.mktemp("packages")
    collected(root / "torch")
    collected(root / "tf", framework="tensorflow", requirements=("tensorflow-cpu==2.21.0",))
    collected(root / "image", requirements=(), framework_version="")
    collected(root / "damaged")
    (root / "damaged/horovod/cffi_like-1.0-py3-none-any.whl").write_bytes(b"")
    (root / "mine").mkdir()
    (root / "mine/thesis.tex").write_text("")
    return root


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("create x --wheels {0}/none", Exit.USAGE, "no such directory of packages"),
        ("create x --wheels {0}/mine", Exit.REFUSED, "not finished"),
        ("create x --wheels {0}/damaged", Exit.REFUSED, "damaged: horovod/cffi_like-1.0-py3-none-any.whl"),
        ("create x --wheels {0}/torch --framework tensorflow", Exit.REFUSED, "for pytorch, and not for tensorflow"),
        ("create x --wheels {0}/torch --requirement torch==1", Exit.USAGE, "was chosen when the packages were collec"),
        ("create x --wheels {0}/image", Exit.REFUSED, "hold no pytorch"),
        ("create x --wheels {0}/tf --site technion", Exit.REFUSED, "collect with --site technion"),
        ("wheels {0}/mine", Exit.USAGE, "is not empty, and holds no packages"),
        ("wheels {0}/mine/thesis.tex", Exit.USAGE, "is not empty, and holds no packages"),
        ("wheels w --platform linux/arm64", Exit.USAGE, "for images: --image"),
        ("wheels w --image --python p", Exit.USAGE, "--python is for environments"),
        ("wheels w --image --platform x", Exit.USAGE, "one of: linux/amd64, linux/arm64"),
    ],
)
def test_the_verbs_refuse_what_does_not_go_together(
    line: str, code: int, says: str, directories: Path, tmp_path: Path, call: Call
) -> None:
    at = ["--at", str(tmp_path)] if line.startswith("create") else []
    assert says in call("env", *line.format(directories).split(), *at, code=code).err
    assert not list(tmp_path.iterdir())


def test_the_framework_is_that_of_the_packages(directories: Path, tmp_path: Path, call: Call) -> None:
    said = call("env", "create", "x", "--at", str(tmp_path), "--wheels", f"{directories}/tf", "--dry-run").out
    assert "--framework tensorflow" in said


def test_a_collection_that_fails_keeps_what_was_there_and_its_log(tmp_path: Path, call: Call) -> None:
    at = tmp_path / HOSTILE
    before = collected(at)
    words = ["env", "wheels", str(at), "--python", "/no/such/python3"]
    assert "/no/such/python3" in call(*words, code=Exit.PROGRAM_FAILED).err
    assert json.loads((at / "manifest.json").read_text())["made"] == before.made
    assert [path.name for path in (at / ".collecting").iterdir()] == ["collect.log"]


def test_a_collection_that_was_killed_is_waited_for_and_begun_anew(tmp_path: Path) -> None:
    """Its script goes on for a while; what it still writes must not come among the new packages."""
    log, at = tmp_path / "log", tmp_path / "p"
    scripts = {"slow": "echo begun >>{0}; sleep 2; echo ended >>{0}; exit 1", "quick": "echo quick >>{0}; exit 1"}
    for name, text in scripts.items():
        stand_in(tmp_path, name, text.format(log))
    words = [sys.executable, "-m", "runner", "env", "wheels", str(at), "--python"]
    first = subprocess.Popen([*words, str(tmp_path / "slow")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(log.exists, "the first collection")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    (at / ".collecting/cache").mkdir()
    (at / ".collecting/cache/fetched").touch()
    second = subprocess.run([*words, str(tmp_path / "quick")], capture_output=True, text=True, check=False)
    assert (second.returncode, log.read_text().split()) == (Exit.PROGRAM_FAILED, ["begun", "ended", "quick"])
    assert (at / ".collecting/cache/fetched").exists()  # what pip had fetched is not fetched again
