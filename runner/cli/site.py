"""``site``: the sites that jobs can be submitted to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from runner.cli import json_output
from runner.cli.options import JSON, answer, by_shell, say, setting, show_findings
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.paths import is_site_file
from runner.core.strict_yaml import document_of
from runner.core.text import counted
from runner.model.backends import SCHEDULERS
from runner.model.output import Problem
from runner.model.site import RuntimeAtSite, Site
from runner.planning.environment import setup_lines
from runner.preparation import site_check
from runner.preparation.site_check import SiteReport, detect_cluster, site_name, write_draft
from runner.sites import loader
from runner.sites.detection.cluster import draft
from runner.sites.loader import gpu_uuids, names, read_site, unknowns
from runner.sites.proofs import Proven, proven_by, read_records, with_recorded
from runner.sites.reference import reference

_ON_NODE = click.option(
    "--on-node", is_flag=True, help="Also query a GPU node, with a task of at most two minutes (srun)."
)
_OPTIONS = click.option(
    "-S", "--scheduler-option", "options", multiple=True, metavar="NAME=VALUE", callback=setting,
    help="Option of srun for --on-node: account=NAME, partition=NAME.",
)  # fmt: skip


@click.group()
def command() -> None:
    """Show, check and detect the sites that jobs can be submitted to."""


@command.command("list")
@JSON
def list_sites(as_json: bool) -> int:
    """List all sites: shipped, of yours, of the machine, detected."""
    sites = []
    for name in loader.every_name():
        try:
            sites.append(read_site(name))
        except UsageError as error:
            say(f"warning: {name} is left out: {error.what}; `{PROGRAM} site show {name}` says where")
    rows = [{"name": site.name, "description": site.description} for site in sites]
    return answer(rows, (f"{site.name:12} {' '.join(site.description.split())}" for site in sites), as_json=as_json)


@command.command("show")
@click.argument("site", shell_complete=by_shell("sites"))
@JSON
def show_site(site: str, as_json: bool) -> int:
    """Show the facts about SITE. SITE is a name or a file; runtimes that have not run there are UNPROVEN."""
    shown = with_recorded(read_site(site)) if site in names() else read_site(site)
    proven = proven_by(read_records(), shown, gpu_uuids())
    if not as_json:
        return answer(None, _lines(shown, proven), as_json=False)
    from runner.cli.results import ShownSite

    section = SCHEDULERS[shown.scheduler].section
    settings = {section: shown.scheduler_settings} if section in ShownSite.__struct_fields__ else {}
    return json_output.show(msgspec.to_builtins(shown) | settings | {"proven_on_gpus": proven})


@command.command("set")
@click.argument("key", type=click.Choice(("site", "account", "project", "scratch", "field")))
@click.argument("value")
def set_value(key: str, value: str) -> int:
    """Set a default of your own, in your configuration.

    It is the site, or at every site whom to charge, your project, your scratch directory, your field of research;
    options of a job override it.
    """
    if (key == "site" and is_site_file(value)) or (key == "scratch" and not value.startswith(("$", "~"))):
        value = str(Path(value).absolute())
    path = loader.set_value(key, value)
    return answer(None, [f"{key}: {value}, in {path}"], as_json=False)


@command.command("detect")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write. [default: print it]")
@click.option("--name", help="The site's name. [default: the cluster's]")
@click.option("--partition", help="Partition that jobs will use. [default: the one whose nodes have the most GPUs]")
@click.option("--keep", is_flag=True, help="Replace the file of this cluster that jobs use where no site is named.")
@_ON_NODE
@_OPTIONS
@JSON
def detect_site(
    output: Path | None, name: str | None, partition: str | None, keep: bool, on_node: bool,
    options: tuple[tuple[str, str], ...], as_json: bool,
) -> int:  # fmt: skip
    """Write a site file for the cluster that this host is part of.

    Facts that could not be detected appear as `# UNKNOWN key: how to find out` where jobs need them, and `site check`
    refuses the file until they are filled in; else as `# DEFAULT key: how to find out`.
    """
    if keep:
        if output or name or partition or not on_node:
            raise click.UsageError("--keep goes with --on-node and no other option but -S; fix: leave the others out")
        path, detected = site_check.keep_detected(options)
        line = f"{path}: container runtimes: {', '.join(detected.runtimes) or 'none'}\n"
        return answer({"file": str(path), "runtimes": detected.runtimes}, line, as_json=as_json)
    detected = detect_cluster(None, partition=partition, on_node=on_node, options=options)
    text = draft(detected, site_name(detected, name), partition)
    left = unknowns((document_of(text.encode(), "the draft"),)) if output is None else write_draft(output, text)
    file = None if output is None else str(output.absolute())
    facts = {"file": file, "text": text, "scheduler": detected.scheduler, "unknown": left}
    if output is None or as_json:
        return answer(facts, text, as_json=as_json)
    needed = [entry for entry in left if entry.needed]
    unknown = f"{counted(len(needed), 'fact')} that jobs need could not be detected:"
    say(f"{output}: {detected.scheduler}; {unknown if needed else 'it has all that jobs need'}")
    for entry in needed:
        say(f"  {entry.key} ({entry.where})")
    say(f"left to their defaults: {', '.join(entry.key for entry in left if not entry.needed) or 'none'}")
    say(f"{'fill them in, then' if needed else 'now'}: {PROGRAM} site check {output}")
    return Exit.GOOD


@command.command("check")
@click.argument("site", shell_complete=by_shell("sites"))
@click.option("--offline", is_flag=True, help="Do not compare with a live cluster.")
@_ON_NODE
@_OPTIONS
@JSON
def check_site(site: str, offline: bool, on_node: bool, options: tuple[tuple[str, str], ...], as_json: bool) -> int:
    """Check SITE, and compare it with the live cluster. SITE is a name or a file; keys that it leaves unknown count."""
    report = site_check.check_site(site, offline=offline, on_node=on_node, options=options)
    if not as_json:
        for unknown in report.left_open:
            say(f"unknown [{unknown.key}] {unknown.where}: {unknown.how}")
        for unknown in report.defaulted:
            say(f"warning [{unknown.key}] {unknown.where}: left to the default: {unknown.how}")
        show_findings(report.findings, override=False)
    error = _first_problem(report)
    return answer(report, report.remarks, as_json=as_json, exit_code=report.exit_code, error=error)


@command.command("reference")
def print_reference() -> int:
    """Print the reference of site files, as Markdown."""
    click.echo(reference(), nl=False)
    return Exit.GOOD


def _first_problem(report: SiteReport) -> Problem | None:
    if report.left_open:
        first = report.left_open[0]
        return Problem("site-unfinished", f"{first.key} is unknown, and jobs need it", first.where, first.how, "user")
    return json_output.of_findings(report.findings)


def _lines(site: Site, proven: Proven) -> Iterator[str]:
    node = site.node
    yield f"{site.name}: {' '.join(site.description.split())}"
    yield f"  scheduler: {site.scheduler}" + (f"; needs your {', '.join(site.needs)}" if site.needs else "")
    if site.login:
        yield f"  login: {site.login}, by ssh; {site.proven.get('login') or 'UNPROVEN: no run by this way is recorded'}"
    if SCHEDULERS[site.scheduler].nodes == "listed":
        named = ", ".join(f"{name}:{ranks}" for name, ranks in site.ssh.hosts.items())
        yield f"  hosts: {named or 'given by --hosts or --hostfile'}"
    else:
        yield f"  node: {node.gpus} x {node.gpu_model or 'GPU'}, {counted(node.cpus, 'CPU')}, {node.memory_mb} MiB"
    yield from _runtime_lines(site, proven)
    for name, queue in site.queues.items():
        most = "any number of nodes" if queue.max_nodes is None else counted(queue.max_nodes, "node")
        hours = "any time" if queue.max_walltime_s is None else f"{queue.max_walltime_s / 3600:g} h"
        less = (f"{seconds / 3600:g} h up to {counted(nodes, 'node')}" for nodes, seconds in queue.walltimes_s)
        yield f"  queue {name}: {queue.min_nodes} to {most}, {', '.join((hours, *less))}" + (
            f"; {queue.warning}" if queue.warning else ""
        )
    if site.submit_below:
        yield f"  jobs are submitted from below: {', '.join(site.submit_below)}"
    if site.home.quota_gb is not None:
        use = "" if site.home.for_jobs else "; jobs may not write there"
        yield f"  home directories hold {site.home.quota_gb} GB{use}"
    if site.scratch.purge_days is not None:
        yield f"  scratch: files that are unused for {site.scratch.purge_days} days are removed"
    if site.demonstration:
        yield f"  figures: {site.demonstration}"
    yield "  known from:"
    for key, source in sorted(site.sources.items()):
        yield f"    {key}: {'UNCONFIRMED' if source == 'unconfirmed' else source}"


def _runtime_lines(site: Site, proven: Proven) -> Iterator[str]:
    for name in site.runtimes:
        recorded, on_gpus = site.proven.get(name, ""), proven.runtimes.get(name, "")
        yield f"  runtime {name}: {recorded or on_gpus or 'UNPROVEN: has not run there yet'}"
        if recorded:
            unproven = f"UNPROVEN: no record of `{PROGRAM} prove --site {site.name}` on this machine"
            yield f"    on GPUs: {on_gpus or unproven}"
        way = site.ways.get(name, RuntimeAtSite())
        for line in (*way.load, *setup_lines(way.setup)):
            yield f"    {' '.join(line)}"
        if way.environment:
            yield f"    {way.kind} {way.environment}: {PROGRAM} env create {way.environment}"
    yield f"  NCCL between GPUs: {proven.nccl_between_gpus or 'UNPROVEN: no record of `prove` on several GPUs'}"
    for path, why in proven.ignored.items():
        yield f"  record {path} proves nothing here: {why}"
