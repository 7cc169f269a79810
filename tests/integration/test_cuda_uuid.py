"""A GPU's UUID, asked of a driver's library with the real call signatures."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid

from tests.support.shared_library import compile_library

pytestmark = pytest.mark.integration

# Device N has the handle N + 40 and the UUID bytes N, N + 1, ... There are two.
DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { if (ordinal > 1) return 101; *device = ordinal + 40; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  for (int i = 0; i < 16; i++) uuid[i] = device - 40 + i;
  return 0;
}
"""
OLD_DRIVER = "int cuInit(unsigned flags) { return 0; }"
NO_GPU = DRIVER.replace("{ return flags; }", "{ return 100; }")


def test_a_gpus_uuid_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = str(compile_library(DRIVER, tmp_path / "libcuda.so.1"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_uuid(0, driver) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert device_uuid(1, driver) == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
    assert device_uuid(2, driver) is None


def test_a_part_of_a_gpu_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f")
    driver = str(compile_library(DRIVER, tmp_path / "libcuda.so.1"))
    assert device_uuid(0, driver) == "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize("source", [OLD_DRIVER, NO_GPU])
def test_a_driver_that_cannot_say_gives_none(source: str, tmp_path: Path) -> None:
    assert device_uuid(0, str(compile_library(source, tmp_path / "libcuda.so.1"))) is None


def test_without_a_driver_there_is_none(tmp_path: Path) -> None:
    assert device_uuid(0, str(tmp_path / "libcuda.so.1")) is None
