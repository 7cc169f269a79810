"""Does the Horovod of an image or environment reduce on the site's GPUs? By NCCL, and with kernels for them.

What does not fit is refused where the job uses Horovod, and is a warning where it is not known to: DDP needs neither.
Horovod checks no launch of its kernels, so that a missing one leaves gradients unreduced, and nothing says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks import gpus
from runner.checks.image_fit import place
from runner.checks.registry import Case, rule
from runner.core.invocation import PROGRAM
from runner.model.plan import Finding, Plan
from runner.model.site import Hardware


@rule("horovod-without-nccl", "horovod-without-kernels")
def check_horovod(case: Case) -> Iterator[Finding]:
    """See ``findings``."""
    yield from findings(case.plan, gpus.hardware(case.plan, case.site), case.observed.horovod_use)


def findings(plan: Plan, hardware: Hardware, use: str) -> Iterator[Finding]:
    """What does not fit.

    Args:
        use: where the user's program uses Horovod; empty where it is not known to.
    """
    if plan.device != "cuda":
        return
    used = f"the recipe {plan.recipe} uses it" if plan.framework == "horovod" else f"{use} uses it" if use else ""
    yield from _nccl(plan, used)
    yield from _kernels(plan, hardware, used)
    if used:
        yield from _unknown(plan, hardware)


def _nccl(plan: Plan, used: str) -> Iterator[Finding]:
    about = plan.image.about
    # A framework without CUDA is a finding of its own.
    if about is None or not about.cuda or not about.horovod.operations or about.horovod.has_nccl:
        return
    fix = f"make it anew with NCCL: {_again(plan)}, with --nccl DIR or a module of NCCL"
    if place(plan) == "image":
        fix = f"build it on a base with NCCL: {_again(plan, base='IMAGE')}"
    yield Finding(
        "horovod-without-nccl",
        "refuse" if used else "warn",
        f"Horovod in the {place(plan)} {plan.image.reference} has no NCCL (operations: "
        f"{', '.join(about.horovod.operations)}): gradients on GPUs would go through the host"
        + (f"; {used}" if used else "; a program that does not use Horovod needs none"),
        f"{fix}; or, where you want it so, --force horovod-without-nccl" if used else fix,
    )


def _kernels(plan: Plan, hardware: Hardware, used: str) -> Iterator[Finding]:
    about = plan.image.about
    if about is None:
        return
    archs, capability = gpus.horovod_architectures(about.horovod), hardware.compute_capability
    covered = gpus.coverage(archs, capability)
    what = f"Horovod in the {place(plan)} {plan.image.reference} has kernels for {', '.join(archs)}, and the GPUs of "
    what += f"{plan.site} have compute capability {capability}"
    fix = f"make it anew with kernels for them: {_again(plan, archs=capability)}"
    if covered == "none":
        why = f": gradients may stay unreduced, and nothing says so; {used}" if used else ""
        yield Finding("horovod-without-kernels", "refuse" if used else "warn", what + why, fix)
    elif covered == "ptx" and used:
        yield Finding(
            "horovod-kernels-only-as-ptx",
            "warn",
            f"{what}: the driver translates them from PTX at the first start, and must be as new as CUDA {about.cuda}",
            fix,
        )


def _unknown(plan: Plan, hardware: Hardware) -> Iterator[Finding]:
    about = plan.image.about
    if about is not None and not about.cuda:
        return
    unknown = []
    if about is None or not about.horovod.operations:
        unknown.append("its operations")
    if about is None or (about.horovod.has_nccl and not gpus.horovod_architectures(about.horovod)):
        unknown.append("the architectures of its kernels")
    fixes = [f"make it anew, which records them: {_again(plan)}"] if unknown else []
    if not hardware.compute_capability:
        unknown.append("the compute capability of these GPUs")
        fixes.append("`hardware.compute_capability` in a site file (nvidia-smi --query-gpu=compute_cap --format=csv)")
    if unknown:
        yield Finding(
            "horovod-fit-unknown",
            "warn",
            f"Horovod in the {place(plan)} may not fit the GPUs of {plan.site}; unknown: {', '.join(unknown)}",
            "; ".join(fixes),
        )


def _again(plan: Plan, *, archs: str = "", base: str = "") -> str:
    """How the image or environment is made again.

    Args:
        archs: compute capability that its kernels must be for. base: what replaces the base of an image.
    """
    about = plan.image.about
    framework = about.framework if about is not None and about.framework else "FRAMEWORK"
    kernels = f" --cuda-archs {archs.replace('.', '')}" if archs else ""
    if place(plan) == "image":
        known = base or (about.base if about is not None else "") or "BASE"
        return f"{PROGRAM} build {framework} --base {known}{kernels}"
    return f"{PROGRAM} env create {plan.image.reference or 'NAME'} --site {plan.site}{kernels}"
