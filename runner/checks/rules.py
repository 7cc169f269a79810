"""The rules that every submission passes."""

from __future__ import annotations

from dataclasses import dataclass

from runner.model.finding import Finding
from runner.model.plan import Plan


@dataclass(frozen=True)
class Observed:
    """What was looked at on this machine; checks themselves look at nothing.

    Attributes:
        image_mend: what makes the image usable; empty if it is.
        image_problem: why the image cannot be used; empty if it can.
        missing_sources: mount sources that do not exist here.
        run_directory_problem: why the runtime cannot mount the run directory; None if it can.
        site_runtimes: the runtimes that the site is known to have.
    """

    image_problem: str
    image_mend: str
    missing_sources: tuple[str, ...]
    run_directory_problem: str | None
    site_runtimes: tuple[str, ...]


def check(plan: Plan, observed: Observed) -> tuple[Finding, ...]:
    """All findings, refusals first."""
    findings: list[Finding] = []
    if observed.image_problem:
        findings.append(Finding("image-unusable", "refuse", observed.image_problem, observed.image_mend))
    for source in observed.missing_sources:
        findings.append(
            Finding(
                "mount-source-missing",
                "refuse",
                f"the mount source {source!r} does not exist here",
                "correct the path; a node would fail to start the container",
            )
        )
    if observed.run_directory_problem:
        findings.append(
            Finding(
                "run-directory-unmountable",
                "refuse",
                observed.run_directory_problem,
                "choose another with --runs",
            )
        )
    if plan.runtime not in observed.site_runtimes:
        known = ", ".join(observed.site_runtimes)
        findings.append(
            Finding(
                "runtime-not-at-site",
                "refuse",
                f"{plan.site} is not known to have {plan.runtime}",
                f"use one of its own ({known}), or a site file that names it",
            )
        )
    if plan.tasks > 64:
        findings.append(
            Finding(
                "rendezvous-at-scale",
                "warn",
                f"{plan.tasks} ranks coordinate through a ring: its cost grows with their number "
                "(4-8 ms per cycle at 128, estimated)",
                "prefer MPI where image and host are proven to fit",
            )
        )
    return tuple(sorted(findings, key=lambda finding: finding.severity != "refuse"))


def refuses(findings: tuple[Finding, ...]) -> bool:
    """Whether a submission must not go out."""
    return any(finding.severity == "refuse" for finding in findings)
