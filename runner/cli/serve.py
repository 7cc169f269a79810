"""``serve``: a web server on a GPU node, in a job of its own, and the tunnel to it: Jupyter, TensorBoard, anything."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from runner.cli.job_options import ReferringCommand, job_options
from runner.cli.options import say, warn
from runner.cli.progress import slow
from runner.cli.shell import in_own_job, job_request, wait_for_end, wait_until
from runner.core import files
from runner.core.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.service import Kind, Reach


@click.command(cls=ReferringCommand)
@job_options(by_hand="[-- COMMAND]")
@click.option("--notebook", is_flag=True, help="Serve Jupyter, which the image or environment must have.")
@click.option("--tensorboard", metavar="DIR", help="Serve TensorBoard, of the logs in DIR.")
@click.option("--idle", metavar="MIN", type=click.IntRange(min=1), help="End after MIN minutes without a connection.")
def command(notebook: bool, tensorboard: str | None, idle: int | None, *, dry_run: bool, full: bool) -> int:
    """Serve Jupyter, TensorBoard or COMMAND from a GPU node, and print the ssh tunnel to it; Ctrl-C ends its job.

    In COMMAND {port} and {address}, or {socket}, are replaced; RUNNER_SERVE_TOKEN has the token. Other options are
    those of submit. `jupyter` is `serve --notebook`.
    """
    import msgspec

    from runner.jobs.service import program_inside, program_of, reach_of
    from runner.model.request import Mount
    from runner.preparation.request import complete
    from runner.preparation.site import read_user_site

    context = click.get_current_context()
    notebook = notebook or context.info_name == "jupyter"
    words: tuple[str, ...] = context.params["arguments"]
    kind: Kind = "notebook" if notebook else "command" if tensorboard is None else "tensorboard"
    if notebook and tensorboard is not None:
        raise UsageError("one server for a job", where="--tensorboard", fix="leave --notebook out: serve each by a job")
    request = job_request("serve", program_inside("serve"))
    if tensorboard is not None:
        logs = str(files.resolved(Path(tensorboard)))
        words = (logs, *words)
        request = msgspec.structs.replace(request, mounts=(*request.mounts, Mount(logs, logs)))
    site = read_user_site(complete(request).site, request, for_job=True).site
    program = program_of(kind, words, request, site, idle_s=60.0 * (idle or 0))
    request = msgspec.structs.replace(request, program=program)
    return in_own_job(request, partial(_serve, kind, reach_of(site)), dry_run=dry_run, full=full)


def _reading(token: Path) -> str:
    """What prints the token, on the machine where the person types."""
    login, words = os.environ.get("RUNNER_REMOTE_LOGIN", ""), f"cat {quote(str(token))}"
    return f"ssh {login} {quote(words)}" if login else words


def _serve(kind: Kind, reach: Reach, run: Run) -> int:
    """Print the way to the server once it answers; returns its exit code once it has ended."""
    from runner.jobs import service

    with slow("waiting for the server"):
        place = wait_until(run, lambda: run.read(service.PLACE, service.Place))
        if not service.answers(run, place, reach):
            warn(
                "it answers on its node, but this machine does not reach it there, so that the tunnel may fail; where "
                "ssh reaches the nodes, `ssh_to_nodes: true` in the site file takes that way"
            )
    if kind == "command" and place.port and place.status == 200:
        warn(f"it asks for no token: whoever reaches {place.host}:{place.port} may use it")
    token = run.content(service.TOKEN).decode("ascii", "replace")  # none where the server has ended already
    if token and not re.fullmatch("[0-9a-f]{64}", token):
        raise RefusedError("this is no token of ours", where=str(run.path / service.TOKEN), fix="start it again")
    shown = token if token and sys.stdout.isatty() else f"$({_reading(run.path / service.TOKEN)})"
    say("it answers; to reach it, type the first line on your own machine, and open the second in a browser there:")
    click.echo("\n".join(service.directions(run, place, reach, kind, shown)))
    return wait_for_end(run)
