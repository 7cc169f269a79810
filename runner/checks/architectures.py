"""On which GPUs compiled kernels run: CUDA's rules of binary and PTX compatibility. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from runner.model.image import Horovod, ImageFacts

# ``kernels``: as they are. ``ptx``: the driver must translate them first. ``none``: they do not run. ``unknown``: no
# architecture is known.
Coverage = Literal["kernels", "ptx", "none", "unknown"]
_NAME = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def of_framework(facts: ImageFacts) -> tuple[str, ...]:
    """Architectures of the framework's kernels, as ``sm_80`` and ``compute_90`` (PTX).

    torch lists both. TensorFlow lists what its build was given: ``compute_90``, or ``9.0``, is there both compiled and
    as PTX, ``sm_80`` only compiled (TensorFlow, third_party/gpus/cuda_configure.bzl). Empty where a name is not
    understood: what the others do not cover, it may.
    """
    names = [re.sub(r"(\d+)\.(\d)", r"compute_\1\2", arch) if "_" not in arch else arch for arch in facts.cuda_archs]
    if facts.framework == "tensorflow":
        names += [f"sm_{name[len('compute_') :]}" for name in names if name.startswith("compute_")]
    return tuple(dict.fromkeys(names)) if all(map(_NAME.fullmatch, names)) else ()


def of_horovod(horovod: Horovod) -> tuple[str, ...]:
    """Architectures of Horovod's own kernels, as ``of_framework``."""
    names = [f"sm_{arch}" for arch in horovod.cuda_architectures]
    return tuple([*names, f"compute_{horovod.ptx}"] if horovod.ptx else names)


def coverage(archs: Iterable[str], capability: str) -> Coverage:
    """How kernels for these architectures run on a GPU of this compute capability (``8.0``).

    ``sm_80`` runs on 8.0 and on what comes after it in line 8; ``compute_80`` (PTX) is translated for everything from
    8.0 on. ``sm_90a`` runs on 9.0 alone, ``sm_100f`` on its line (CUDA C++ programming guide, binary and PTX
    compatibility, family-specific and architecture-specific features).
    """
    found: Coverage = "unknown"
    of_gpu = re.fullmatch(r"(\d+)\.(\d)", capability)
    if of_gpu is None:
        return found
    gpu = (int(of_gpu[1]), int(of_gpu[2]))
    for arch in archs:
        match = _NAME.fullmatch(arch)
        if match is None:
            continue
        own = (int(match[2]), int(match[3]))
        fits = own == gpu if match[4] == "a" else own <= gpu
        if match[4] or match[1] == "sm":
            fits = fits and own[0] == gpu[0]
        if fits and match[1] == "sm":
            return "kernels"
        found = "ptx" if fits or found == "ptx" else "none"
    return found
