"""``rerun``: the same request again, with changes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import (
    COPIED,
    REPEATED,
    JobCommand,
    arguments_of,
    enter,
    given,
    job_options,
    of_the_call,
    typed,
)
from runner.cli.options import by_shell
from runner.core.errors import UsageError
from runner.core.text import instead

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.model.plan import Plan, PlannedImage
    from runner.preparation.job import PreparedJob


@click.command(cls=JobCommand)
@click.argument("run", shell_complete=by_shell("runs"))
@job_options
@click.option(
    "--without", multiple=True, metavar="OPTION", help="Leave out an option of the first run: --without stage."
)
@click.option("--wait", is_flag=True, help="Wait for the job to finish, then print its verdict.")
@click.option("--follow", is_flag=True, help="Print the job's logs as they grow, then its verdict.")
@click.option("--cancel-on-interrupt", is_flag=True, help="With --wait or --follow: Ctrl-C also cancels the job.")
def command(run: str, without: tuple[str, ...], **_values: Any) -> int:
    """Submit RUN again with the options that it was submitted with, and those given here: rerun RUN --gpus 8.

    Arguments after -- replace the program and its arguments. The image is the one that ran, by its digest; --image NAME
    takes another. The code is your code as it is now; of a run with --snapshot it is the copy that ran, and --snapshot
    copies it as it is now. Relative paths mean the directory where RUN was submitted. What differs from RUN is printed.
    """
    from runner.jobs.lookup import find
    from runner.preparation.repetition import image_of, repeated

    ctx = click.get_current_context()
    first = find(run)
    record = first.needed_command()
    job = command_of(record.arguments[0])
    recorded = {name: value for name, value in given(job, record.arguments[1:]).items() if name not in of_the_call(job)}
    changes = given(ctx.command, typed(ctx))
    plan = first.needed_plan()
    values = repeated(
        recorded,
        {name: value for name, value in changes.items() if name not in ("run", "without")},
        without=[_name(job, option) for option in without],
        image=image_of(plan),
        site=record.site,
    )
    enter(record.directory, "the first run")
    ctx.meta[REPEATED] = first
    if "snapshot" in values and "snapshot" not in changes:
        ctx.meta[COPIED] = first
    assert ctx.parent is not None
    with job.make_context("rerun", arguments_of(job, values), parent=ctx.parent) as context:
        return int(job.invoke(context))


for _option in command.params:
    if _option.name == "gpus":
        _option.required = False


def show_changes(first: RunDirectory, prepared: PreparedJob) -> None:
    """Print what will differ from the first run."""
    from runner.cli.diff import show_differences
    from runner.jobs.comparison import code_differences, plan_differences
    from runner.preparation.job import code_of

    code, text = code_of(prepared)
    differences = (*plan_differences(first.needed_plan(), prepared.plan), *code_differences(first, code, text))
    if line := image_line(first.needed_plan().image, prepared.plan):
        click.echo(line, err=True)
    if prepared.snapshot is not None and prepared.snapshot.first is not None:
        now = "--snapshot copies it as it is now, --without snapshot runs it where it is"
        click.echo(f"code: the copy that ran; {now}", err=True)
    if differences:
        click.echo(f"differs from {first.run_id} (first -> now):", err=True)
        show_differences(differences, err=True)
    else:
        click.echo(f"the same plan and code as {first.run_id}", err=True)


def image_line(first: PlannedImage, plan: Plan) -> str:
    """Which image will run, compared with the first run's; empty for a job without a container."""
    from runner.model.runtimes import RUNTIMES

    image = plan.image
    if not RUNTIMES[plan.runtime].is_container:
        return ""
    if not image.digest and not image.path:
        return f"image: {image.reference}, by its name: it may stand for another image than in the first run"
    is_same = (image.digest, image.sha256) == (first.digest, first.sha256) and (
        image.digest or image.path == first.path
    )
    return f"image: {image.pinned}, {'the one that ran' if is_same else f'not the one that ran ({first.pinned})'}"


def command_of(verb: str) -> click.Command:
    """The command of a verb that runs jobs: ``submit`` or ``run``."""
    found = importlib.import_module(f"runner.cli.{'run_step' if verb == 'run' else 'submit'}").command
    assert isinstance(found, click.Command)
    return found


def _name(job: click.Command, option: str) -> str:
    names = {flag.lstrip("-"): str(each.name) for each in job.params for flag in each.opts if flag.startswith("--")}
    wanted = option.lstrip("-")
    if wanted not in names:
        raise UsageError(f"no option {option!r}", where="--without", fix=instead(wanted, names, "see --help"))
    return names[wanted]
