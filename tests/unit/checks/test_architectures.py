"""Which kernels run on which GPU, as CUDA's rules of compatibility say."""

from __future__ import annotations

import pytest

from runner.checks.image_fit import coverage, framework_architectures, horovod_architectures
from runner.model.image import Horovod, ImageFacts


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


def test_what_torch_lists_is_taken_as_it_is() -> None:
    facts = ImageFacts(framework="pytorch", cuda_archs=("sm_80", "sm_90a", "compute_90"))
    assert framework_architectures(facts) == ("sm_80", "sm_90a", "compute_90")


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


def test_numbers_of_horovods_kernels_are_architectures() -> None:
    assert horovod_architectures(Horovod(cuda_architectures=(80, 100), ptx=100)) == ("sm_80", "sm_100", "compute_100")
    assert horovod_architectures(Horovod()) == ()
