"""Horovod of an image or environment against a site's GPUs: NCCL, kernels for them, and what is not known of both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.checks import image_fit
from runner.checks.image_fit import horovod_findings
from runner.model.image import Horovod, ImageFacts, facts_of
from runner.model.plan import Finding, Plan, PlannedImage
from runner.model.request import Recipe, Request
from runner.model.site import Hardware, Queue, Site
from runner.planning.plan import plan
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site

HOROVOD = Horovod(
    "0.28.1",
    controllers=("MPI", "Gloo"),
    operations=("NCCL", "MPI", "Gloo"),
    nccl="2.25.1",
    cuda_architectures=(80, 90),
    ptx=90,
)
FACTS = ImageFacts(
    framework="pytorch",
    framework_version="2.7.0",
    cuda="12.8",
    cuda_archs=("sm_80", "sm_90", "compute_90"),
    horovod=HOROVOD,
    base="nvcr.io/nvidia/pytorch:25.02-py3",
)
BENCHMARK = read_recipe("horovod-pytorch").recipe
PROGRAM = Recipe(name="train", description="", image="i", program=("python", "train.py"), framework="none")
A100, TECHNION = Hardware(compute_capability="8.0"), read_site("technion")


def with_horovod(**changes: Any) -> ImageFacts:
    return msgspec.structs.replace(FACTS, horovod=msgspec.structs.replace(HOROVOD, **changes))


def planned(about: ImageFacts | None, recipe: Recipe = BENCHMARK, site: Site = TECHNION, **request: Any) -> Plan:
    image = PlannedImage("x:1", "sha256:0", "/x.sqsh", about=about)
    return plan(recipe, site, Request(**({"gpus": 2} | request)), image)


def findings_of(about: ImageFacts | None, hardware: Hardware = A100, use: str = "", **more: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in horovod_findings(planned(about, **more), hardware, use)}


def severities(about: ImageFacts | None, hardware: Hardware = A100, use: str = "", **more: Any) -> dict[str, str]:
    return {code: finding.severity for code, finding in findings_of(about, hardware, use, **more).items()}


def test_a_horovod_that_fits_is_not_spoken_of() -> None:
    assert severities(FACTS) == {}
    assert severities(FACTS, use="train.py, line 3,", recipe=PROGRAM) == {}


def test_a_horovod_without_nccl_is_refused_where_it_is_used_and_else_warned_of() -> None:
    without = with_horovod(operations=("MPI", "Gloo"), nccl="", cuda_architectures=(), ptx=0)
    used = findings_of(without)["horovod-without-nccl"]
    assert (used.severity, "the recipe horovod-pytorch uses it" in used.what) == ("refuse", True)
    assert "operations: MPI, Gloo" in used.what
    assert "python -m runner build pytorch --base IMAGE" in used.fix
    assert "--force horovod-without-nccl" in used.fix
    own = findings_of(without, use="train.py, line 3,", recipe=PROGRAM)["horovod-without-nccl"]
    assert (own.severity, "train.py, line 3, uses it" in own.what) == ("refuse", True)
    other = findings_of(without, recipe=PROGRAM)["horovod-without-nccl"]
    assert (other.severity, "a program that does not use Horovod needs none" in other.what) == ("warn", True)
    assert "--force" not in other.fix


def test_an_environment_is_made_again_by_its_own_command() -> None:
    native: dict[str, Any] = {"runtime": "native", "site": read_site("neuron")}
    assert (
        "environment x:1 has no NCCL"
        in findings_of(with_horovod(operations=("Gloo",)), **native)["horovod-without-nccl"].what
    )
    fix = findings_of(with_horovod(cuda_architectures=(90,)), **native)["horovod-without-kernels"].fix
    assert fix.endswith("python -m runner env create x:1 --site neuron --cuda-archs 80")


@pytest.mark.parametrize(
    ("archs", "ptx", "capability", "wanted"),
    [
        ((80, 90), 90, "8.6", {}),
        ((90,), 90, "8.0", {"horovod-without-kernels": "refuse"}),
        ((80, 90), 90, "7.0", {"horovod-without-kernels": "refuse"}),
        ((80, 90), 0, "10.0", {"horovod-without-kernels": "refuse"}),
        ((80, 90), 90, "10.0", {"horovod-kernels-only-as-ptx": "warn"}),
        ((), 80, "9.0", {"horovod-kernels-only-as-ptx": "warn"}),
    ],
)
def test_its_kernels_are_compared_with_the_gpus(
    archs: tuple[int, ...], ptx: int, capability: str, wanted: dict[str, str]
) -> None:
    facts, hardware = with_horovod(cuda_architectures=archs, ptx=ptx), Hardware(compute_capability=capability)
    assert severities(facts, hardware) == wanted


def test_kernels_of_a_horovod_that_is_not_used_are_but_warned_of() -> None:
    volta = Hardware(compute_capability="7.0")
    assert severities(FACTS, volta, recipe=PROGRAM) == {"horovod-without-kernels": "warn"}
    assert severities(FACTS, volta, use="train.py, line 3,", recipe=PROGRAM) == {"horovod-without-kernels": "refuse"}


@pytest.mark.parametrize(
    ("about", "hardware", "says"),
    [
        (None, A100, "its operations, the architectures of its kernels"),
        (with_horovod(operations=()), A100, "its operations"),
        (with_horovod(cuda_architectures=(), ptx=0), A100, "the architectures of its kernels"),
        (FACTS, Hardware(), "the compute capability of these GPUs"),
    ],
)
def test_what_is_not_known_is_warned_of_where_horovod_is_used(
    about: ImageFacts | None, hardware: Hardware, says: str
) -> None:
    reported = findings_of(about, hardware)
    assert {code: finding.severity for code, finding in reported.items()} == {"horovod-fit-unknown": "warn"}
    assert reported["horovod-fit-unknown"].what.endswith(f"may not fit the GPUs of technion; unknown: {says}")
    assert severities(about, hardware, recipe=PROGRAM) == {}


def test_a_description_of_an_earlier_version_is_read_and_leaves_its_kernels_unknown() -> None:
    horovod = {"version": "0.28.1", "controllers": ["Gloo"], "operations": ["NCCL", "Gloo"]}
    older = facts_of({"schema": 2, "framework": "pytorch", "cuda": "12.8", "horovod": horovod})
    assert older is not None
    assert severities(older) == {"horovod-fit-unknown": "warn"}


@pytest.mark.parametrize(
    "forged",
    [{"operations": "NCCL"}, {"cuda_architectures": ["80"]}, {"cuda_architectures": [80.5]}, {"ptx": "90"}],
)
def test_a_description_of_another_form_is_none(forged: dict[str, Any]) -> None:
    about = facts_of({"framework": "pytorch", "cuda": "12.8", "horovod": forged})
    assert about is None
    assert severities(about) == {"horovod-fit-unknown": "warn"}


def test_numbers_that_are_no_architectures_cover_no_gpu() -> None:
    assert severities(with_horovod(cuda_architectures=(-80, 0, 8), ptx=0)) == {}
    assert severities(with_horovod(cuda_architectures=(800,), ptx=0)) == {"horovod-without-kernels": "refuse"}


def test_on_cpus_nothing_of_it_matters() -> None:
    without = with_horovod(operations=("Gloo",), cuda_architectures=())
    for about in (None, without, ImageFacts(framework="pytorch")):
        assert severities(about, Hardware(), site=read_site("box")) == {}


def test_a_framework_without_cuda_is_a_finding_of_its_own() -> None:
    assert severities(ImageFacts(framework="pytorch", horovod=Horovod("0.28.1", operations=("Gloo",)))) == {}


@pytest.mark.parametrize(
    ("changed", "requested", "capability"),
    [
        ({}, {}, "8.0"),
        ({}, {"gpu_type": "v100"}, "7.0"),
        ({}, {"gpu_type": "nvidia_h100_80gb_hbm3"}, "9.0"),
        ({}, {"gpu_type": "a100_3g.20gb"}, "8.0"),
        ({}, {"gpu_type": "mi300x"}, ""),
        ({"queues": {"q": Queue(hardware=Hardware(compute_capability="7.0"))}}, {}, "7.0"),
        ({"queues": {"q": Queue(hardware=Hardware(compute_capability="7.0"))}}, {"gpu_type": "h100"}, "9.0"),
        ({"queues": {"q": Queue(hardware=Hardware(driver="535.1"))}}, {}, ""),
    ],
)
def test_the_gpus_are_those_of_the_queue_and_of_the_type_that_is_requested(
    changed: dict[str, Any], requested: dict[str, Any], capability: str
) -> None:
    """A queue that the limits choose counts as one that is named."""
    site = msgspec.structs.replace(TECHNION, **changed)
    assert image_fit.job_hardware(planned(FACTS, site=site, **requested), site).compute_capability == capability
