"""The options of every verb that runs a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from runner.cli.options import duration_s, environment, mount, setting
from runner.preparation.request import DEFAULT_RECIPE

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--gpus", type=int, required=True, help="GPUs in all: one rank each."),
    click.option("--nodes", type=int, help="Nodes to spread them over. [default: the fewest]"),
    click.option(
        "--recipe", help=f"A shipped recipe, or a directory. [default: {DEFAULT_RECIPE}, or the program after --]"
    ),
    click.option(
        "--site",
        default=lambda: os.environ.get("RUNNER_SITE"),
        help="A shipped site, or a site file. [default: $RUNNER_SITE, your configuration's, or box]",
    ),
    click.option("--hosts", metavar="NAME:N,...", help="Nodes that your own ssh reaches, no scheduler; ranks of each."),
    click.option("--hostfile", metavar="FILE", help="The same from a file, as horovodrun's or mpirun's."),
    click.option("--runtime", help="Container runtime. [default: the site's first]"),
    click.option("--image", help="Image reference, digest, or a squashfs file. [default: the recipe's]"),
    click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", callback=mount, help="Mount a host path."),
    click.option("--env", multiple=True, metavar="NAME[=VALUE]", callback=environment, help="Variable for every rank."),
    click.option(
        "--set",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=setting,
        help="Option of the recipe's program.",
    ),
    click.option(
        "--time", "walltime_s", metavar="[D-][H:]M:S", callback=duration_s, help="Time limit. [default: the site's]"
    ),
    click.option(
        "--queue", "--partition", "queue", help="Queue, partition or QOS, as the site has it. [default: one that fits]"
    ),
    click.option("--account", help="Account to charge. [default: your configuration's]"),
    click.option("--project", help="Project, where a site's paths need it. [default: your configuration's]"),
    click.option("--scratch", help="Your scratch directory at the site. [default: your configuration's]"),
    click.option("--gpu-type", help="GPU type for the scheduler, MIG slices included. [default: the site's]"),
    click.option("--cpus-per-gpu", type=int, help="CPUs of each rank. [default: the node's share]"),
    click.option(
        "--wireup",
        type=click.Choice(("rendezvous", "torchrun", "pmix", "pmi2", "mpich", "own")),
        help="How ranks find each other; torchrun: by its variables; own: the program starts processes itself. "
        "[default: rendezvous, without MPI]",
    ),
    click.option(
        "--bind",
        type=click.Choice(("auto", "none")),
        default="auto",
        show_default=True,
        help="Bind each rank to the processors near its GPU, or leave it as it is.",
    ),
    click.option(
        "-S",
        "--scheduler-option",
        "scheduler_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=setting,
        help="Further option for sbatch or qsub: dependency=afterok:7, reservation=X, nodelist=n1, mail-user=me@x.",
    ),
    click.option(
        "--force", multiple=True, metavar="CODE", help="Submit although the check CODE refuses; it is recorded."
    ),
    click.option("--name", "job_name", help="Job name. [default: the recipe's]"),
    click.option(
        "--runs",
        type=Path,  # click's own would look at it, and wait for its file system
        metavar="PATH",
        default=Path("runs"),
        show_default=True,
        help="Where run directories are made; every node must see it.",
    ),
    click.option("--stage", is_flag=True, help="Start from a checked copy of the image on each node's own disk."),
    click.option(
        "--nsys", default="", metavar="RANKS", help="Run these ranks (0, 0,8 or all) under `nsys profile`: RUN/nsys/."
    ),
    click.option("--env-name", metavar="NAME|DIR", help="Natively, in this environment of `env create`."),
    click.option("--dry-run", is_flag=True, help="Print the script and touch nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print facts as JSON."),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)


def job_options(command: F) -> F:
    """Decorate a click command with the options; ``runner.preparation.request.make_options`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
