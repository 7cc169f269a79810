"""The options of every verb that runs a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from runner.cli.options import by_shell, duration_s, environment, mount, setting
from runner.core.errors import UsageError
from runner.preparation.request import DEFAULT_RECIPE

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.model.origin import CommandLine

F = TypeVar("F", bound=Callable[..., Any])
# Keys of what click's contexts share: the arguments as they were typed, and the run that is repeated.
_TYPED, REPEATED, COPIED = "runner.typed", "runner.repeated", "runner.copied"


def _nsys(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        fix = "-- nsys profile -o '%q{RUNNER_RUN_DIR}/rank-%q{RANK}' python3 train.py (docs/jobs.md)"
        raise UsageError("there is no --nsys: a profiler is a part of the command", where="--nsys", fix=fix)


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
        default=lambda: os.environ.get("RUNNER_SITE") or None,
        help="A site, or a site file. [default: $RUNNER_SITE, the one in your configuration, the box if it is up, or "
        "the Slurm or PBS that answers]",
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
        "own processes. [default: rendezvous, which needs no MPI; own for torchrun]",
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
    click.option("--nsys", hidden=True, expose_value=False, callback=_nsys),
    click.option(
        "--meter",
        is_flag=True,
        help="Measure your program's training in PyTorch, with no change to it (docs/meter.md).",
    ),
    click.option(
        "--meter-batch",
        type=int,
        metavar="N",
        help="The same; N samples of a rank in a step of its optimizer. [default: as the model's input shows]",
    ),
    click.option(
        "--env-name", metavar="NAME|DIR", help="Run without a container, in this environment made by `env create`."
    ),
    click.option(
        "--snapshot",
        is_flag=True,
        help="Copy your program's tracked files (git) into the run directory and run the copy.",
    ),
    click.option("--no-diff", is_flag=True, help="Keep no copy of your program's uncommitted changes (git diff)."),
    click.option("--dry-run", is_flag=True, help="Print the script and touch nothing."),
    click.option("--json", "as_json", is_flag=True, help="Print facts as JSON."),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=by_shell("files")),
)


def job_options(command: F) -> F:
    """Decorate a click command with the options; ``runner.preparation.request.make_options`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class JobCommand(click.Command):
    """A command that runs a job, and knows what was typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)
        return super().parse_args(ctx, args)


def typed(ctx: click.Context) -> tuple[str, ...]:
    """The arguments of a command that runs a job, as they were typed."""
    return tuple(ctx.meta[_TYPED])


def command_line(site: str) -> CommandLine:
    """The command line of the command that runs now.

    Args:
        site: the one that was used, for where the command line names none.
    """
    from runner.model.origin import CommandLine

    ctx = click.get_current_context()
    if ctx.get_parameter_source("site") == click.core.ParameterSource.COMMANDLINE:
        site = ""
    first = repeated_run()
    verb = str(ctx.info_name) if first is None else verb_of(ctx.command)
    return CommandLine((verb, *typed(ctx)), str(Path.cwd()), site, "" if first is None else first.run_id)


def verb_of(job: click.Command) -> str:
    """By which command a job was submitted, also where another one calls it: ``submit`` or ``run``."""
    from runner.cli import VERBS

    module = str(job.callback.__module__).rpartition(".")[2]
    return next(name for name, (each, _) in VERBS.items() if each == module)


def repeated_run() -> RunDirectory | None:
    """The run that the command repeats; None where it repeats none."""
    return cast("RunDirectory | None", click.get_current_context().meta.get(REPEATED))


def copied_run() -> RunDirectory | None:
    """The run whose copy of the user's code the command takes; None where it takes the code as it is now."""
    return cast("RunDirectory | None", click.get_current_context().meta.get(COPIED))


def of_the_call(job: click.Command) -> frozenset[str]:
    """Names of those options of a command that do not belong to the job: how it is called, waited for and printed."""
    bare = click.command("bare")(job_options(lambda **_values: None))
    of_jobs = {option.name for option in bare.params} - {"dry_run", "as_json"}
    return frozenset(str(option.name) for option in job.params if option.name not in of_jobs)


def given(job: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    """The options among arguments, as text: none of those that have their defaults."""
    context = click.Context(job, info_name=job.name)
    values, _, _ = job.make_parser(context).parse_args(args=list(arguments))
    return {name: value for name, value in values.items() if isinstance(value, str | list | tuple) or value is True}


def arguments_of(job: click.Command, values: Mapping[str, Any]) -> list[str]:
    """A command line that has these values, which ``given`` has read from another one."""
    options = {option.name: option for option in job.params if isinstance(option, click.Option)}
    found: list[str] = []
    for name, value in values.items():
        if name == "arguments":
            continue
        if name not in options:
            raise UsageError(f"the first run was a `run`, which has no --{name.replace('_', '-')}", fix="leave it out")
        flag = max(options[name].opts, key=len)
        for each in value if isinstance(value, list) else [value]:
            found += [flag] if each is True else [flag, str(each)]
    return [*found, "--", *values.get("arguments", ())]


def enter(directory: str, what: str) -> None:
    """Make the directory of a recorded command line the working directory; relative paths in it mean that one.

    Raises:
        UsageError: it is gone.
    """
    try:
        os.chdir(directory)
    except (OSError, ValueError) as error:  # of a damaged record
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the directory where {what} was submitted cannot be used: {why}",
            where=directory,
            fix="submit from another directory; `show` prints the command line",
        ) from None
