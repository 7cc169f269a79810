"""``box quickstart``: set up everything and run the main job."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import click
import msgspec

from runner.cli import json_output, run
from runner.cli.options import JSON
from runner.core.errors import Exit, RefusedError
from runner.core.invocation import PROGRAM
from runner.images import engine
from runner.images.engine import private_state, start_private
from runner.model.output import Problem
from runner.setup import machine

Document = Any
Say = Callable[..., None]

IMAGE = "gpu-runner/horovod-pytorch:standin"


class Step(msgspec.Struct, frozen=True):
    """One step: its purpose, and the arguments of ``gpu-runner``."""

    purpose: str
    arguments: tuple[str, ...]


class Taken(Step, frozen=True):
    """A step that was taken. ``document``: what its command prints with ``--json``; None where it printed none."""

    exit_code: int
    seconds: float
    document: Document

    @property
    def name(self) -> str:
        """In a few words."""
        return self.arguments[0] if self.arguments else self.purpose


_NEEDS = "packages and engine"
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
@JSON
def command(only_prepare: bool, private_engine: bool, as_json: bool) -> int:
    """Set up image and box, and run the benchmark there. It has 16 ranks on CPUs: a demonstration."""
    reason = machine.real_cluster()
    if reason:
        raise RefusedError(
            f"this looks like a real cluster ({reason}); quickstart sets up a machine that has none",
            where="this machine",
            fix=f"submit to the cluster: {PROGRAM} submit --help",
        )
    say = partial(click.secho, err=as_json)
    taken = [_timed(Step(_NEEDS, ()), lambda _words: _prepare(say, private_engine))]
    for step in () if only_prepare else STEPS:
        if taken[-1].exit_code != Exit.GOOD:
            break
        say(f"\n== {step.purpose}", bold=True)
        say(f"$ {PROGRAM} {' '.join(step.arguments)}")
        taken.append(_timed(step, documented if as_json else _run))
    say("\n== time taken", bold=True)
    for each in taken:
        say(f"  {each.name:<20} {each.seconds:8.1f} s")
    last = taken[-1]
    if last.exit_code != Exit.GOOD:
        click.echo(f"{last.name} ended with exit code {last.exit_code}; its message is above", err=True)
    elif not only_prepare:
        say(f"\n== next: the box is up, and jobs go to it\n$ {PROGRAM} status")
        say(f"$ {PROGRAM} submit --gpus 2 --wait -- python3 train.py    # your own script, in the image")
        say(f"$ {PROGRAM} box down    # ends the box")
    return show(taken) if as_json else last.exit_code


def show(taken: Sequence[Taken]) -> int:
    """The document of all steps; its error is that of the step that failed."""
    last = taken[-1]
    error = None
    if last.exit_code != Exit.GOOD:
        own = last.document["error"] if last.document else None
        error = msgspec.convert(own, Problem) if own else Problem("failed", f"{last.name} ended without saying why")
    return json_output.show({"steps": taken}, exit_code=last.exit_code, error=error)


def _prepare(say: Say, private_engine: bool) -> tuple[int, Document]:
    """Install packages, then start the private engine where no engine answers or the user requests it."""
    say("== what this machine needs", bold=True)
    answers = not private_engine and _engine_answers()
    missing = machine.missing_packages(engine=not answers)
    for package in missing:
        say(f"  {package.name:<16} {package.why}")
    if missing:
        machine.install_packages(missing, lambda line: say(f"$ {line}"))
    else:
        say("  every package is installed")
    if not answers:
        why = "as requested" if private_engine else "no container engine answers"
        say(f"  {why}: starting a private one")
        # The following steps use this one, even if another one answers.
        os.environ["DOCKER_HOST"] = start_private(private_state())
    return Exit.GOOD, None


def _engine_answers() -> bool:
    try:
        engine.connect().close()
    except RefusedError:
        return False
    return True


def _run(arguments: tuple[str, ...]) -> tuple[int, Document]:
    return run(list(arguments)), None


def documented(arguments: tuple[str, ...]) -> tuple[int, Document]:
    """Run a command with ``--json``; returns its document, too. Its messages go to standard error, as always."""
    with redirect_stdout(io.StringIO()) as printed:
        code = run([*arguments, "--json"])
    return code, json.loads(printed.getvalue() or "null")


def _timed(step: Step, work: Callable[[tuple[str, ...]], tuple[int, Document]]) -> Taken:
    started = time.monotonic()
    code, document = work(step.arguments)
    return Taken(step.purpose, step.arguments, int(code), time.monotonic() - started, document)
