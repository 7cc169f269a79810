"""``box``: a real Slurm in a private root on this machine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

import click

from runner import box
from runner.cli.options import JSON, answer, say
from runner.core.invocation import PROGRAM
from runner.core.process import run
from runner.core.text import counted

NAME = click.option("--name", default=box.DEFAULT_NAME, show_default=True, help="Name of the box.")


@click.group(name="box")
def command() -> None:
    """A real Slurm in a private root on this machine."""


@command.command("up")
@NAME
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 99), help="Nodes of DGX A100 shape.")
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
