"""What a job on GPUs needs of NVIDIA's driver, and whether what the driver says is enough."""

from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.launcher.driver import Needs, check, expected, needs_of, patience_s, runs
from gpu_runner_inside.launcher.failure import LaunchError

from tests.support.launchers import start

NEEDS = Needs("pytorch", "12.8", 4, horovod=True)
FILE = "/usr/lib/libcuda.so.550.54.15"


def answers(init: int | None = 0, version: int | None = 12080, devices: int | None = 4) -> dict[str, Any]:
    library = {"path": FILE, "problem": None, "init": init}
    return {"libraries": {"libcuda.so.1": library, "libcuda.so": library}, "version": version, "devices": devices}


def refused(given: dict[str, Any], needs: Needs = NEEDS, **env: str) -> str:
    with pytest.raises(LaunchError, match=r"GPU|CUDA|cuda") as error:
        check(given, needs, env)
    return f"{error.value.code}: {error.value}"


def test_a_driver_that_has_what_is_needed_is_not_refused() -> None:
    check(answers(), NEEDS, {})
    check(answers(version=None, devices=None), NEEDS, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})


NOTHING_TOLD: dict[str, Any] = {"version": None, "devices": None}
ONE_PLANNED, OWN = Needs("", "", 1, False), Needs("", "", 4, False, own=True)


@pytest.mark.parametrize(
    ("init", "words"),
    [
        (34, "cuInit gives 34 (CUDA_ERROR_STUB_LIBRARY): this is the CUDA toolkit's stub and no driver"),
        (802, "(CUDA_ERROR_SYSTEM_NOT_READY): the node's NVSwitches are not ready"),
        (803, "(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): the library is of another version than the driver in the kernel"),
        (804, "(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE): the image's compat package"),
        (999, "(CUDA_ERROR_UNKNOWN): the driver cannot use its devices; /dev/nvidia-uvm may be missing"),
        (214, "cuInit gives 214 (libcuda.so.1 is"),
        (None, "it has no cuInit: this is no driver"),
    ],
)  # fmt: skip
def test_each_error_of_the_driver_has_its_sentence(init: int | None, words: str) -> None:
    said = refused(answers(init=init, **NOTHING_TOLD))
    assert said.startswith("cuda-driver-unusable: ")
    assert words in said
    assert said.endswith(f"(libcuda.so.1 is {FILE})")


@pytest.mark.parametrize(
    ("given", "needs", "env", "said"),
    [
        *((answers(init=init, version=11040), NEEDS, {},
           "cuda-driver-too-old: the node's driver runs CUDA up to 11.4, and pytorch has CUDA 12.8")
          for init in (0, 803)),
        (answers(devices=3), NEEDS, {"NVIDIA_VISIBLE_DEVICES": "0,1,2"},
         "gpus-missing: 4 GPUs are planned here, and CUDA shows 3 (NVIDIA_VISIBLE_DEVICES=0,1,2)"),
        (answers(init=100, devices=None), ONE_PLANNED, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
         "gpus-missing: 1 GPU is planned here, and CUDA shows 0; Slurm gave this step none "
         "(CUDA_VISIBLE_DEVICES=NoDevFiles)"),
        # A program that starts its own processes must see all GPUs.
        (answers(devices=1), OWN, {"CUDA_VISIBLE_DEVICES": "0"},
         "gpus-missing: 4 GPUs are planned here, and CUDA shows 1 (CUDA_VISIBLE_DEVICES=0)"),
    ],
)  # fmt: skip
def test_too_old_a_driver_and_too_few_gpus_are_reported_with_what_hides_them(
    given: dict[str, Any], needs: Needs, env: dict[str, str], said: str
) -> None:
    assert refused(given, needs, **env) == said


@pytest.mark.parametrize(
    ("version", "cuda", "good"),
    [
        (12040, "12.8", True), (13000, "12.8.1", True), (12080, "13.0", False), (12090, "13", False),
        (11080, "12.0", False), (11000, "10.2", True), (10010, "10.2", False), (10020, "10.2", True),
        (12040, "", True), (12040, "unknown", True),
    ],
)  # fmt: skip
def test_a_driver_runs_programs_of_its_major_version_and_of_older_ones(version: int, cuda: str, good: bool) -> None:
    """Before CUDA 11 there is no compatibility between minor versions."""
    assert runs(version, cuda) is good


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({}, 4), ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4), ({"CUDA_VISIBLE_DEVICES": ""}, 4),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 4), ({"CUDA_VISIBLE_DEVICES": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1c2b,MIG-3d4e"}, 1), ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-8932f937/7/0"}, 1),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-1c2b,MIG-3d4e"}, 1), ({"NVIDIA_VISIBLE_DEVICES": "0"}, 4),
    ],
)  # fmt: skip
def test_a_task_with_a_gpu_of_its_own_or_a_part_of_one_is_shown_one(env: dict[str, str], number: int) -> None:
    assert expected(4, env) == number
    assert expected(4, env, own=True) == (1 if "MIG" in str(env) else 4)


def test_only_plans_on_gpus_need_a_driver_and_no_image_that_is_known_to_have_no_cuda() -> None:
    about = {"framework": "pytorch", "cuda": "12.8"}
    plan = {"device": "cuda", "framework": "horovod", "image": {"about": about}}
    assert needs_of(plan, 4) == NEEDS
    assert needs_of({**plan, "image": {"about": None}, "framework": "none"}, 2) == Needs("", "", 2, horovod=False)
    assert needs_of({**plan, "image": {"about": {**about, "cuda": ""}}}, 4) is None
    assert needs_of({**plan, "device": "cpu"}, 4) is None
    assert needs_of({}, 4) is None
    own = needs_of({**plan, "forced": ["gpus-hidden"]}, 4)
    assert own is not None
    assert own.gpus == 1


def test_patience_is_a_number_of_seconds() -> None:
    assert (patience_s({}), patience_s({"RUNNER_DRIVER_TIMEOUT_S": "2.5"})) == (60.0, 2.5)
    with pytest.raises(LaunchError, match="RUNNER_DRIVER_TIMEOUT_S is no number of seconds: 'soon'"):
        patience_s({"RUNNER_DRIVER_TIMEOUT_S": "soon"})


def test_a_job_on_gpus_ends_where_there_is_no_driver_unless_it_is_not_to_be_looked_at(tmp_path: Path) -> None:
    """On this machine's own loader: the library's name is searched in vain, or NVIDIA's driver is there."""
    (tmp_path / "plan.json").write_text('{"device": "cuda"}')
    env = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    status, err = start(tmp_path, ["--", "true"], env=env).end()
    assert status in (118, 121)
    assert ("cuda-driver-missing: NVIDIA's driver library: libcuda.so.1: " in err) is (status == 118)
    assert start(tmp_path, ["--", "true"], env={**env, "RUNNER_DRIVER_TIMEOUT_S": "0"}).end()[0] == 0
