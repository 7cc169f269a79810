"""``quickstart``: set up everything and run the main job, by the commands that a user would type."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import click
import msgspec

from runner.errors import Exit, RefusedError
from runner.invocation import PROGRAM

IMAGE = "gpu-runner/horovod-pytorch:standin"


class Step(msgspec.Struct, frozen=True):
    """One step: its purpose, and the arguments of ``python -m runner``."""

    purpose: str
    arguments: tuple[str, ...]


STEPS: tuple[Step, ...] = (
    Step(
        "the image: the Dockerfile of containers/pytorch, on a base that needs no registry",
        ("build", "pytorch", "--base", "standin"),
    ),
    Step("one squashfs file that every node can use", ("convert", IMAGE)),
    Step("a real Slurm: two nodes of DGX A100 shape, in a private root", ("box", "up")),
    Step("the main job: 16 ranks on two nodes", ("submit", "--gpus", "16", "--site", "box", "--wait")),
)


@click.command(name="quickstart")
@click.option("--only-prepare", is_flag=True, help="Only install missing packages and start an engine if none answers.")
@click.option("--private-engine", is_flag=True, help="Use a private engine even if another one answers.")
def command(only_prepare: bool, private_engine: bool) -> int:
    """Set everything up on this machine and run the main job (a CPU demonstration)."""
    from runner.setup.cluster import real_cluster

    reason = real_cluster()
    if reason:
        raise RefusedError(
            f"this looks like a real cluster ({reason}); quickstart sets up a machine that has none",
            where="this machine",
            fix=f"submit to the cluster: {PROGRAM} submit --help",
        )
    timings: list[tuple[str, float]] = []
    code = _timed(timings, "packages and engine", partial(_prepare, private_engine))
    for step in () if only_prepare else STEPS:
        if code != Exit.GOOD:
            break
        click.secho(f"\n== {step.purpose}", bold=True)
        click.echo(f"$ {PROGRAM} {' '.join(step.arguments)}")
        code = _timed(timings, step.arguments[0], partial(_run, step.arguments))
    click.secho("\n== time taken", bold=True)
    for name, seconds in timings:
        click.echo(f"  {name:<20} {seconds:8.1f} s")
    if code != Exit.GOOD:
        click.echo(f"{timings[-1][0]} ended with exit code {code}; its message is above", err=True)
    return code


def _prepare(private_engine: bool) -> int:
    """Install packages, then start the private engine where no engine answers or the user requests it."""
    from runner.images.engine.private_engine import default_state, start
    from runner.setup import packages

    click.secho("== what this machine needs", bold=True)
    answers = not private_engine and _engine_answers()
    missing = packages.missing(engine=not answers)
    for package in missing:
        click.echo(f"  {package.name:<16} {package.why}")
    if missing:
        packages.install(missing, lambda line: click.echo(f"$ {line}"))
    else:
        click.echo("  every package is installed")
    if not answers:
        why = "as requested" if private_engine else "no container engine answers"
        click.echo(f"  {why}: starting a private one")
        # The following steps use this one, even if another one answers.
        os.environ["DOCKER_HOST"] = start(default_state())
    return Exit.GOOD


def _engine_answers() -> bool:
    from runner.images.engine import connection

    try:
        connection.connect().close()
    except RefusedError:
        return False
    return True


def _run(arguments: tuple[str, ...]) -> int:
    from runner.cli import run

    return run(list(arguments))


def _timed(timings: list[tuple[str, float]], name: str, work: Callable[[], int]) -> int:
    started = time.monotonic()
    try:
        return work()
    finally:
        timings.append((name, time.monotonic() - started))
