"""NVIDIA's driver at the start of a job: the real launcher opens a stand-in for the driver's library; a GPU's UUID."""

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from gpu_runner_inside.launcher import binding

from runner.sites.detection.facts import Answer
from runner.sites.detection.host import read as read_host
from runner.sites.loader import gpu_driver, gpu_uuids, this_machine
from tests.support import packages
from tests.support.commands import Runner, extended, ran
from tests.support.launchers import Task, by_names, python, start
from tests.support.packages import compile_library
from tests.support.rank_records import document_of
from tests.support.shell_files import stand_in
from tests.support.waiting import until

pytestmark = pytest.mark.integration
# As Horovod 0.28.1 does; prints where the loader found it.
HOROVODS = (
    "import ctypes, os; ctypes.CDLL('libcuda.so'); print(os.environ.get('LD_LIBRARY_PATH')); "
    "print(*{line.split(None, 5)[5].strip() for line in open('/proc/self/maps') if 'libcuda' in line})"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.fake_cuda(tmp_path_factory.mktemp("cuda"))


class Node:
    """A node whose loader finds what is in ``libraries``, and a job of so many ranks there."""

    def __init__(self, directory: Path, ranks: int = 1) -> None:
        self.run, self.libraries, self.tmp = directory / "run", directory / "my libraries", directory / "tmp"
        for path in (self.run, self.libraries, self.tmp):
            path.mkdir()
        self.ranks = ranks
        self.calls = directory / "calls"
        self.calls.touch()

    def install(self, library: Path, *names: str) -> None:
        for name in names:
            shutil.copy(library, self.libraries / name)

    def plan(self, framework: str = "horovod", cuda: str = "12.8", **changed: object) -> None:
        about = {"framework": "pytorch", "cuda": cuda}
        plan = {"device": "cuda", "framework": framework, "image": {"about": about}, **changed}
        (self.run / "plan.json").write_text(json.dumps(plan))

    def start(self, *options: str, rank: int = 0, program: str = "print('it ran')", **env: str) -> Task:
        variables = {
            "LD_LIBRARY_PATH": str(self.libraries), "TMPDIR": str(self.tmp), "FAKE_CUDA_CALLS": str(self.calls),
            **by_names(rank, self.ranks), **env,
        }  # fmt: skip
        return start(self.run, [*options, *python(program)], rank, variables)

    def launch(self, *options: str, program: str = "print('it ran')", **env: str) -> tuple[int, str, str]:
        process = self.start(*options, rank=0, program=program, **env).process
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        return process.returncode, out, err

    def callers(self) -> list[int]:
        opened = []
        for process in Path("/proc").glob("[1-9]*"):
            with suppress(OSError):
                if str(self.libraries) in (process / "maps").read_text():
                    opened.append(int(process.name))
        return opened


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.plan()
    return made


def test_a_driver_that_is_there_is_called_once_and_the_program_gets_its_own_environment(
    node: Node, library: Path
) -> None:
    node.install(library, "libcuda.so.1", "libcuda.so")
    began = time.monotonic()
    code, out, err = node.launch(program=HOROVODS)
    assert time.monotonic() - began < 10, "the whole launcher, on a busy machine"
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == str(node.libraries)
    assert node.calls.read_text() == "xx", "each file by its name"
    assert list(node.tmp.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        ({"FAKE_CUDA_INIT": "100"}, 121, "gpus-missing: 1 GPU is planned here, and CUDA shows 0"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 121, "and CUDA shows 0 (CUDA_VISIBLE_DEVICES=)"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 121, "; Slurm gave this step none (CUDA_VISIBLE_DEVICES=NoDevFiles)"),
        ({"FAKE_CUDA_INIT": "803"}, 119, "cuda-driver-unusable: cuInit gives 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"),
        ({"FAKE_CUDA_INIT": "999"}, 119, "cuda-driver-unusable: cuInit gives 999 (CUDA_ERROR_UNKNOWN)"),
        ({"FAKE_CUDA_INIT": "crash"}, 119, "ended the process that called it: signal 11 (SIGSEGV)"),
        ({"FAKE_CUDA_VERSION": "11080"}, 120, "runs CUDA up to 11.8, and pytorch has CUDA 12.8"),
        ({"FAKE_CUDA_DEVICES": "0"}, 121, "gpus-missing: 1 GPU is planned here, and CUDA shows 0"),
    ],
)  # fmt: skip
def test_a_driver_that_cannot_do_what_is_planned_ends_the_job_before_its_program(
    node: Node, library: Path, env: dict[str, Any], code: int, words: str
) -> None:
    node.install(library, "libcuda.so.1", "libcuda.so")
    ended, out, err = node.launch(**env)
    assert (ended, out) == (code, "")
    assert words in err
    record = document_of(node.run, "ranks/0.exit")
    assert (record["status"], record["error"]) == (code, err.split(": ")[2])
    assert words.removeprefix(f"{record['error']}: ") in record["message"]


@pytest.mark.parametrize("content", [None, b"", b"not a library"])
def test_a_driver_that_is_not_there_or_is_no_library_is_reported_in_the_loaders_words(
    node: Node, content: bytes | None
) -> None:
    """An image that was once written back by a container engine has empty files in the driver's place."""
    if content is not None:
        (node.libraries / "libcuda.so.1").write_bytes(content)
    code, _out, err = node.launch()
    assert code == 118
    assert "cuda-driver-missing: NVIDIA's driver library: " in err
    assert "libcuda.so.1: " in err


def test_where_only_horovods_name_is_missing_the_program_finds_it_by_a_link_until_the_job_ends(
    node: Node, library: Path
) -> None:
    node.install(library, "libcuda.so.1")
    code, out, err = node.launch(program=HOROVODS)
    assert code == 0, err
    assert "note: libcuda.so.1 is here, but not libcuda.so, the name by which Horovod opens it" in err
    path, opened = out.splitlines()
    assert path.startswith(f"{node.libraries}:{node.tmp}/gpu-runner-")
    assert opened == str(node.libraries / "libcuda.so.1")
    assert list(node.tmp.glob("*/*")) == [], "no link is left"


@pytest.mark.parametrize(("before", "after"), [("{0}", "{0}:"), ("{0}:", "{0}::"), ("/none:{0}", "/none:{0}:")])
def test_the_link_comes_after_all_that_the_environment_had(node: Node, library: Path, before: str, after: str) -> None:
    node.install(library, "libcuda.so.1")
    code, out, err = node.launch(program=HOROVODS, LD_LIBRARY_PATH=before.format(node.libraries))
    assert code == 0, err
    assert out.startswith(after.format(node.libraries) + str(node.tmp))


def test_where_no_link_can_be_made_only_a_job_of_horovods_ends(node: Node, library: Path) -> None:
    node.install(library, "libcuda.so.1")
    odd = node.tmp / "a$b"
    odd.mkdir()
    code, _out, err = node.launch(TMPDIR=str(odd))
    assert (code, "cuda-driver-missing: libcuda.so.1 is here, but Horovod's name: libcuda.so: " in err) == (118, True)
    node.plan(framework="none")
    code, out, err = node.launch(TMPDIR=str(odd))
    assert (code, out) == (0, "it ran\n")
    assert "warning: Horovod would fail here: libcuda.so.1 is here, but Horovod's name: libcuda.so: " in err


def test_a_stub_under_horovods_name_is_reported_though_the_driver_itself_is_good(
    node: Node, library: Path, tmp_path: Path
) -> None:
    """The toolkit's lib64/stubs in LD_LIBRARY_PATH."""
    node.install(library, "libcuda.so.1")
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    compile_library("int cuInit(unsigned flags) { (void)flags; return 34; }\n", stubs / "libcuda.so")
    code, _out, err = node.launch(LD_LIBRARY_PATH=f"{stubs}:{node.libraries}")
    assert code == 119
    assert "cuInit gives 34 (CUDA_ERROR_STUB_LIBRARY): this is the CUDA toolkit's stub" in err
    assert f"(Horovod opens libcuda.so, which is {stubs}/libcuda.so)" in err


def test_a_driver_that_hangs_is_reported_in_time_and_nothing_of_it_stays(node: Node, library: Path) -> None:
    node.install(library, "libcuda.so.1", "libcuda.so")
    began = time.monotonic()
    code, _out, err = node.launch(FAKE_CUDA_INIT="hang", RUNNER_DRIVER_TIMEOUT_S="1.5")
    assert code == 119
    assert "cuInit did not return within 1.5 s: the driver hangs" in err
    assert 1.5 <= time.monotonic() - began < 20
    assert node.callers() == []


def test_a_driver_that_writes_lines_and_leaves_a_process_behind_is_waited_for_no_longer(
    node: Node, library: Path
) -> None:
    node.install(library, "libcuda.so.1", "libcuda.so")
    began = time.monotonic()
    assert node.launch(FAKE_CUDA_NOISE="1") == (0, "it ran\n", "")
    assert time.monotonic() - began < 4, "the process that is left behind has the pipe for 4 s"


def test_a_job_that_is_stopped_while_the_driver_hangs_ends_at_once(node: Node, library: Path) -> None:
    node.install(library, "libcuda.so.1", "libcuda.so")
    task = node.start(FAKE_CUDA_INIT="hang")
    until(node.calls.read_text, "the call of the driver")
    for pid in [*node.callers(), task.process.pid]:  # as Slurm does: every process of the step
        os.kill(pid, signal.SIGTERM)
    status, err = task.end()
    assert (status, task.record("exit")["error"]) == (128 + signal.SIGTERM, "stopped-before-start")
    assert "stopped by SIGTERM" in err
    assert node.callers() == []


def test_only_the_first_task_of_a_node_calls_the_driver_and_every_task_gets_the_link(
    tmp_path: Path, library: Path
) -> None:
    node = Node(tmp_path, ranks=3)
    node.plan()
    node.install(library, "libcuda.so.1")
    port = str(20000 + os.getpid() % 9000)
    tasks = [node.start(rank=rank, program=HOROVODS, FAKE_CUDA_DEVICES="3", RUNNER_RDV_PORT=port) for rank in range(3)]
    paths = {task.line() for task in tasks}
    ended = [task.end() for task in tasks]
    assert [(status, err.count("note: ")) for status, err in ended] == [(0, 1), (0, 0), (0, 0)], ended
    assert node.calls.read_text() == "x"
    assert len(paths) == 3
    assert list(node.tmp.glob("*/*")) == []


@pytest.mark.parametrize(
    ("devices", "visible", "code"),
    [
        ("3", None, 121), ("4", None, 0), ("8", None, 0), ("1", "0,1,2,3", 121), ("1", "2", 121),
        ("1", "MIG-1c2b,MIG-3d4e,MIG-5f6a,MIG-7b8c", 0),
    ],
)  # fmt: skip
def test_gpus_are_counted_as_they_are_planned_for_the_node(
    node: Node, library: Path, devices: str, visible: str | None, code: int
) -> None:
    """Such a program needs all of the node's GPUs; of parts of GPUs (MIG) CUDA never shows more than one."""
    node.install(library, "libcuda.so.1", "libcuda.so")
    env = {"FAKE_CUDA_DEVICES": devices, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    assert node.launch("--wireup", "own", "--gpus", "4", **env)[0] == code


@pytest.mark.parametrize("changed", [{"device": "cpu"}, {"image": {"about": {"framework": "pytorch", "cuda": ""}}}])
def test_a_job_on_cpus_needs_no_driver(node: Node, changed: dict[str, Any]) -> None:
    node.plan(**changed)
    assert node.launch() == (0, "it ran\n", "")


def test_the_verdict_names_the_missing_driver_and_what_brings_it(runner: Runner, tmp_path: Path) -> None:
    """The whole chain, on a cluster whose site file says that its GPUs are real."""
    site = extended(runner.site, tmp_path, device="cuda")
    words = ("submit", "--gpus", "4", "--nodes", "2", "--runtime", "native", "--wait", "--", "true")
    said = runner(*words, code=8, site=site, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    verdict = document_of(runner.newest(), "verdict")
    assert (verdict["outcome"], verdict["who"]) == ("infrastructure", "site")
    assert "did not start its program: cuda-driver-missing: NVIDIA's driver library: libcuda.so.1: " in said.out
    assert verdict["fix"].startswith("the node itself has the driver: `nvidia-smi` must work there")


# Device N has the handle N + 40 and the UUID bytes N, N + 1, ... There are two.
TWO_GPUS = """
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { if (ordinal > 1) return 101; *device = ordinal + 40; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  for (int i = 0; i < 16; i++) uuid[i] = device - 40 + i;
  return 0;
}
"""
FIRST = "00010203-0405-0607-0809-0a0b0c0d0e0f"
OLD_DRIVER, NO_GPU = "int cuInit(unsigned flags) { return 0; }", TWO_GPUS.replace("return flags;", "return 100;")


@pytest.mark.parametrize(
    ("source", "visible", "uuids"),
    [
        (TWO_GPUS, None, [f"GPU-{FIRST}", "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", None]),
        (TWO_GPUS, f"MIG-{FIRST}", [f"MIG-{FIRST}"]),
        (OLD_DRIVER, None, [None]),
        (NO_GPU, None, [None]),
        (None, None, [None]),
    ],
    ids=["a driver", "a part of a GPU", "an old driver", "no GPU", "no driver"],
)
def test_a_gpus_uuid_is_the_drivers(
    source: str | None, visible: str | None, uuids: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "libcuda.so.1"
    if source is not None:
        compile_library(source, driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device_uuid(number, str(driver)) for number in range(len(uuids))] == uuids


UNKNOWN = "Model: NVIDIA A100\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n"


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        ({"dev/dxg": ""}, 2),  # WSL2
        ({"dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia1": ""}, 2),  # gVisor
        ({"dev/nvidiactl": "", "dev/nvidia0": "", "proc/driver/nvidia/gpus/0000:07:00.0/information": UNKNOWN}, 2),
        ({"dev/nvidia0": "", "proc/driver/nvidia/gpus/0000:07:00.0/information": UNKNOWN}, 1),  # no driver to ask
        ({"dev/nvidiactl": "", "proc/driver/nvidia/gpus/0000:07:00.0/information": UNKNOWN.replace("?", "a")}, 0),
    ],
)
def test_gpus_that_proc_does_not_list_are_those_of_the_drivers_libraries(
    files: dict[str, str], opened: int, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the management library, or where a container has none by CUDA; the launcher and the site see the same."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("RUNNER_NVML", str(packages.fake_nvml(tmp_path)))
    here = tmp_path / "with NVML"
    here.symlink_to(".")
    assert len(binding.gpus(str(here))) == this_machine(here).gpus == opened
    if opened == 2:
        assert [(gpu.bus, gpu.uuid) for gpu in binding.gpus(str(here))] == [
            ("0000:07:00.0", "GPU-0"), ("0000:0f:00.0", "GPU-1")]  # fmt: skip
        assert (sorted(gpu_uuids(here)), gpu_driver(here)) == (["GPU-0", "GPU-1"], "550.54.15")
        monkeypatch.setenv("RUNNER_NVML", "/nowhere.so")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a job: its node has the same GPUs
        assert [(gpu.bus, gpu.uuid) for gpu in binding.gpus(str(tmp_path))] == [
            ("0000:4e:00.0", "GPU-00000000-0000-0000-0000-000000000000"),
            ("0000:4f:00.0", "GPU-01010101-0101-0101-0101-010101010101")]  # fmt: skip


@pytest.mark.parametrize("script", ["runner/backends/schedulers/shell/preflight.sh", "runner/sites/detection/host.sh"])
def test_a_node_without_the_drivers_files_is_described_by_nvidia_smi(script: str, tmp_path: Path) -> None:
    stand_in(
        tmp_path,
        "nvidia-smi",
        """case $1 in -L) echo 'GPU 0: NVIDIA H100 (UUID: GPU-a)'; echo '  MIG 1g.10gb';;
*driver*) echo 580.159.04;; *) echo 'NVIDIA H100, 9.0, Disabled';; esac""",
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    out = ran(
        ["bash", "-c", 'token=/dev/null; mounts=() programs=() modules=(); . "$0"', script], env={"PATH": path}
    ).out
    if "preflight" in script:
        assert "gpu-runner: gpus 1\n" in out
    else:
        seen = read_host(Answer("host", out))
        assert seen is not None
        assert (seen.driver, seen.gpus) == ("580.159.04", (("NVIDIA H100", "9.0", "Disabled"),))
