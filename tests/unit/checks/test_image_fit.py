"""An image against a site's hardware: only what both tell is compared, and what cannot run is refused."""

from __future__ import annotations

import msgspec
import pytest

from runner.checks.image_fit import coverage, framework_architectures, image_findings
from runner.checks.registry import codes
from runner.model.image import Horovod, ImageFacts, Mpi, facts_of
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Request, Wireup
from runner.model.site import Hardware, MpiFacts, Site
from runner.planning.plan import plan
from runner.preparation.choices import mpi_of
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
    horovod=Horovod("0.28.1", controllers=("MPI", "Gloo")),
)
MPICH = msgspec.structs.replace(FACTS, mpi=Mpi("mpich", "4.0.2", ("pmi1",), "libmpi.so.12"))
OPEN_MPI_OF_OLD = msgspec.structs.replace(FACTS, mpi=Mpi("openmpi", "4.1.4"))  # images that did not say the library
GLOO_ONLY = msgspec.structs.replace(FACTS, mpi=Mpi(), horovod=Horovod("0.28.1", controllers=("Gloo",)))
PMIX = msgspec.structs.replace(read_site("technion"), mpi=MpiFacts(pmi=("pmix",)))
DGX = Hardware(driver="535.104.05", compute_capability="8.0", cpu="x86_64")


def planned(about: ImageFacts | None, *, site: str = "technion", mpi: str = "none", **options: str) -> Plan:
    image = PlannedImage(reference="x:1", digest="sha256:0", path="/x.sqsh", about=about)
    request = Request(gpus=2, options=tuple(options.items()))
    made = plan(read_recipe("horovod-pytorch").recipe, read_site(site), request, image)
    return msgspec.structs.replace(made, mpi=mpi)


def findings_of(about: ImageFacts | None, hardware: Hardware, **more: str) -> dict[str, str]:
    return {finding.code: finding.severity for finding in image_findings(planned(about, **more), hardware)}


def test_an_image_that_fits_is_not_spoken_of() -> None:
    assert findings_of(FACTS, DGX) == {}
    assert findings_of(None, DGX) == {}
    assert findings_of(FACTS, Hardware()) == {}
    assert findings_of(ImageFacts(framework="pytorch"), DGX, site="box") == {}


@pytest.mark.parametrize(
    ("facts", "hardware", "wanted"),
    [
        ({"arch": "aarch64"}, {}, {"image-other-processor": "refuse"}),
        ({}, {"driver": "470.57.02"}, {"driver-too-old": "refuse"}),
        ({"driver_compat": "570.86.10"}, {"driver": "470.57.02"}, {"driver-by-compat-package": "warn"}),
        ({"cuda": "", "cuda_archs": (), "driver_min": ""}, {}, {"image-without-cuda": "refuse"}),
        ({"cuda_archs": ("sm_90", "compute_90")}, {}, {"no-kernels-for-gpu": "refuse"}),
        ({"cuda_archs": ("sm_70", "compute_75")}, {}, {"kernels-only-as-ptx": "warn"}),
        ({"cuda_archs": ("gfx90a",)}, {}, {}),
    ],
)
def test_what_does_not_fit_is_reported(
    facts: dict[str, object], hardware: dict[str, str], wanted: dict[str, str]
) -> None:
    image, site = msgspec.structs.replace(FACTS, **facts), msgspec.structs.replace(DGX, **hardware)
    assert findings_of(image, site) == wanted
    assert {code for code, severity in wanted.items() if severity == "refuse"} <= codes()


def test_v100_has_no_bf16() -> None:
    volta = msgspec.structs.replace(DGX, compute_capability="7.0")
    facts = msgspec.structs.replace(FACTS, cuda_archs=("sm_70",))
    assert findings_of(facts, volta) == {"no-bf16-on-gpu": "refuse"}
    assert findings_of(facts, volta, precision="amp-fp16") == {}


def test_a_pmi_that_the_image_lacks_is_reported() -> None:
    assert findings_of(FACTS, DGX, mpi="pmi2") == {"pmi-not-in-image": "warn"}
    assert findings_of(FACTS, DGX, mpi="pmix_v4") == {}


def met_by(wireup: Wireup, site: Site, about: ImageFacts | None) -> dict[str, str]:
    image = PlannedImage(reference="x:1", digest="sha256:0", path="/x.sqsh", mpi=mpi_of(about), about=about)
    made = plan(read_recipe("horovod-pytorch").recipe, site, Request(gpus=2, wireup=wireup), image)
    return {finding.code: finding.severity for finding in image_findings(made, Hardware())}


@pytest.mark.parametrize(
    ("wireup", "site", "about", "wanted"),
    [
        ("mpich", read_site("polaris"), MPICH, {}),
        ("mpich", read_site("polaris"), FACTS, {"mpi-abi-mismatch": "refuse"}),
        ("mpich", read_site("polaris"), OPEN_MPI_OF_OLD, {"mpi-abi-mismatch": "refuse"}),
        ("mpich", read_site("polaris"), GLOO_ONLY, {"image-without-mpi": "refuse"}),
        ("mpich", read_site("polaris"), None, {}),
        ("pmix", PMIX, FACTS, {}),
        ("pmix", PMIX, MPICH, {"pmi-not-in-image": "refuse"}),
        ("pmix", PMIX, GLOO_ONLY, {"image-without-mpi": "refuse"}),
        ("pmi2", read_site("perlmutter"), FACTS, {"pmi-not-in-image": "refuse"}),
        ("pmi2", read_site("perlmutter"), MPICH, {}),  # Slurm's pmi2 answers MPICH's older protocol, too
        ("rendezvous", read_site("polaris"), GLOO_ONLY, {}),
    ],
)
def test_ranks_that_meet_by_mpi_need_an_image_whose_mpi_fits(
    wireup: Wireup, site: Site, about: ImageFacts | None, wanted: dict[str, str]
) -> None:
    assert met_by(wireup, site, about) == wanted
    assert set(wanted) <= codes()


def test_a_mixture_of_mpis_is_recognised_by_the_library_that_horovod_needs() -> None:
    """An image may have an MPICH in its path and a Horovod that was linked to an Open MPI."""
    mixed = msgspec.structs.replace(MPICH, mpi=Mpi("mpich", "4.0.2", ("pmi1",), "libmpi.so.40"))
    assert met_by("mpich", read_site("polaris"), mixed) == {"mpi-abi-mismatch": "refuse"}


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
    ("archs", "capability", "wanted"),
    [
        (("sm_80",), "8.6", "kernels"),
        (("sm_86",), "8.0", "none"),
        (("sm_80",), "9.0", "none"),
        (("compute_80",), "9.0", "ptx"),
        (("compute_90",), "8.0", "none"),
        (("sm_80", "compute_90"), "7.0", "none"),
        (("compute_70", "sm_80"), "8.0", "kernels"),
        (("sm_90a",), "9.0", "kernels"),
        (("sm_90a", "compute_90a"), "10.0", "none"),
        (("sm_100a",), "10.3", "none"),
        (("sm_100f",), "10.3", "kernels"),
        (("compute_100f",), "12.0", "none"),
        (("sm_100", "sm_120"), "10.0", "kernels"),
        (("gfx90a",), "9.0", "unknown"),
        ((), "9.0", "unknown"),
        (("sm_80",), "", "unknown"),
        (("sm_80",), "8", "unknown"),
        (("sm_80",), "8.0; rm -rf /", "unknown"),
    ],
)
def test_kernels_run_where_cuda_says(archs: tuple[str, ...], capability: str, wanted: str) -> None:
    assert coverage(archs, capability) == wanted


@pytest.mark.parametrize(
    ("listed", "capability", "wanted"),
    [
        (("sm_60", "sm_80", "compute_90"), "9.0", "kernels"),
        (("sm_60", "sm_80", "compute_90"), "10.0", "ptx"),
        (("8.0", "9.0"), "8.6", "kernels"),
        (("8.0", "9.0"), "7.5", "none"),
        (("7.0", "8.0+PTX"), "8.0", "unknown"),
    ],
)
def test_what_tensorflow_lists_is_its_builds_option(listed: tuple[str, ...], capability: str, wanted: str) -> None:
    """A compute capability, or compute_N, is compiled for that architecture and kept as PTX, too."""
    facts = ImageFacts(framework="tensorflow", cuda_archs=listed)
    assert coverage(framework_architectures(facts), capability) == wanted
