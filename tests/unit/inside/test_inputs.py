"""What a program ran with, as its own Python saw it."""

import json
import os
import shutil
import sys
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside import inputs
from gpu_runner_inside.launcher import python_start

from tests.support.commands import ran
from tests.support.compiler import c_compiler

PROGRAM = """
import builtins, importlib.util, io, json, os, pickle, pkgutil, runpy
from pathlib import Path
from gpu_runner_inside import inputs
import layers, package.net
os.system("echo x = 1 >layers.py")  # as a user does, while it runs
json.load(open("args.json")); Path("base.yaml").read_text(); open("/proc/self/stat").read(); open("out.log", "w")
runpy.run_path("stage.py")
loader = importlib.machinery.SourceFileLoader("conf", "conf.py")
loader.exec_module(importlib.util.module_from_spec(importlib.util.spec_from_loader("conf", loader)))
pkgutil.get_data("layers", "part.cfg"); open("run/size.cfg")
with open("state.json", "r+") as file: file.write("2")
os.environ.update(SEED="18"); os.environ.pop("GONE")
assert pickle.loads(pickle.dumps(open)) is builtins.open is io.open and open.__name__ == "open"
assert type("Store", (), {"opener": open})().opener("args.json").closed is False, "it is bound to no object"
inputs.leave_measured() if os.environ["WHEN"] != "at its end" else None
open("late.txt").read()
Path("args.json").write_text("{}" * 2)
Path("beside.tmp").write_text("1"); os.replace("beside.tmp", "target.yaml")
Path("moved.tmp").write_text("1"); Path("moved.tmp").rename("moved.bin")
os.system("echo 2 >base.yaml; echo 2 >input.txt")  # the first as a user does
assert pickle.loads(pickle.dumps(os.replace)) is os.replace
open("last.json", "w") if os.environ["WHEN"] != "measured" else None
os._exit(0) if os.environ["WHEN"] == "measured" else None
"""


@pytest.mark.parametrize("when", ["measured", "measured before its end", "at its end"])
def test_the_files_and_variables_of_a_program(tmp_path: Path, when: str) -> None:
    home, library = tmp_path / "home", tmp_path / "site-packages"
    for name, text in {
        home / "train.py": PROGRAM, home / "layers.py": "", home / "args.json": "{}", home / "base.yaml": "a: 1",
        home / "state.json": "1", home / "late.txt": "", home / "stage.py": "x = 1",
        home / "run/size.cfg": "", home / "input.txt": "", home / "part.cfg": "", home / "conf.py": "x = 1",
        library / "package/__init__.py": "", library / "package/net.py": "",
    }.items():  # fmt: skip
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text(text)
    place = python_start.prepare(str(tmp_path))
    env = {
        "RUNNER_RANK": "0",
        "GONE": "1",
        "WHEN": when,
        "HF_HOME": str(home),
        **python_start.variables({"PYTHONPATH": str(library)}, "x", place),
    }
    by_wrapper = {"DEPTH": "18", "API_KEY": "planted"}
    ran(["sh", "-c", f"{sys.executable} train.py <input.txt"], cwd=home, env=env | by_wrapper)
    given = inputs.variables(env)
    seen = inputs.collected(place, given)
    late = ("late.txt",) if when == "at its end" else ()
    assert {*seen["read"]} == {
        "args.json",
        "base.yaml",
        "conf.py",
        "input.txt",
        "layers.py",
        "part.cfg",
        "run/size.cfg",
        "stage.py",
        "train.py",
        *late,
    }
    at_end = ("args.json", "beside.tmp", "last.json", "moved.bin", "moved.tmp", "target.yaml")
    assert seen["written"] == sorted(["input.txt", "out.log", "state.json", *(at_end if when != "measured" else ())])
    assert seen["read"]["args.json"][0].startswith("text ") is (when != "at its end"), "as it was read, or not known"
    assert {*seen["modules"]} - {"train.py"} == {"layers.py"}
    assert seen["modules"]["layers.py"].startswith("state "), "what was imported is not known"
    assert [len(each) for name, each in seen["installed"].items() if name == "package"] == [2]
    own = {name: value for name, value in seen["variables"].items() if name not in ("LC_CTYPE", "PWD")}  # not ours
    assert own == {
        **given_of(DEPTH="18", API_KEY="x", nice=str(os.nice(0)), python=sys.version, **{"sys.argv": "train.py"})
    }
    assert "planted" not in json.dumps(seen)
    assert seen["cpus"] == len(os.sched_getaffinity(0))


def given_of(**env: str) -> dict[str, str]:
    return inputs.variables(env)


def test_a_value_is_without_what_each_job_has_of_its_own() -> None:
    def job(number: str, run: str, **env: str) -> dict[str, str]:
        here = {"SLURM_JOB_ID": number, "RUNNER_RUN_DIR": f"/runs/{run}", "TMPDIR": f"/tmp/{number}"}
        return given_of(**here, OUT=f"/out/{run}/{number}", CACHE=f"/tmp/{number}/cache", **env)

    first, second = job("4101", "20261126-1", LR="1"), job("4102", "20261127-2", LR="1")
    assert first == second != job("4102", "20261127-2", LR="41023")
    of_node = {"7": "0/a+7", "12": "0+abcd_123/a+12", "13": "cache-0-a+13"}  # the last: of an earlier version
    short = (given_of(SLURM_JOB_ID=job, CUDA_CACHE_PATH=f"/tmp/gpu-runner-{of_node[job]}/cuda") for job in of_node)
    assert len({each["CUDA_CACHE_PATH"] for each in short}) == 1
    assert job("8", "1", BATCH="8")["BATCH"] == job("9", "2", BATCH="8")["BATCH"]
    assert given_of(OUT="exp-20261127_154501", AT="1795794301") == given_of(OUT="exp-20261128-090000", AT="1795880000")
    assert given_of(DATA="d20240101") != given_of(DATA="d20240201")
    assert given_of(OUT=time.strftime("/out/%Y-%m-%d")) == given_of(OUT="/out/#")
    of_tensorboard = time.strftime("runs/%b%d_%H-%M-%S")
    assert given_of(OUT=of_tensorboard) == given_of(OUT=f"{of_tensorboard[:-5]}17-03") != given_of(OUT="runs/Mai7_1")
    for form in (
        "%y%m%d_%H%M%S",
        "%d%m%Y_%H%M",
        "%d-%m-%Y_%H-%M-%S",
        "%b-%d_%H-%M",
        "%d%b_%H%M",
        "%Y/%m/%d/%H%M",
        "%d.%m.%Y",
    ):
        days = (time.strftime(form, time.localtime(time.time() - each)) for each in (0, 90000))
        assert len({given_of(OUT=f"runs/{each}")["OUT"] for each in days}) == 1, form
    for one, other in (("/t/tmp.aB3dE6", "/t/tmp.xY9zW7"), (str(uuid.uuid4()), str(uuid.uuid4()))):
        assert given_of(OUT=one) == given_of(OUT=other)
    argv = "a.py\0--port\0{0}\0--seed={0}\0seed={0}\0--export\0{1}"
    assert given_of(A=argv.format(1, 1)) == given_of(A=argv.format(2, 1)) != given_of(A=argv.format(1, 2))
    argv = "a.py\0--run-name\0{0}\0+exp.name={0}\0--output_dir=out/{0}\0--logdir\0{0}\0--name\0{1}"
    assert given_of(A=argv.format("a", 1)) == given_of(A=argv.format("b/2", 1)) != given_of(A=argv.format("a", 2))
    assert given_of(A="--run-name=a --lr 1") != given_of(A="--run-name=a --lr 2")
    assert given_of(WANDB_API_KEY="planted", HF_TOKEN="1234567", KEY_LENGTH="no number") == {
        "WANDB_API_KEY": "", "HF_TOKEN": "", "KEY_LENGTH": "",
    }  # fmt: skip
    for name, value in {"KEY_DIM": "64", "BATCH_TOKENS": "16k", "TOKENIZER": "gpt2", "PASSES": "two"}.items():
        assert given_of(**{name: value})[name], name
    assert given_of(NUM_KEYPOINTS="16") != given_of(NUM_KEYPOINTS="17")
    assert given_of(MAX_TOKENS="4096") != given_of(MAX_TOKENS="8192")


LIBRARIES = """
import ctypes, package, package.large, sys
sys.path.insert(0, "lib.zip")
import zipped
for name in ("site-packages/nvidia/lib/libnccl.so.2", "./libops.so"): ctypes.CDLL(name)
open("data.bin").read()
for name in ("package/large.py", "package/part.yaml", "package-1.dist-info/entry_points.txt"):
    open(f"site-packages/{name}").read()
"""


@pytest.mark.parametrize(
    ("edited", "differs"),
    [
        ("", ""),
        ("site-packages/package/large.py", "package"),
        ("site-packages/nvidia/lib/libnccl.so.2", "nvidia/lib"),
        ("libops.so", "libops.so"),
        ("lib.zip", "lib.zip"),
        ("data.bin", ""),
    ],
)
def test_packages_installed_anew_are_the_same_ones_and_libraries_count(
    tmp_path: Path, edited: str, differs: str
) -> None:
    compiler = c_compiler()

    def collected(edit: str) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "home", ignore_errors=True)
        home = tmp_path / "home"
        for name in (
            *("site-packages/package/__init__.py", "site-packages/package/large.py", "site-packages/package/part.yaml"),
            *("site-packages/package-1.dist-info/entry_points.txt", "site-packages/nvidia/lib/libnccl.so.2"),
            *("libops.so", "lib.zip", "data.bin", "train.py"),
        ):
            path, text = home / name, "2" if name == edit else "1"
            path.parent.mkdir(parents=True, exist_ok=True)
            if ".so" in name:
                (home / "a.c").write_text(f"int f(void) {{ return {text}; }}")
                ran([compiler, "-shared", "-fPIC", "-o", path, home / "a.c"])
            elif name == "lib.zip":
                with zipfile.ZipFile(path, "w") as file:
                    file.writestr(zipfile.ZipInfo("zipped.py"), f"x = {text}")
            elif name == "train.py":
                path.write_text(LIBRARIES)
            else:
                path.write_text(f"# {text}\n" + "#" * (2 << 20) * (name in ("data.bin", edit) or "large" in name))
        place = python_start.prepare(str(tmp_path))
        env = {"RUNNER_RANK": "0", **python_start.variables({"PYTHONPATH": f"{home}/site-packages"}, "x", place)}
        ran([sys.executable, "train.py"], cwd=home, env=env)
        return inputs.collected(place, {})

    one, two = collected(""), collected(edited)
    assert {*one["read"]} == {"data.bin", "package/part.yaml", "train.py"}, "what packages have their modules tell"
    assert one["read"]["data.bin"][0] == two["read"]["data.bin"][0] == ""
    seen = [{**each["installed"], **each["modules"]} for each in (one, two)]
    assert {"package", "nvidia/lib", "libops.so"} <= {*seen[0]}
    assert [name for name in seen[0] if seen[0][name] != seen[1][name]] == [differs] * bool(differs)


def test_what_has_taken_a_files_place_is_not_read(tmp_path: Path) -> None:
    """A pipe, at which the program's end would wait; a link of another user's, to a file of the same size and time."""
    labels, private = tmp_path / "labels", tmp_path / "private"
    for path in (labels, private):
        path.write_text("1 2 3\n")
        os.utime(path, ns=(10**18, 10**18))
    about = labels.stat()
    state = (about.st_size, about.st_mtime_ns, about.st_ino)
    assert inputs._content(str(labels), state).startswith("text ")
    labels.unlink()
    os.mkfifo(labels)
    os.utime(labels, ns=(10**18, 10**18))
    assert (inputs._content(str(labels), state)[:6], inputs._ends(str(labels))) == ("state ", "")
    labels.unlink()
    labels.symlink_to(private)
    assert inputs._content(str(labels), state).startswith("state ")
    assert inputs._content(str(labels), state[:2]).startswith("text "), "where the inode is not known"
