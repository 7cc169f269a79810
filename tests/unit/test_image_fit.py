"""An image against a site's hardware: only what both tell is compared, and what cannot run is refused."""

from __future__ import annotations

import msgspec
import pytest

from runner.checks.image_fit import CODES, findings, runs_on
from runner.model.hardware import Hardware
from runner.model.image import ImageFacts, Mpi, facts_of
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Request
from runner.planning.plan import plan
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site

FACTS = ImageFacts(
    framework="pytorch",
    framework_version="2.7.0",
    arch="x86_64",
    cuda="12.8",
    cuda_archs=("sm_75", "sm_80", "sm_90", "compute_90"),
    driver_min="525.60.13",
    mpi=Mpi("openmpi", "4.1.7", ("pmix",), "libmpi.so.40"),
)
DGX = Hardware(driver="535.104.05", compute_capability="8.0", cpu="x86_64")


def planned(about: ImageFacts | None, *, site: str = "technion", mpi: str = "none", **options: str) -> Plan:
    image = PlannedImage(reference="x:1", digest="sha256:0", path="/x.sqsh", about=about)
    request = Request(gpus=2, options=tuple(options.items()))
    made = plan(read_recipe("horovod-pytorch").recipe, read_site(site), request, image)
    return msgspec.structs.replace(made, mpi=mpi)


def found(about: ImageFacts | None, hardware: Hardware, **more: str) -> dict[str, str]:
    return {finding.code: finding.severity for finding in findings(planned(about, **more), hardware)}


def test_an_image_that_fits_is_not_spoken_of() -> None:
    assert found(FACTS, DGX) == {}
    assert found(None, DGX) == {}
    assert found(FACTS, Hardware()) == {}
    assert found(ImageFacts(framework="pytorch"), DGX, site="box") == {}


@pytest.mark.parametrize(
    ("facts", "hardware", "wanted"),
    [
        ({"arch": "aarch64"}, {}, {"image-other-processor": "refuse"}),
        ({}, {"driver": "470.57.02"}, {"driver-too-old": "refuse"}),
        ({"driver_compat": "570.86.10"}, {"driver": "470.57.02"}, {"driver-by-compat-package": "warn"}),
        ({"cuda": "", "cuda_archs": (), "driver_min": ""}, {}, {"image-without-cuda": "refuse"}),
        ({"cuda_archs": ("sm_90", "compute_90")}, {}, {"no-kernels-for-gpu": "refuse"}),
    ],
)
def test_what_does_not_fit_is_told(facts: dict[str, object], hardware: dict[str, str], wanted: dict[str, str]) -> None:
    image, site = msgspec.structs.replace(FACTS, **facts), msgspec.structs.replace(DGX, **hardware)
    assert found(image, site) == wanted
    assert set(wanted) <= CODES


def test_v100_has_no_bf16() -> None:
    volta = msgspec.structs.replace(DGX, compute_capability="7.0")
    facts = msgspec.structs.replace(FACTS, cuda_archs=("sm_70",))
    assert found(facts, volta) == {"no-bf16-on-gpu": "refuse"}
    assert found(facts, volta, precision="amp-fp16") == {}


def test_a_pmi_that_the_image_does_not_have_is_told() -> None:
    assert found(FACTS, DGX, mpi="pmi2") == {"pmi-not-in-image": "warn"}
    assert found(FACTS, DGX, mpi="pmix_v4") == {}


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("compute_80",), (9, 0), True),
        (("sm_90a",), (9, 0), True),
        (("sm_90a",), (9, 1), False),
        (("sm_100", "sm_120"), (10, 0), True),
        (("gfx90a",), (9, 0), False),
    ],
)
def test_kernels_run_where_cuda_says(archs: tuple[str, ...], capability: tuple[int, int], runs: bool) -> None:
    assert runs_on(archs, capability) is runs


def test_facts_of_an_image_that_says_nothing_or_nonsense() -> None:
    assert facts_of({}) is None
    assert facts_of({"mpi": "yes"}) is None
    older = facts_of({"schema": 1, "framework": "pytorch", "cuda": None, "mpi": {"flavour": "", "version": ""}})
    assert older is not None
    assert (older.framework, older.cuda) == ("pytorch", "")
