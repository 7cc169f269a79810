"""``site check`` and ``site detect``: a site's files, tried, and compared with the cluster that answers here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.checks.unconfirmed import WORD
from runner.core import files
from runner.core.errors import Exit, RunnerError, UsageError
from runner.core.strict_yaml import read
from runner.model.names import PLAIN_NAME, PLAIN_NAME_FIX, ImageForm
from runner.model.plan import Finding, PlannedImage
from runner.model.request import Request
from runner.model.runtimes import RUNTIMES
from runner.model.schedulers import SCHEDULERS
from runner.model.site import Site
from runner.planning.plan import plan
from runner.preparation.scheduler import clients
from runner.preparation.site import UserSite, with_user_values
from runner.preparation.site_choice import plain_name
from runner.recipes.loader import read_recipe
from runner.sites.detection.cluster import Detected, detect
from runner.sites.detection.compare import differences
from runner.sites.loader import GENERIC, Unknown, check_shape, read_documents, site_of, unknowns
from runner.sites.user import read_config

# By the form that a runtime takes; nothing looks at the files.
_IMAGES: dict[ImageForm, PlannedImage] = {
    "squashfs": PlannedImage(reference="/image.sqsh", digest="", path="/image.sqsh"),
    "sif": PlannedImage(reference="/image.sif", digest="", path="/image.sif"),
    "registry": PlannedImage(reference="registry.example.org/image:1", digest="", path=""),
    "none": PlannedImage(reference="", digest="", path=""),
}


class SiteReport(msgspec.Struct, frozen=True):
    """The result of checking a site.

    Attributes:
        left_open: keys that jobs need and its files leave unknown; nothing else was checked then.
        defaulted: keys that its files leave unknown and to the default.
        findings: where the live cluster differs.
        remarks: further results, a line each.
    """

    left_open: tuple[Unknown, ...] = ()
    defaulted: tuple[Unknown, ...] = ()
    findings: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> Exit:
        """2 for an unfinished file, 3 where the cluster contradicts it."""
        if self.left_open:
            return Exit.USAGE
        refused = any(finding.severity == "refuse" for finding in self.findings)
        return Exit.REFUSED if refused else Exit.GOOD


def check_site(name: str, *, offline: bool, on_node: bool, options: tuple[tuple[str, str], ...]) -> SiteReport:
    """Check a site: its files, a script of each of its ways, and the cluster that answers here.

    Raises:
        UsageError: a file is not right; says file:line and key.
        RefusedError: a GPU node did not answer.
    """
    documents = read_documents(name)
    unknown = unknowns(documents)
    left_open, defaulted = (tuple(each for each in unknown if each.needed is needed) for needed in (True, False))
    if left_open:
        return SiteReport(left_open=left_open, defaulted=defaulted)
    if name != GENERIC:
        check_shape(documents)
    site = site_of(documents)
    user_site = with_user_values(site, Request(gpus=1), read_config())
    if SCHEDULERS[site.scheduler].nodes == "allocated":
        _try_every_way(user_site)
    remarks = [f"{site.name}: the file is valid; its runtimes: {', '.join(site.runtimes)}"]
    unconfirmed = sorted(key for key, source in site.sources.items() if WORD in source)
    if unconfirmed:
        remarks.append(f"unconfirmed: {', '.join(unconfirmed)}")
    missing = user_site.missing
    if missing:
        remarks.append(
            f"jobs there also need your {', '.join(missing)}: --{missing[0]} NAME, or set it in your configuration"
        )
    if offline or not SCHEDULERS[site.scheduler].detection:
        return SiteReport(defaulted=defaulted, remarks=tuple(remarks))
    try:
        detected = detect_cluster(site, on_node=on_node, options=options)
    except RunnerError as error:
        if on_node:
            raise
        return SiteReport(defaulted=defaulted, remarks=(*remarks, f"not compared with a live cluster: {error.what}"))
    findings = differences(site, detected)
    agrees = "" if findings else "; it agrees"
    remarks.append(f"compared with {detected.scheduler}{agrees}")
    return SiteReport(defaulted=defaulted, findings=findings, remarks=tuple(remarks))


def detect_cluster(
    site: Site | None, *, partition: str | None = None, on_node: bool, options: tuple[tuple[str, str], ...]
) -> Detected:
    """The cluster that answers here, or the box that a site names.

    Raises:
        RefusedError: none answers.
    """
    srun_options = tuple(f"--{name}={value}" if value else f"--{name}" for name, value in options)
    where = None if site is None else clients(site)
    return detect(where, partition=partition, on_node=srun_options if on_node else None)


def site_name(detected: Detected, requested: str | None) -> str:
    """The site's name: the one requested, else the cluster's, else ``detected``; plain, as names must be.

    Raises:
        UsageError: the one requested is not plain.
    """
    if requested is not None and not PLAIN_NAME.match(requested):
        raise UsageError(f"{requested!r} cannot be a site's name", where="--name", fix=PLAIN_NAME_FIX)
    return requested or plain_name(detected.cluster.name)


def write_draft(path: Path, text: str) -> tuple[Unknown, ...]:
    """Write a new site file, whole; returns the keys that it leaves unknown.

    Raises:
        UsageError: the file exists.
    """
    if path.exists():
        raise UsageError("the file exists, and may hold what you have filled in", where=str(path),
                         fix="use another name, or move the file away")  # fmt: skip
    files.write_private(path, text)
    return unknowns((read(path),))


def _try_every_way(user_site: UserSite) -> None:
    """Plan and render a small job in each of the site's ways: finds what only a scheduler's directives refuse."""
    recipe = read_recipe("probe").recipe
    for name in user_site.site.runtimes:
        request = Request(gpus=1, runtime=name, account=user_site.account)
        planned = plan(recipe, user_site.site, request, _IMAGES[RUNTIMES[name].image])
        render(planned, runtime(name).step(planned))
