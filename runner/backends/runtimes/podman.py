"""Podman without root: ``podman run`` with an image that it keeps (options as in Podman 4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runner.backends.runtimes import answer_of, podman_hpc
from runner.model.plan import Plan
from runner.model.step import StepSpec

FACTS = msgspec.structs.replace(
    podman_hpc.FACTS,
    title="Podman",
    program="podman",
    driver="--device=nvidia.com/gpu=all, which the job has, brings the driver, by the node's CDI file (`nvidia-ctk cdi "
    "list`)",
    failure=r"^Error: (?:setting up CDI devices|stat /|crun: |runc: )",
    versions={"podman": ("podman", "--version")},
    preference=65,
)


def step(plan: Plan) -> StepSpec:
    """As podman-hpc's. SELinux would keep the driver's files and the mounts from the ranks."""
    by_gpu = ("--device=nvidia.com/gpu=all",) * (plan.device == "cuda")
    return podman_hpc.podman_step(plan, *by_gpu, "--security-opt=label=disable", *plan.runtime_options)


def image_problem(reference: str, mount_points: Sequence[str], *, local: bool) -> tuple[str, str]:
    """Images are in a storage of the user's; whether nodes see it is not known here."""
    listed = answer_of("podman", "image", "exists", reference)
    if listed is None or listed.code != 1:
        return "", ""
    get = f"podman build -t {reference} ..." if local else f"podman pull {reference}"
    return f"Podman has no image {reference}", f"{get}, into a storage that nodes see (graphroot in storage.conf)"
