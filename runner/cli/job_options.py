"""The options of every verb that runs a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from runner.cli.options import by_shell, duration_s, environment, mount, setting
from runner.preparation.request import DEFAULT_RECIPE

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--gpus", type=int, required=True, help="Total number of GPUs; one rank on each."),
    click.option("--nodes", type=int, help="Number of nodes. [default: as few as possible]"),
    click.option(
        "--recipe",
        shell_complete=by_shell("recipes"),
        help=f"A shipped recipe, or a directory. [default: {DEFAULT_RECIPE}, or the program after --]",
    ),
    click.option(
        "--site",
        shell_complete=by_shell("sites"),
        default=lambda: os.environ.get("RUNNER_SITE"),
        help="A shipped site, or a site file. [default: $RUNNER_SITE, the one in your configuration, or box]",
    ),
    click.option(
        "--hosts", metavar="NAME:N,...", help="Nodes to reach by ssh, without a scheduler, and ranks on each."
    ),
    click.option("--hostfile", metavar="FILE", help="The same from a host file of horovodrun or mpirun."),
    click.option(
        "--runtime", shell_complete=by_shell("runtimes"), help="Container runtime. [default: the site's first]"
    ),
    click.option(
        "--image",
        shell_complete=by_shell("images"),
        help="Image reference, digest, or image file. [default: the recipe's]",
    ),
    click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", callback=mount, help="Mount a host path."),
    click.option(
        "--env",
        multiple=True,
        metavar="[-]NAME[=VALUE]",
        callback=environment,
        help="Environment variable of every rank; without a value, its value in this shell; -NAME takes it away.",
    ),
    click.option(
        "--set",
        "options",
        shell_complete=by_shell("recipe options"),
        multiple=True,
        metavar="KEY=VALUE",
        callback=setting,
        help="Option of the recipe's program.",
    ),
    click.option(
        "--time", "walltime_s", metavar="[D-][H:]M:S", callback=duration_s, help="Time limit. [default: the site's]"
    ),
    click.option(
        "--queue",
        "--partition",
        "queue",
        shell_complete=by_shell("queues"),
        help="Queue, partition or QOS, whichever the site uses. [default: one that fits]",
    ),
    click.option("--account", help="Account to charge. [default: the one in your configuration]"),
    click.option(
        "--project", help="Project, if paths of the site contain it. [default: the one in your configuration]"
    ),
    click.option("--scratch", help="Your scratch directory at the site. [default: the one in your configuration]"),
    click.option(
        "--field", help="Your field of research, if the site asks for it. [default: the one in your configuration]"
    ),
    click.option("--gpu-type", help="GPU type to request from the scheduler, or a MIG slice. [default: the site's]"),
    click.option("--cpus-per-gpu", type=int, help="CPUs of each rank. [default: an equal share of the node]"),
    click.option(
        "--wireup",
        type=click.Choice(("rendezvous", "torchrun", "pmix", "pmi2", "mpich", "own")),
        help="How ranks find each other. torchrun: by its variables; own: the program, started once a node, starts its "
        "own processes. [default: rendezvous, which needs no MPI]",
    ),
    click.option(
        "--bind",
        type=click.Choice(("auto", "none")),
        default="auto",
        show_default=True,
        help="Bind each rank to the CPUs near its GPU, or do not bind.",
    ),
    click.option(
        "-S",
        "--scheduler-option",
        "scheduler_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=setting,
        help="Another option of sbatch or qsub: dependency=afterok:7, reservation=X, nodelist=n1, mail-user=me@x.",
    ),
    click.option(
        "--force",
        multiple=True,
        metavar="CODE",
        shell_complete=by_shell("codes"),
        help="Submit even if the check CODE refuses; this is recorded.",
    ),
    click.option("--name", "job_name", help="Job name. [default: the recipe's]"),
    click.option(
        "--runs",
        type=Path,  # click.Path would access it, and could hang on its file system
        metavar="PATH",
        default=Path("runs"),
        show_default=True,
        help="Directory for run directories; every node must see it.",
    ),
    click.option(
        "--stage", is_flag=True, help="Copy the image to each node's local disk, verify it, and start from there."
    ),
    click.option(
        "--nsys",
        default="",
        metavar="RANKS",
        help="Profile these ranks (0, 0,8 or all) with `nsys profile` into RUN/nsys/.",
    ),
    click.option(
        "--env-name", metavar="NAME|DIR", help="Run without a container, in this environment made by `env create`."
    ),
    click.option("--dry-run", is_flag=True, help="Print the script and touch nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print facts as JSON."),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=by_shell("files")),
)


def job_options(command: F) -> F:
    """Decorate a click command with the options; ``runner.preparation.request.make_options`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
