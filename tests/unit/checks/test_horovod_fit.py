"""Horovod of an image or environment against a site's GPUs: NCCL, kernels for them, and what is not known of both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.checks import image_fit
from runner.checks.image_fit import check_horovod
from runner.checks.registry import Case, Observed
from runner.model.image import Horovod, ImageFacts, facts_of
from runner.model.plan import Finding, Plan, PlannedImage
from runner.model.request import Recipe, Request
from runner.model.site import Hardware, Queue, Site
from runner.planning.plan import plan
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site

HOROVOD = Horovod(
    "0.28.1", controllers=("MPI", "Gloo"), operations=("NCCL", "MPI", "Gloo"), nccl="2.25.1",
    cuda_architectures=(80, 90), ptx=90,
)  # fmt: skip
FACTS = ImageFacts(
    framework="pytorch", framework_version="2.7.0", cuda="12.8", cuda_archs=("sm_80", "sm_90", "compute_90"),
    horovod=HOROVOD, base="nvcr.io/nvidia/pytorch:25.02-py3",
)  # fmt: skip
BENCHMARK = read_recipe("horovod-pytorch").recipe
OWN: dict[str, Any] = {
    "recipe": Recipe(name="train", description="", image="i", program=("python", "train.py"), framework="none")
}
USED: dict[str, Any] = OWN | {"use": "train.py, line 3,"}
A100, VOLTA, TECHNION = Hardware(compute_capability="8.0"), Hardware(compute_capability="7.0"), read_site("technion")
NATIVE: dict[str, Any] = {"runtime": "native", "site": read_site("neuron")}


def with_horovod(**changes: Any) -> ImageFacts:
    return msgspec.structs.replace(FACTS, horovod=msgspec.structs.replace(HOROVOD, **changes))


def planned(about: ImageFacts | None, recipe: Recipe = BENCHMARK, site: Site = TECHNION, **request: Any) -> Plan:
    image = PlannedImage("x:1", "sha256:0", "/x.sqsh", about=about)
    return plan(recipe, site, Request(**({"gpus": 2} | request)), image)


def findings_of(about: ImageFacts | None, hardware: Hardware = A100, use: str = "", **more: Any) -> dict[str, Finding]:
    made = msgspec.structs.replace(planned(about, **more), gpu_type="")
    site = msgspec.structs.replace(more.get("site", TECHNION), hardware=hardware)
    return {finding.code: finding for finding in check_horovod(Case(made, site, Observed(horovod_use=use)))}


NO_NCCL = with_horovod(operations=("MPI", "Gloo"), nccl="", cuda_architectures=(), ptx=0)
WITHOUT, REFUSED = "horovod-without-kernels", {"horovod-without-kernels": "refuse"}
AS_PTX, UNKNOWN = {"horovod-kernels-only-as-ptx": "warn"}, {"horovod-fit-unknown": "warn"}
OLDER = {"version": "0.28.1", "controllers": ["Gloo"], "operations": ["NCCL", "Gloo"]}


def described(**horovod: Any) -> ImageFacts | None:
    """As an image's own description says it."""
    return facts_of({"schema": 2, "framework": "pytorch", "cuda": "12.8", "horovod": horovod})


@pytest.mark.parametrize(
    ("about", "capability", "more", "wanted"),
    [
        (FACTS, "8.0", {}, {}),
        (FACTS, "8.0", USED, {}),
        (FACTS, "8.6", {}, {}),
        (with_horovod(cuda_architectures=(90,)), "8.0", {}, REFUSED),
        (FACTS, "7.0", {}, REFUSED),
        (FACTS, "7.0", OWN, {WITHOUT: "warn"}),
        (FACTS, "7.0", USED, REFUSED),
        (with_horovod(ptx=0), "10.0", {}, REFUSED),
        (FACTS, "10.0", {}, AS_PTX),
        (with_horovod(cuda_architectures=(), ptx=80), "9.0", {}, AS_PTX),
        # Numbers that are no architectures cover no GPU.
        (with_horovod(cuda_architectures=(-80, 0, 8), ptx=0), "8.0", {}, {}),
        (with_horovod(cuda_architectures=(800,), ptx=0), "8.0", {}, REFUSED),
        # On CPUs nothing of it matters, and a framework without CUDA is a finding of its own.
        (None, "", {"site": read_site("box")}, {}),
        (NO_NCCL, "", {"site": read_site("box")}, {}),
        (ImageFacts(framework="pytorch"), "", {"site": read_site("box")}, {}),
        (ImageFacts(framework="pytorch", horovod=Horovod("0.28.1", operations=("Gloo",))), "8.0", {}, {}),
        # What is not known is warned of where Horovod is used.
        (None, "8.0", OWN, {}),
        (with_horovod(operations=()), "8.0", OWN, {}),
        (FACTS, "", OWN, {}),
        (described(**OLDER), "8.0", {}, UNKNOWN),
        (described(operations="NCCL"), "8.0", {}, UNKNOWN),
    ],
)
def test_its_kernels_are_compared_with_the_gpus(about: Any, capability: str, more: Any, wanted: dict[str, str]) -> None:
    reported = findings_of(about, Hardware(compute_capability=capability), **more)
    assert {code: finding.severity for code, finding in reported.items()} == wanted


@pytest.mark.parametrize(
    ("about", "capability", "says"),
    [
        (None, "8.0", "its operations, the architectures of its kernels"),
        (with_horovod(operations=()), "8.0", "its operations"),
        (with_horovod(cuda_architectures=(), ptx=0), "8.0", "the architectures of its kernels"),
        (FACTS, "", "the compute capability of these GPUs"),
    ],
)
def test_what_is_not_known_is_named(about: ImageFacts | None, capability: str, says: str) -> None:
    ((code, finding),) = findings_of(about, Hardware(compute_capability=capability)).items()
    assert {code: finding.severity} == UNKNOWN
    assert finding.what.endswith(f"may not fit the GPUs of technion; unknown: {says}")


@pytest.mark.parametrize(
    ("more", "severity", "says"),
    [
        ({}, "refuse", "the recipe horovod-pytorch uses it"),
        (USED, "refuse", "train.py, line 3, uses it"),
        (OWN, "warn", "a program that does not use Horovod needs none"),
    ],
)
def test_a_horovod_without_nccl_is_refused_where_it_is_used_and_else_warned_of(
    more: Any, severity: str, says: str
) -> None:
    finding = findings_of(NO_NCCL, **more)["horovod-without-nccl"]
    assert (finding.severity, "--force horovod-without-nccl" in finding.fix) == (severity, severity == "refuse")
    assert says in finding.what
    assert "operations: MPI, Gloo" in finding.what
    assert "gpu-runner build pytorch --base IMAGE" in finding.fix


def test_an_environment_is_made_again_by_its_own_command() -> None:
    assert "environment x:1 has no NCCL" in findings_of(NO_NCCL, **NATIVE)["horovod-without-nccl"].what
    fix = findings_of(with_horovod(cuda_architectures=(90,)), **NATIVE)[WITHOUT].fix
    assert fix.endswith("gpu-runner env create x:1 --site neuron --cuda-archs 80")


@pytest.mark.parametrize(
    "forged",
    [{"operations": "NCCL"}, {"cuda_architectures": ["80"]}, {"cuda_architectures": [80.5]}, {"ptx": "90"}],
)
def test_a_description_of_another_form_is_none(forged: dict[str, Any]) -> None:
    assert described(**OLDER)
    assert described(**forged) is None


@pytest.mark.parametrize(
    ("queue", "requested", "capability"),
    [
        (None, {}, "8.0"),
        (None, {"gpu_type": "v100"}, "7.0"),
        (None, {"gpu_type": "nvidia_h100_80gb_hbm3"}, "9.0"),
        (None, {"gpu_type": "a100_3g.20gb"}, "8.0"),
        (None, {"gpu_type": "mi300x"}, ""),
        (VOLTA, {}, "7.0"),
        (VOLTA, {"gpu_type": "h100"}, "9.0"),
        (Hardware(driver="535.1"), {}, ""),
    ],
)
def test_the_gpus_are_those_of_the_queue_and_of_the_type_that_is_requested(
    queue: Hardware | None, requested: dict[str, Any], capability: str
) -> None:
    """A queue that the limits choose counts as one that is named."""
    site = msgspec.structs.replace(TECHNION, queues={"q": Queue(hardware=queue)}) if queue else TECHNION
    assert image_fit.job_hardware(planned(FACTS, site=site, **requested), site).compute_capability == capability
