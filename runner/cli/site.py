"""``site``: the sites that jobs can be submitted to."""

from __future__ import annotations

import json

import click
import msgspec

from runner.errors import Exit
from runner.model.site import Site, Way


@click.group()
def command() -> None:
    """Show the sites that jobs can be submitted to."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def list_sites(as_json: bool) -> int:
    """List the shipped sites."""
    from runner.sites.loader import names, read_site

    sites = [read_site(name) for name in names()]
    if as_json:
        click.echo(json.dumps([{"name": site.name, "description": site.description} for site in sites]))
        return Exit.GOOD
    for site in sites:
        click.echo(f"{site.name:12} {site.description}")
    return Exit.GOOD


@command.command("show")
@click.argument("site")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def show_site(site: str, as_json: bool) -> int:
    """Show what is known of SITE (a name or a file), and which of its ways are UNPROVEN."""
    from runner.sites.loader import read_site

    found = read_site(site)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return Exit.GOOD
    _print(found)
    return Exit.GOOD


@command.command("reference")
def print_reference() -> int:
    """Print what a site file may say, as Markdown."""
    from runner.sites.reference import reference

    click.echo(reference(), nl=False)
    return Exit.GOOD


def _print(site: Site) -> None:
    node = site.node
    click.echo(f"{site.name}: {site.description}")
    click.echo(f"  scheduler: {site.scheduler}" + (f"; needs your {', '.join(site.needs)}" if site.needs else ""))
    click.echo(f"  node: {node.gpus} x {node.gpu_model or 'GPU'}, {node.cpus} CPUs, {node.memory_mb} MiB")
    for name in site.runtimes:
        click.echo(f"  runtime {name}: {site.proven.get(name) or 'UNPROVEN: has not run on the real thing'}")
        for line in site.ways.get(name, Way()).load:
            click.echo(f"    {' '.join(line)}")
    for name, queue in site.queues.items():
        most = "any number of" if queue.max_nodes is None else str(queue.max_nodes)
        hours = "any time" if queue.max_walltime_s is None else f"{queue.max_walltime_s / 3600:g} h"
        click.echo(f"  queue {name}: {queue.min_nodes} to {most} nodes, {hours}")
    if site.submit_below:
        click.echo(f"  jobs are submitted from below: {', '.join(site.submit_below)}")
    if site.demonstration:
        click.echo(f"  figures: {site.demonstration}")
    click.echo("  known from:")
    for key, source in sorted(site.sources.items()):
        click.echo(f"    {key}: {'UNCONFIRMED' if source == 'unconfirmed' else source}")
