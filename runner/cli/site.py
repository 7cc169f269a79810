"""``site``: the sites that jobs can be submitted to."""

from __future__ import annotations

import json

import click
import msgspec

from runner.errors import Exit


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
    node = found.node
    click.echo(f"{found.name}: {found.description}")
    click.echo(f"  node: {node.gpus} x {node.gpu_model or 'GPU'}, {node.cpus} CPUs, {node.memory_mb} MiB")
    for name in found.runtimes:
        click.echo(f"  runtime {name}: {found.proven.get(name) or 'UNPROVEN: has not run on the real thing'}")
    if found.demonstration:
        click.echo(f"  figures: {found.demonstration}")
    for key, source in found.sources.items():
        click.echo(f"  {key}: {source}")
    return Exit.GOOD
