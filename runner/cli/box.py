"""``box``: a real Slurm in a private root on this machine, and the end of all that is kept here."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial

import click

from runner import box
from runner.cli.options import JSON, answer, say
from runner.cli.quickstart import command as quickstart
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.process import run
from runner.core.text import counted
from runner.setup import cleaning

NAME = click.option("--name", default=box.DEFAULT_NAME, show_default=True, help="Name of the box.")


@click.group(name="box")
def command() -> None:
    """Run a real Slurm on this machine, in a root directory of its own, to try jobs on: the box."""


command.add_command(quickstart, "quickstart")


@command.command("up")
@NAME
@click.option(
    "--nodes", default=2, show_default=True, type=click.IntRange(1, 99), help="Nodes, each with 8 pretended GPUs."
)
@click.option("--slurm", default=box.DEFAULT_SLURM, show_default=True, help=f"Version: {', '.join(box.SUITES)}.")
@click.option("--spank", multiple=True, metavar="LINE", help="A line for plugstack.conf.")
@click.option("--bind", multiple=True, metavar="SRC:DST", help="A host path to make visible inside.")
@JSON
def up(name: str, nodes: int, slurm: str, spank: tuple[str, ...], bind: tuple[str, ...], as_json: bool) -> int:
    """Start the box; returns at once if it is up already."""
    spec = box.BoxSpec(
        name=name, nodes=nodes, slurm=slurm, spank=spank, binds=tuple(box.Bind.parse(text) for text in bind)
    )
    started = time.monotonic()
    here = box.up(spec, lambda line: say(f"  {line}"))
    lines = (
        f"box {name} is up: Slurm {here.version}, {counted(nodes, 'node')} ({time.monotonic() - started:.1f} s)",
        f"  submit to it:  {PROGRAM} submit --site {shlex.quote(here.site)} --gpus {nodes * spec.shape.gpus}",
        f"  its clients:   export PATH={shlex.quote(str(here.bin_dir))}:$PATH",
    )
    return answer(here, lines, as_json=as_json)


@command.command("down")
@NAME
@JSON
def down(name: str, as_json: bool) -> int:
    """Stop the box and everything that runs in it."""
    started = time.monotonic()
    ended = box.down(name)
    seconds = time.monotonic() - started
    line = f"box {name} is down ({seconds:.1f} s)" if ended else f"box {name} was not up"
    return answer({"name": name, "was_up": ended, "seconds": seconds}, [line], as_json=as_json)


@command.command("status")
@click.option("--name", default=None, help="Name of the box. [default: all]")
@JSON
def status(name: str | None, as_json: bool) -> int:
    """Show which boxes are up, with their nodes and jobs."""
    running = [here for here in map(box.find, [name] if name else box.names()) if here]
    return answer(running, _status_lines(running, name), as_json=as_json)


def _status_lines(running: list[box.Box], name: str | None) -> Iterator[str]:
    for here in running:
        yield f"box {here.name} is up: Slurm {here.version}, process {here.pid}, clients in {here.bin_dir}"
        for client, options in (("sinfo", ["--long", "--Node"]), ("squeue", [])):
            done = run([here.bin_dir / client, *options], timeout_s=15, check=False)
            yield from (done.out if done.code == 0 else done.err).rstrip().splitlines()
    if not running and name:
        yield f"box {name} is not up; start it: {PROGRAM} box up --name {name}"
    elif not running:
        yield f"no box is up; start one: {PROGRAM} box up"


@command.command("clean")
@click.option("--keep-cache", is_flag=True, help="Only stop: keep images, box roots, wheels and downloads.")
@click.option("--dry-run", is_flag=True, help="Only show what would be stopped and removed.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where standard input is no terminal.")
@JSON
def clean(keep_cache: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Stop boxes and the private engine, and empty the cache.

    What a queued or running job of yours needs, or may need, is kept: its image, and the box that it is in.
    """
    work = partial(cleaning.clean, keep_cache=keep_cache)
    if not (yes or keep_cache or dry_run):
        if sys.stdin is None or not sys.stdin.isatty():
            what = "it asks before it removes anything, and standard input is no terminal"
            raise UsageError(
                what, where="clean", fix="--yes removes without asking, --dry-run shows what that would be"
            )
        work(partial(click.echo, err=True), dry_run=True)
        click.confirm("go on?", abort=True, err=True)
    return answer(work(partial(click.echo, err=as_json), dry_run=dry_run), (), as_json=as_json)
