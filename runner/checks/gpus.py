"""On which GPUs compiled kernels run: CUDA's rules of binary and PTX compatibility. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from runner.checks.registry import Case, rule
from runner.model.backends import SCHEDULERS
from runner.model.image import Horovod, ImageFacts
from runner.model.plan import Finding, Plan
from runner.model.site import Hardware, Queue, Site

# ``kernels``: as they are. ``ptx``: the driver must translate them first. ``none``: they do not run. ``unknown``: no
# architecture is known.
Coverage = Literal["kernels", "ptx", "none", "unknown"]
_NAME = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def framework_architectures(facts: ImageFacts) -> tuple[str, ...]:
    """Architectures of the framework's kernels, as ``sm_80`` and ``compute_90`` (PTX).

    torch lists both. TensorFlow lists what its build was given: ``compute_90``, or ``9.0``, is there both compiled and
    as PTX, ``sm_80`` only compiled (TensorFlow, third_party/gpus/cuda_configure.bzl). Empty where a name is not
    understood: what the others do not cover, it may.
    """
    names = [re.sub(r"(\d+)\.(\d)", r"compute_\1\2", arch) if "_" not in arch else arch for arch in facts.cuda_archs]
    if facts.framework == "tensorflow":
        names += [f"sm_{name[len('compute_') :]}" for name in names if name.startswith("compute_")]
    return tuple(dict.fromkeys(names)) if all(map(_NAME.fullmatch, names)) else ()


def horovod_architectures(horovod: Horovod) -> tuple[str, ...]:
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


# GRES type as sites name it -> compute capability (NVIDIA's table of CUDA GPUs).
_CAPABILITIES = {
    **{"k80": "3.7", "p100": "6.0", "v100": "7.0", "v100s": "7.0", "gv100": "7.0", "t4": "7.5", "rtx8000": "7.5"},
    **{"a100": "8.0", "a30": "8.0", "a40": "8.6", "a10": "8.6", "rtx3090": "8.6", "a6000": "8.6", "l4": "8.9"},
    **{"l40": "8.9", "l40s": "8.9", "h100": "9.0", "h200": "9.0", "gh200": "9.0", "b200": "10.0", "gb200": "10.0"},
    **{"b300": "10.3", "gb300": "10.3"},
}
_SLICE = re.compile(r"\dg\.\d+gb")


@rule("gpus-hidden")
def check_gpus(case: Case) -> Iterator[Finding]:
    """GPUs that peers would not see, and slices that do not talk to each other."""
    plan = case.plan
    hiding = plan.settings.hidden_gpus
    if hiding:
        yield Finding(
            "gpus-hidden",
            "refuse",
            "each rank would see its own GPU only: ranks pin themselves by local rank, and NCCL wants its peers",
            f"take {' and '.join(hiding)} out of `{SCHEDULERS[plan.scheduler].section}` of {plan.site}",
        )
    if _SLICE.search(plan.gpu_type) and plan.gpus > 1:
        yield Finding(
            "mig-slices",
            "warn",
            f"{plan.gpu_type} is a slice of a GPU: NCCL does not connect two slices of one GPU",
            "ask for whole GPUs, or for one rank",
        )


def hardware(plan: Plan, site: Site) -> Hardware:
    """The hardware that the job gets: its queue's or the site's, with the capability of the type of GPU that it asks
    for. That of a type whose name is not known is known only where it is the site's own.
    """
    of_queue = site.queues.get(plan.queue or "", Queue()).hardware
    nodes = of_queue or site.hardware
    usual = plan.gpu_type in ("", site.node.gpu_type)
    if usual and of_queue is not None and of_queue.compute_capability:
        return of_queue
    parts = re.split(r"[_.:-]", plan.gpu_type.lower())
    known = next((_CAPABILITIES[part] for part in parts if part in _CAPABILITIES), "")
    return msgspec.structs.replace(nodes, compute_capability=known or (nodes.compute_capability if usual else ""))
