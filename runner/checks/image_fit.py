"""Does an environment that was made have what a recipe imports? Compares what both declare."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.checks import gpus
from runner.checks.registry import Case, rule
from runner.core.invocation import PROGRAM
from runner.model.backends import RUNTIMES
from runner.model.image import Environment, ImageFacts
from runner.model.plan import Finding, Plan
from runner.model.request import Recipe
from runner.model.site import Hardware
from runner.planning import wireup

_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow"}


def missing_packages(recipe: Recipe, environment: Environment) -> tuple[str, str]:
    """What it lacks, and what to do; empty if nothing is known to be lacking."""
    for need in recipe.needs:
        wanted = _FRAMEWORKS.get(need, environment.framework)
        if wanted != environment.framework:
            return (
                f"the environment {environment.name} has {environment.framework}, and the recipe wants {need}",
                f"{PROGRAM} env create NAME --framework {wanted}, and --env-name NAME",
            )
    return "", ""


_BF16_FROM = (8, 0)  # Ampere (CUDA C++ programming guide, compute capabilities)
_PRECISION = "--precision"


@rule(
    *("image-other-processor", "driver-too-old", "image-without-cuda", "no-kernels-for-gpu", "no-bf16-on-gpu"),
    *("pmi-not-in-image", "image-without-mpi", "mpi-abi-mismatch"),
)
def check_image(case: Case) -> Iterator[Finding]:
    """See ``findings``."""
    yield from findings(case.plan, gpus.hardware(case.plan, case.site))


def findings(plan: Plan, hardware: Hardware) -> tuple[Finding, ...]:
    """What does not fit, refusals first."""
    facts = plan.image.about
    found = [*_mpi(plan)] if facts is None else [*_processor(facts, hardware), *_driver(facts, hardware), *_mpi(plan)]
    if plan.device == "cuda":
        found += [] if facts is None else [*_cuda(plan, facts), *_kernels(plan, facts, hardware)]
        found += _precision(plan, hardware)
    return tuple(sorted(found, key=lambda finding: finding.severity != "refuse"))


def version(text: str) -> tuple[int, ...]:
    """(535, 104, 5) of ``535.104.05``."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def place(plan: Plan) -> str:
    """What the program runs in, for people: ``image`` or ``environment``."""
    return "image" if RUNTIMES[plan.runtime].is_container else "environment"


def _processor(facts: ImageFacts, hardware: Hardware) -> Iterator[Finding]:
    if facts.arch and hardware.cpu and facts.arch != hardware.cpu:
        yield Finding(
            "image-other-processor",
            "refuse",
            f"the image is for {facts.arch}, the site's nodes are {hardware.cpu}",
            f"build it for them: {PROGRAM} build --platform linux/"
            + {"x86_64": "amd64", "aarch64": "arm64"}.get(hardware.cpu, hardware.cpu),
        )


def _driver(facts: ImageFacts, hardware: Hardware) -> Iterator[Finding]:
    if not (facts.driver_min and hardware.driver) or version(hardware.driver) >= version(facts.driver_min):
        return
    what = f"CUDA {facts.cuda} wants driver {facts.driver_min} or later, the site has {hardware.driver}"
    fix = f"choose an older base: {PROGRAM} build ... --base auto --site SITE"
    if facts.driver_compat:
        yield Finding(
            "driver-by-compat-package",
            "warn",
            f"{what}; the image carries {facts.driver_compat} for older hosts, which works on data-center GPUs only",
            fix,
        )
    else:
        yield Finding("driver-too-old", "refuse", what, fix)


def _cuda(plan: Plan, facts: ImageFacts) -> Iterator[Finding]:
    if not facts.cuda and facts.framework:
        yield Finding(
            "image-without-cuda",
            "refuse",
            f'this image has CPU-only {facts.framework} {facts.framework_version}, but site "{plan.site}" has GPUs',
            f"build on a base with CUDA: {PROGRAM} build {facts.framework}",
        )


def _kernels(plan: Plan, facts: ImageFacts, hardware: Hardware) -> Iterator[Finding]:
    archs, capability = gpus.framework_architectures(facts), hardware.compute_capability
    covered = gpus.coverage(archs, capability)
    where = place(plan)
    what = f"{facts.framework} in the {where} has kernels for {', '.join(archs)}, and the GPUs of {plan.site} have "
    what += f"compute capability {capability}"
    fix = f"take {facts.framework} from a build with kernels for them (`env create --requirement`, --module)"
    if where == "image":
        fix = f"choose another base: {PROGRAM} build ... --base auto --site SITE"
    if covered == "none":
        yield Finding("no-kernels-for-gpu", "refuse", what, fix)
    elif covered == "ptx":
        yield Finding(
            "kernels-only-as-ptx",
            "warn",
            f"{what}: the driver translates them from PTX at the first start, and must be as new as CUDA {facts.cuda}",
            fix,
        )


def _precision(plan: Plan, hardware: Hardware) -> Iterator[Finding]:
    capability = version(hardware.compute_capability)
    words = plan.program
    asked = {words[place + 1] for place, word in enumerate(words[:-1]) if word == _PRECISION}
    if capability and capability < _BF16_FROM and asked & {"amp-bf16", "tf32"}:
        yield Finding(
            "no-bf16-on-gpu",
            "refuse",
            f"GPUs of compute capability {hardware.compute_capability} have neither bf16 nor TF32",
            "--set precision=amp-fp16",
        )


def _mpi(plan: Plan) -> Iterator[Finding]:
    """Ranks that meet by MPI need one in the image that what starts them knows; all others need none."""
    if plan.wireup in wireup.BY_MPI:
        misfit = wireup.misfit(plan.image, plan.wireup)
        if misfit is not None:
            yield Finding(
                misfit.code,
                "refuse",
                f"{misfit.what}: each rank would form a world of one",
                "--wireup rendezvous, which needs no MPI, or build on a base whose MPI fits",
            )
        return
    facts = plan.image.about
    kind = next((name for name in ("pmix", "pmi2") if (plan.mpi or "").startswith(name)), "")
    if facts is not None and kind and facts.mpi.flavour and kind not in facts.mpi.pmi:
        yield Finding(
            "pmi-not-in-image",
            "warn",
            f"srun starts with --mpi={plan.mpi}, the image's {facts.mpi.flavour} {facts.mpi.version} takes "
            + wireup.pmi_of(facts.mpi),
            "ranks meet by the launcher's rendezvous and need none; a program that calls MPI itself would be alone",
        )
