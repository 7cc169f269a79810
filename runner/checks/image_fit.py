"""Does an image or environment fit the site's GPUs, driver and processors, the recipe, and Horovod's operations?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from runner.checks.registry import Case, rule
from runner.core.invocation import PROGRAM
from runner.model.backends import RUNTIMES
from runner.model.image import Environment, Horovod, ImageFacts
from runner.model.plan import Finding, Plan
from runner.model.request import Recipe
from runner.model.site import Hardware, Queue, Site
from runner.planning import wireup

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
    """Architectures of Horovod's own kernels, as ``framework_architectures``."""
    names = [f"sm_{arch}" for arch in horovod.cuda_architectures]
    return tuple([*names, f"compute_{horovod.ptx}"] if horovod.ptx else names)


def coverage(archs: Iterable[str], capability: str) -> Coverage:
    """How kernels for these architectures run on a GPU of this compute capability (``8.0``).

    ``sm_80`` runs on 8.0 and on what comes after it in line 8; ``compute_80`` (PTX) is translated for everything from
    8.0 on. ``sm_90a`` runs on 9.0 alone, ``sm_100f`` on its line (CUDA C++ programming guide, binary and PTX
    compatibility, family-specific and architecture-specific features).
    """
    known: Coverage = "unknown"
    numbers = re.fullmatch(r"(\d+)\.(\d)", capability)
    gpu = (int(numbers[1]), int(numbers[2])) if numbers else None
    for match in map(_NAME.fullmatch, archs):
        if match is None or gpu is None:
            continue
        own = (int(match[2]), int(match[3]))
        fits = own == gpu if match[4] == "a" else own <= gpu
        if match[4] or match[1] == "sm":
            fits = fits and own[0] == gpu[0]
        if fits and match[1] == "sm":
            return "kernels"
        known = "ptx" if fits or known == "ptx" else "none"
    return known


# GRES type as sites name it -> compute capability (NVIDIA's table of CUDA GPUs).
_CAPABILITIES = {
    **{"k80": "3.7", "p100": "6.0", "v100": "7.0", "v100s": "7.0", "gv100": "7.0", "t4": "7.5", "rtx8000": "7.5"},
    **{"a100": "8.0", "a30": "8.0", "a40": "8.6", "a10": "8.6", "rtx3090": "8.6", "a6000": "8.6", "l4": "8.9"},
    **{"l40": "8.9", "l40s": "8.9", "h100": "9.0", "h200": "9.0", "gh200": "9.0", "b200": "10.0", "gb200": "10.0"},
    **{"b300": "10.3", "gb300": "10.3"},
}


def job_hardware(plan: Plan, site: Site) -> Hardware:
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


@rule("horovod-without-nccl", "horovod-without-kernels")
def check_horovod(case: Case) -> Iterator[Finding]:
    """Does Horovod reduce on the site's GPUs? By NCCL, and with kernels for them.

    What does not fit is refused where the job uses Horovod, and is a warning where it is not known to: DDP needs
    neither. Horovod checks no launch of its kernels, so that a missing one leaves gradients unreduced, and nothing says
    so.
    """
    plan, use, hardware = case.plan, case.observed.horovod_use, job_hardware(case.plan, case.site)
    if plan.device != "cuda":
        return
    used = f"the recipe {plan.recipe} uses it" if plan.framework == "horovod" else f"{use} uses it" if use else ""
    about, capability = plan.image.about, hardware.compute_capability
    if about is None:
        yield from _unknown(plan, capability) if used else ()
        return
    subject = f"Horovod in the {place(plan)} {plan.image.reference}"
    operations = ", ".join(about.horovod.operations)
    if about.cuda and operations and not about.horovod.has_nccl:  # a framework without CUDA is a finding of its own
        what = f"{subject} has no NCCL (operations: {operations}): gradients on GPUs would go through the host"
        what += f"; {used}" if used else "; a program that does not use Horovod needs none"
        fix = f"make it anew with NCCL: {_again(plan)}, with --nccl DIR or a module of NCCL"
        if place(plan) == "image":
            fix = f"build it on a base with NCCL: {_again(plan, base='IMAGE')}"
        fix += "; or, where you want it so, --force horovod-without-nccl" if used else ""
        yield Finding("horovod-without-nccl", "refuse" if used else "warn", what, fix)
    archs = horovod_architectures(about.horovod)
    covered = coverage(archs, capability)
    what = f"{subject} has kernels for {', '.join(archs)}, and the GPUs of {plan.site} have compute capability "
    what += capability
    fix = f"make it anew with kernels for them: {_again(plan, archs=capability)}"
    if covered == "none":
        why = f": gradients may stay unreduced, and nothing says so; {used}" if used else ""
        yield Finding("horovod-without-kernels", "refuse" if used else "warn", what + why, fix)
    elif covered == "ptx" and used:
        yield Finding("horovod-kernels-only-as-ptx", "warn", what + _from_ptx(about), fix)
    if used:
        yield from _unknown(plan, capability)


def _unknown(plan: Plan, capability: str) -> Iterator[Finding]:
    about = plan.image.about
    if about is not None and not about.cuda:
        return
    unknown = ["its operations"] if about is None or not about.horovod.operations else []
    if about is None or (about.horovod.has_nccl and not horovod_architectures(about.horovod)):
        unknown.append("the architectures of its kernels")
    fixes = [f"make it anew, which records them: {_again(plan)}"] if unknown else []
    if not capability:
        unknown.append("the compute capability of these GPUs")
        fixes.append("`hardware.compute_capability` in a site file (nvidia-smi --query-gpu=compute_cap --format=csv)")
    if unknown:
        where = f"Horovod in the {place(plan)} may not fit the GPUs of {plan.site}"
        yield Finding("horovod-fit-unknown", "warn", f"{where}; unknown: {', '.join(unknown)}", "; ".join(fixes))


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


def _from_ptx(facts: ImageFacts) -> str:
    return f": the driver translates them from PTX at the first start, and must be as new as CUDA {facts.cuda}"


def missing_packages(recipe: Recipe, environment: Environment) -> tuple[str, str]:
    """What an environment lacks that a recipe imports, and what to do; empty if nothing is known to be lacking."""
    for need in recipe.needs:
        wanted = _FRAMEWORKS.get(need, environment.framework)
        if wanted != environment.framework:
            return (
                f"the environment {environment.name} has {environment.framework}, and the recipe wants {need}",
                f"{PROGRAM} env create NAME --framework {wanted}, and --env-name NAME",
            )
    return "", ""


_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow"}
_BF16_FROM = (8, 0)  # Ampere (CUDA C++ programming guide, compute capabilities)


@rule(
    *("image-other-processor", "driver-too-old", "image-without-cuda", "no-kernels-for-gpu", "no-bf16-on-gpu"),
    *("pmi-not-in-image", "image-without-mpi", "mpi-abi-mismatch"),
)
def check_image(case: Case) -> Iterator[Finding]:
    """What does not fit, refusals first."""
    plan, facts, hardware = case.plan, case.plan.image.about, job_hardware(case.plan, case.site)
    findings = [*(() if facts is None else _hardware(facts, hardware)), *_mpi(plan)]
    if plan.device == "cuda":
        findings += () if facts is None else _kernels(plan, facts, hardware.compute_capability)
        findings += _precision(plan, hardware.compute_capability)
    yield from sorted(findings, key=lambda finding: finding.severity != "refuse")


def version(text: str) -> tuple[int, ...]:
    """(535, 104, 5) of ``535.104.05``."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def place(plan: Plan) -> str:
    """What the program runs in, for people: ``image`` or ``environment``."""
    return "image" if RUNTIMES[plan.runtime].is_container else "environment"


def _hardware(facts: ImageFacts, hardware: Hardware) -> Iterator[Finding]:
    if facts.arch and hardware.cpu and facts.arch != hardware.cpu:
        what = f"the image is for {facts.arch}, the site's nodes are {hardware.cpu}"
        platform = {"x86_64": "amd64", "aarch64": "arm64"}.get(hardware.cpu, hardware.cpu)
        fix = f"build it for them: {PROGRAM} build --platform linux/{platform}"
        yield Finding("image-other-processor", "refuse", what, fix)
    if facts.driver_min and hardware.driver and version(hardware.driver) < version(facts.driver_min):
        what = f"CUDA {facts.cuda} wants driver {facts.driver_min} or later, the site has {hardware.driver}"
        fix = f"choose an older base: {PROGRAM} build ... --base auto --site SITE"
        if facts.driver_compat:
            what += f"; the image carries {facts.driver_compat} for older hosts, which works on data-center GPUs only"
            yield Finding("driver-by-compat-package", "warn", what, fix)
        else:
            yield Finding("driver-too-old", "refuse", what, fix)


def _kernels(plan: Plan, facts: ImageFacts, capability: str) -> Iterator[Finding]:
    if not facts.cuda and facts.framework:
        what = f'this image has CPU-only {facts.framework} {facts.framework_version}, but site "{plan.site}" has GPUs'
        fix = f"build on a base with CUDA: {PROGRAM} build {facts.framework}"
        yield Finding("image-without-cuda", "refuse", what, fix)
    archs = framework_architectures(facts)
    covered = coverage(archs, capability)
    where = place(plan)
    what = f"{facts.framework} in the {where} has kernels for {', '.join(archs)}, and the GPUs of {plan.site} have "
    what += f"compute capability {capability}"
    fix = f"take {facts.framework} from a build with kernels for them (`env create --requirement`, --module)"
    if where == "image":
        fix = f"choose another base: {PROGRAM} build ... --base auto --site SITE"
    if covered == "none":
        yield Finding("no-kernels-for-gpu", "refuse", what, fix)
    elif covered == "ptx":
        yield Finding("kernels-only-as-ptx", "warn", what + _from_ptx(facts), fix)


def _precision(plan: Plan, capability: str) -> Iterator[Finding]:
    words = plan.program
    requested = {words[place + 1] for place, word in enumerate(words[:-1]) if word == "--precision"}
    if capability and version(capability) < _BF16_FROM and requested & {"amp-bf16", "tf32"}:
        what = f"GPUs of compute capability {capability} have neither bf16 nor TF32"
        yield Finding("no-bf16-on-gpu", "refuse", what, "--set precision=amp-fp16")


def _mpi(plan: Plan) -> Iterator[Finding]:
    """Ranks that meet by MPI need one in the image that what starts them knows; all others need none."""
    if plan.wireup in wireup.BY_MPI:
        misfit = wireup.misfit(plan.image, plan.wireup)
        if misfit is not None:
            fix = "--wireup rendezvous, which needs no MPI, or build on a base whose MPI fits"
            yield Finding(misfit.code, "refuse", f"{misfit.what}: each rank would form a world of one", fix)
        return
    facts = plan.image.about
    kind = next((name for name in ("pmix", "pmi2") if (plan.mpi or "").startswith(name)), "")
    if facts is not None and kind and facts.mpi.flavour and kind not in facts.mpi.pmi:
        what = f"srun starts with --mpi={plan.mpi}, the image's {facts.mpi.flavour} {facts.mpi.version} takes "
        what += wireup.pmi_of(facts.mpi)
        fix = "ranks meet by the launcher's rendezvous and need none; a program that calls MPI itself would be alone"
        yield Finding("pmi-not-in-image", "warn", what, fix)
