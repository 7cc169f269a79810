"""An image against a site's hardware: only what both tell is compared, and what cannot run is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.checks.image_fit import check_image, coverage, framework_architectures
from runner.checks.registry import Case, Observed, codes
from runner.model.image import Horovod, ImageFacts, Mpi, facts_of
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import Hardware, MpiFacts, Site
from runner.planning.plan import plan
from runner.preparation.choices import mpi_of
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site

FACTS = ImageFacts(
    framework="pytorch", framework_version="2.7.0", arch="x86_64", cuda="12.8",
    cuda_archs=("sm_75", "sm_80", "sm_90", "compute_90"), driver_min="525.60.13",
    mpi=Mpi("openmpi", "4.1.7", ("pmix",), "libmpi.so.40"), horovod=Horovod("0.28.1", controllers=("MPI", "Gloo")),
)  # fmt: skip
MPICH = msgspec.structs.replace(FACTS, mpi=Mpi("mpich", "4.0.2", ("pmi1",), "libmpi.so.12"))
# With an MPICH in its path, and a Horovod that was linked to an Open MPI.
MIXED = msgspec.structs.replace(MPICH, mpi=Mpi("mpich", "4.0.2", ("pmi1",), "libmpi.so.40"))
OPEN_MPI_OF_OLD = msgspec.structs.replace(FACTS, mpi=Mpi("openmpi", "4.1.4"))  # images that did not say the library
GLOO_ONLY = msgspec.structs.replace(FACTS, mpi=Mpi(), horovod=Horovod("0.28.1", controllers=("Gloo",)))
TECHNION, POLARIS, PERLMUTTER = read_site("technion"), read_site("polaris"), read_site("perlmutter")
PMIX = msgspec.structs.replace(TECHNION, mpi=MpiFacts(pmi=("pmix",)))
DGX = Hardware(driver="535.104.05", compute_capability="8.0", cpu="x86_64")
VOLTA = {"compute_capability": "7.0"}


def severities(about: ImageFacts | None, site: Site, request: Request, hardware: Hardware, **planned: str) -> Any:
    image = PlannedImage(reference="x:1", digest="sha256:0", path="/x.sqsh", mpi=mpi_of(about), about=about)
    made = msgspec.structs.replace(
        plan(read_recipe("horovod-pytorch").recipe, site, request, image), gpu_type="", **planned
    )
    case = Case(made, msgspec.structs.replace(site, hardware=hardware), Observed())
    return {finding.code: finding.severity for finding in check_image(case)}


@pytest.mark.parametrize(
    ("facts", "hardware", "more", "wanted"),
    [
        ({}, {}, {}, {}),
        (None, {}, {}, {}),
        ({}, {"driver": "", "compute_capability": "", "cpu": ""}, {}, {}),
        ({"arch": "", "cuda": "", "cuda_archs": (), "driver_min": ""}, {}, {"site": "box"}, {}),
        ({"arch": "aarch64"}, {}, {}, {"image-other-processor": "refuse"}),
        ({}, {"driver": "470.57.02"}, {}, {"driver-too-old": "refuse"}),
        ({"driver_compat": "570.86.10"}, {"driver": "470.57.02"}, {}, {"driver-by-compat-package": "warn"}),
        ({"cuda": "", "cuda_archs": (), "driver_min": ""}, {}, {}, {"image-without-cuda": "refuse"}),
        ({"cuda_archs": ("sm_90", "compute_90")}, {}, {}, {"no-kernels-for-gpu": "refuse"}),
        ({"cuda_archs": ("sm_70", "compute_75")}, {}, {}, {"kernels-only-as-ptx": "warn"}),
        ({"cuda_archs": ("gfx90a",)}, {}, {}, {}),
        ({"cuda_archs": ("sm_70",)}, VOLTA, {}, {"no-bf16-on-gpu": "refuse"}),
        ({"cuda_archs": ("sm_70",)}, VOLTA, {"precision": "amp-fp16"}, {}),
        ({}, {}, {"mpi": "pmi2"}, {"pmi-not-in-image": "warn"}),
        ({}, {}, {"mpi": "pmix_v4"}, {}),
    ],
)
def test_what_does_not_fit_is_reported(facts: Any, hardware: Any, more: dict[str, str], wanted: dict[str, str]) -> None:
    about = None if facts is None else msgspec.structs.replace(FACTS, **facts)
    options = (("precision", more["precision"]),) if "precision" in more else ()
    site, request = read_site(more.get("site", "technion")), Request(gpus=2, options=options)
    seen = msgspec.structs.replace(DGX, **hardware)
    assert severities(about, site, request, seen, mpi=more.get("mpi", "none")) == wanted
    assert {code for code, severity in wanted.items() if severity == "refuse"} <= codes()


@pytest.mark.parametrize(
    ("wireup", "site", "about", "code"),
    [
        ("mpich", POLARIS, MPICH, ""),
        ("mpich", POLARIS, FACTS, "mpi-abi-mismatch"),
        ("mpich", POLARIS, MIXED, "mpi-abi-mismatch"),
        ("mpich", POLARIS, OPEN_MPI_OF_OLD, "mpi-abi-mismatch"),
        ("mpich", POLARIS, GLOO_ONLY, "image-without-mpi"),
        ("mpich", POLARIS, None, ""),
        ("pmix", PMIX, FACTS, ""),
        ("pmix", PMIX, MPICH, "pmi-not-in-image"),
        ("pmix", PMIX, GLOO_ONLY, "image-without-mpi"),
        ("pmi2", PERLMUTTER, FACTS, "pmi-not-in-image"),
        ("pmi2", PERLMUTTER, MPICH, ""),  # Slurm's pmi2 answers MPICH's older protocol, too
        ("rendezvous", POLARIS, GLOO_ONLY, ""),
    ],
)
def test_ranks_that_meet_by_mpi_need_an_image_whose_mpi_fits(
    wireup: Any, site: Site, about: ImageFacts | None, code: str
) -> None:
    assert severities(about, site, Request(gpus=2, wireup=wireup), Hardware()) == ({code: "refuse"} if code else {})
    assert not code or code in codes()


@pytest.mark.parametrize(
    ("about", "mpi"),
    [(None, ""), (ImageFacts(), ""), (FACTS, "openmpi"), (MPICH, "mpich"), (GLOO_ONLY, "none")],
)
def test_the_mpi_of_an_image_is_that_of_its_horovod(about: ImageFacts | None, mpi: str) -> None:
    assert mpi_of(about) == mpi


def test_facts_of_an_image_that_says_nothing_or_nonsense() -> None:
    assert facts_of({}) is None
    assert facts_of({"mpi": "yes"}) is None
    older = facts_of({"schema": 1, "framework": "pytorch", "cuda": None, "mpi": {"flavour": "", "version": ""}})
    assert older is not None
    assert (older.framework, older.cuda) == ("pytorch", "")


@pytest.mark.parametrize(
    ("framework", "archs", "capability", "wanted"),
    [
        ("pytorch", "sm_80", "8.6", "kernels"),
        ("pytorch", "sm_86", "8.0", "none"),
        ("pytorch", "sm_80", "9.0", "none"),
        ("pytorch", "compute_80", "9.0", "ptx"),
        ("pytorch", "compute_90", "8.0", "none"),
        ("pytorch", "sm_80 compute_90", "7.0", "none"),
        ("pytorch", "compute_70 sm_80", "8.0", "kernels"),
        ("pytorch", "sm_90a", "9.0", "kernels"),
        ("pytorch", "sm_90a compute_90a", "10.0", "none"),
        ("pytorch", "sm_100a", "10.3", "none"),
        ("pytorch", "sm_100f", "10.3", "kernels"),
        ("pytorch", "compute_100f", "12.0", "none"),
        ("pytorch", "sm_100 sm_120", "10.0", "kernels"),
        ("pytorch", "gfx90a", "9.0", "unknown"),
        ("pytorch", "", "9.0", "unknown"),
        ("pytorch", "sm_80", "", "unknown"),
        ("pytorch", "sm_80", "8", "unknown"),
        ("pytorch", "sm_80", "8.0; rm -rf /", "unknown"),
        # A compute capability, or compute_N, of its build's option is compiled for, and kept as PTX, too.
        ("tensorflow", "sm_60 sm_80 compute_90", "9.0", "kernels"),
        ("tensorflow", "sm_60 sm_80 compute_90", "10.0", "ptx"),
        ("tensorflow", "8.0 9.0", "8.6", "kernels"),
        ("tensorflow", "8.0 9.0", "7.5", "none"),
        ("tensorflow", "7.0 8.0+PTX", "8.0", "unknown"),
    ],
)
def test_kernels_run_where_cuda_says(framework: Any, archs: str, capability: str, wanted: str) -> None:
    facts = ImageFacts(framework=framework, cuda_archs=tuple(archs.split()))
    assert coverage(framework_architectures(facts), capability) == wanted
