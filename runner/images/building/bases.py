"""NVIDIA's base images as data: which CUDA a release brings, and which drivers carry it.

Containers of one month share their CUDA, so that "Driver Requirements" in the notes of any of them is a source for
the others. Stored copies of docs.nvidia.com were read on 2026-11-21; where no copy of a month's own notes was found,
the nearest release of the same CUDA is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.core.errors import RefusedError
from runner.images.reference import DEFAULT_BASES


@dataclass(frozen=True)
class NvidiaBase:
    """One base image.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``. tag: of the image, ``25.02-py3``.
        cuda: ``12.8``. driver: the release of the driver that it asks for; every later one carries it, too.
        compat: least driver of older branches that carry it on data-center GPUs by the compat package inside.
    """

    framework: str
    tag: str
    cuda: str
    driver: str
    compat: tuple[str, ...]

    @property
    def reference(self) -> str:
        """The image's name."""
        return f"nvcr.io/nvidia/{self.framework}:{self.tag}"


# Of PyTorch alone: TensorFlow's images ended with 25.02. All of CUDA 13 runs on R580 without a compat package (NVIDIA's
# "Supported Drivers and CUDA Toolkit Versions", 620, read 2026-11-26); which older branches theirs carry: unconfirmed.
_OF_PYTORCH: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("26.07", "13.3", "580", ()),  # pull request 846 of microsoft/superbenchmark
    ("25.12", "13.1", "580", ()),  # its own notes
)
# Newest first: the month, its CUDA, the driver, the branches of the compat package.
_RELEASES = (
    # PyTorch 25.02 as pull request 675 of foundation-model-stack/fms-hf-tuning quotes it; its branches: SGLang 25.10.
    ("25.02", "12.8", "570", ("470.57", "525.85", "535.86", "550.54")),
    # MXNet 24.05 and PaddlePaddle 24.05, of CUDA 12.4.1; they ask for 545, CUDA 12.4 itself came with 550.
    ("24.04", "12.4", "550", ("470.57", "525.85", "535.86", "545.23")),
    # Triton Inference Server 23.08, of CUDA 12.2.1; of 23.10 unconfirmed.
    ("23.10", "12.2", "535", ("450.51", "470.57", "510.47", "525.85")),
    # PyTorch 23.03 as MONAI Toolkit 1.1 quotes it; PaddlePaddle 23.04.
    ("23.03", "12.1", "530", ("450.51", "470.57", "510.47", "515.65", "525.85")),
    # Triton Inference Server 22.09.
    ("22.09", "11.8", "520", ("450.51", "470.57", "510.47", "515.65")),
)
# TensorFlow 1 ended with 23.03-tf1-py3 (TensorFlow 1.15.5, Python 3.8; releases of github.com/NVIDIA/tensorflow): its
# images are for those who name one, never chosen.
_KINDS = {"pytorch": "py3", "tensorflow": "tf2-py3"}
BASES = tuple(
    NvidiaBase(framework, f"{month}-{kind}", cuda, driver, compat)
    for framework, kind in _KINDS.items()
    for month, cuda, driver, compat in (*(_OF_PYTORCH if framework == "pytorch" else ()), *_RELEASES)
)


def newest(framework: str, driver: str, site: str) -> tuple[NvidiaBase, str]:
    """The newest known base that this driver carries, and why; an unknown driver (empty) gets the usual one."""
    known = [base for base in BASES if base.framework == framework]
    if not driver:
        usual = next(base for base in known if base.reference == DEFAULT_BASES[framework])
        return usual, f"{site} does not say which driver it has, so the usual one is taken"
    have = _version(driver)
    if not have:
        raise RefusedError(f"{driver!r} is no driver's version", where=f"site {site}: hardware.driver")
    for base in known:
        by_compat = any(have[0] == _version(least)[0] and have >= _version(least) for least in base.compat)
        if have >= _version(base.driver) or by_compat:
            how = "natively" if have >= _version(base.driver) else "by its compat package"
            return base, f"driver {driver} of {site} carries its CUDA {base.cuda} {how}"
    raise RefusedError(
        f"no known {framework} image of NVIDIA's runs on driver {driver}",
        where=f"site {site}: hardware.driver",
        fix=f"name an older one with --base; the oldest known here is {known[-1].reference}",
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))
