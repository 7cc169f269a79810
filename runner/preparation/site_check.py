"""What ``site check`` and ``site detect`` do: a site's file, tried, and held against the cluster that answers."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from runner.errors import Exit, RunnerError, UsageError
from runner.files import atomic
from runner.model.finding import Finding
from runner.model.names import PLAIN_NAME, PLAIN_NAME_FIX, ImageForm
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.model.site import Site
from runner.planning.personal import absent, account, completed, filled
from runner.planning.plan import plan
from runner.preparation.job import clients
from runner.recipes.loader import read_recipe
from runner.runtimes import runtime
from runner.schedulers import render
from runner.sites.detection import Detected, detect, differences
from runner.sites.loader import files_of, read_site
from runner.sites.unknowns import Open, left_open
from runner.sites.user import personal, read_config

# In the form that a runtime takes; only their names are looked at.
_IMAGES: dict[ImageForm, PlannedImage] = {
    "squashfs": PlannedImage(reference="/image.sqsh", digest="", path="/image.sqsh"),
    "sif": PlannedImage(reference="/image.sif", digest="", path="/image.sif"),
    "registry": PlannedImage(reference="registry.example.org/image:1", digest="", path=""),
    "none": PlannedImage(reference="", digest="", path=""),
}
_SCHEDULERS = ("slurm", "pbs")  # that have directives, and a cluster to compare with


class Checked(msgspec.Struct, frozen=True):
    """What is to be said of a site.

    Attributes:
        left_open: what its file leaves open; nothing else was looked at then.
        findings: where the live cluster differs.
        remarks: a line each.
    """

    left_open: tuple[Open, ...] = ()
    findings: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> Exit:
        """2 for a file that is not finished, 3 where the cluster would not do what it says."""
        if self.left_open:
            return Exit.USAGE
        refused = any(finding.severity == "refuse" for finding in self.findings)
        return Exit.REFUSED if refused else Exit.GOOD


def checked(name: str, *, offline: bool, on_node: bool, options: tuple[tuple[str, str], ...]) -> Checked:
    """Look at a site: its files, a script of each of its ways, and the cluster that answers here.

    Raises:
        UsageError: a file is not right; says file:line and key.
        RefusedError: a GPU node was to be asked and did not answer.
    """
    left = left_open(files_of(name))
    if left:
        return Checked(left_open=left)
    site = read_site(name)
    if site.scheduler in _SCHEDULERS:
        _try_every_way(site)
    remarks = [f"{site.name}: the file is sound; its ways: {', '.join(site.runtimes)}"]
    unconfirmed = sorted(key for key, source in site.sources.items() if "unconfirmed" in source)
    if unconfirmed:
        remarks.append(f"unconfirmed: {', '.join(unconfirmed)}")
    missing = absent(site, completed(personal(read_config(), site.name, Request(gpus=1)), site))
    if missing:
        remarks.append(f"jobs there also need your {', '.join(missing)}: --{missing[0]} NAME, or your configuration")
    if offline or site.scheduler not in _SCHEDULERS:
        return Checked(remarks=tuple(remarks))
    try:
        found = detected(site, on_node=on_node, options=options)
    except RunnerError as error:
        if on_node:
            raise
        return Checked(remarks=(*remarks, f"compared with no live cluster: {error.what}"))
    findings = differences(site, found)
    agrees = "" if findings else "; it agrees"
    return Checked(findings=findings, remarks=(*remarks, f"compared with {found.scheduler}{agrees}"))


def detected(
    site: Site | None, *, partition: str | None = None, on_node: bool, options: tuple[tuple[str, str], ...]
) -> Detected:
    """The cluster that answers here, or the box that a site names.

    Raises:
        RefusedError: none answers.
    """
    words = tuple(f"--{name}={value}" if value else f"--{name}" for name, value in options)
    return detect(None if site is None else clients(site), partition=partition, on_node=words if on_node else None)


def named(found: Detected, asked: str | None) -> str:
    """The site's name: what was asked for, else the cluster's, else ``detected``; plain, as names must be.

    Raises:
        UsageError: what was asked for is not.
    """
    cluster = found.slurm.config.get("ClusterName", "") if found.slurm is not None else ""
    if asked is not None and not PLAIN_NAME.match(asked):
        raise UsageError(f"{asked!r} cannot be a site's name", where="--name", fix=PLAIN_NAME_FIX)
    return asked or re.sub(r"[^A-Za-z0-9._-]+", "-", cluster).strip("-")[:64] or "detected"


def write_draft(path: Path, text: str) -> tuple[Open, ...]:
    """Write a new file, whole; returns what it leaves open.

    Raises:
        UsageError: there is such a file.
    """
    if path.exists():
        raise UsageError("there is such a file, and what you have filled in may stand in it", where=str(path),
                         fix="name another, or move it away")  # fmt: skip
    atomic.write_private(path, text)
    return left_open((path,))


def _try_every_way(site: Site) -> None:
    """Plan and render a small job in each of the site's ways: what only a scheduler's directives refuse is found so."""
    recipe = read_recipe("probe").recipe
    told = completed(personal(read_config(), site.name, Request(gpus=1)), site)
    for name in site.runtimes:
        request = Request(gpus=1, runtime=name, account=account(site, told))
        module = runtime(name)
        planned = plan(recipe, filled(site, told), request, _IMAGES[module.IMAGE])
        render(planned, module.step(planned))
