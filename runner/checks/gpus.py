"""Which GPUs a rank sees, and what they can: from the name of the GPU type, where it is known."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from runner.model.finding import Finding
from runner.model.hardware import Hardware
from runner.model.plan import Plan
from runner.model.site import Queue, Site

# Options of a step that leave a rank its own GPU only (srun(1)).
_HIDING = ("gpu-bind", "gpus-per-task", "ntasks-per-gpu", "tres-bind", "tres-per-task")
# GRES type as sites name it -> compute capability (NVIDIA's table of CUDA GPUs).
_CAPABILITIES = {
    **{"k80": "3.7", "p100": "6.0", "v100": "7.0", "v100s": "7.0", "gv100": "7.0", "t4": "7.5", "rtx8000": "7.5"},
    **{"a100": "8.0", "a30": "8.0", "a40": "8.6", "a10": "8.6", "rtx3090": "8.6", "a6000": "8.6", "l4": "8.9"},
    **{"l40": "8.9", "l40s": "8.9", "h100": "9.0", "h200": "9.0", "gh200": "9.0", "b200": "10.0", "gb200": "10.0"},
    **{"b300": "10.3", "gb300": "10.3"},
}
_SLICE = re.compile(r"\dg\.\d+gb")


def findings(plan: Plan) -> Iterator[Finding]:
    """GPUs that peers would not see, and slices that do not talk to each other."""
    step = plan.slurm.step
    hiding = [option for option in _HIDING if step.get(option, "none") != "none"]
    if hiding:
        yield Finding(
            "gpus-hidden",
            "refuse",
            "each rank would see its own GPU only: ranks pin themselves by local rank, and NCCL wants its peers",
            f"take {' and '.join(hiding)} out of slurm.step of {plan.site}",
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
