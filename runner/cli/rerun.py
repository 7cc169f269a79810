"""``rerun``: the same request again, with changes; ``diff``: what differs between two runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
import msgspec

from runner.cli.job_options import ReferringCommand, given, job_options, recorded
from runner.cli.options import JSON, answer, by_shell, say
from runner.cli.submit import run_step, submit, waiting_options
from runner.core import ownership
from runner.core.errors import UsageError
from runner.core.text import instead, plain
from runner.jobs.differences import Difference, code_differences, plan_differences, run_differences
from runner.jobs.lookup import find
from runner.model.backends import run_runtime
from runner.preparation.options import FIELDS, OPTIONS

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.model.plan import Plan, PlannedImage
    from runner.preparation.job import PreparedJob

_WIDTH = 80


@click.command(cls=ReferringCommand)
@click.argument("run", shell_complete=by_shell("runs"))
@job_options(required=False)
@click.option(
    "--without", multiple=True, metavar="OPTION", help="Leave out an option of the first run: --without stage."
)
@waiting_options
def command(run: str, without: tuple[str, ...], **flags: Any) -> int:
    """Submit RUN again with the options that it was submitted with, and those given here: rerun RUN --gpus 8.

    Arguments after -- replace the program and its arguments. The image is the one that ran, by its digest; --image NAME
    takes another. The code is your code as it is now; of a run with --snapshot it is the copy that ran, and --snapshot
    copies it as it is now. Relative paths mean the directory where RUN was submitted. What differs from RUN is printed.
    """
    from runner.jobs.directory import index, is_linked
    from runner.preparation.request import check_directory, check_foreign, image_of, repeated

    first = find(run)
    first.check_orders()
    changes = given(click.get_current_context())
    is_strangers = not ownership.is_trusted(first.owner)
    left_out = [*(["force"] if is_strangers else []), *map(_field, without)]  # who types it, forces
    record = recorded(first)
    request = repeated(record, changes, without=left_out, image=image_of(first.needed_plan()))
    ids = filter(None, (first.run_id, first.ran_in.name))  # which it has, and had
    is_own = first.owner == os.geteuid() or any(os.path.lexists(index() / each) for each in ids)
    if is_own:  # else the user has named it, whosever it is
        check_directory(record, "the first run")
    if not is_linked(first):
        check_foreign(request, changes, first)
    if request.snapshot and "snapshot" not in changes:
        request = msgspec.structs.replace(request, copied=str(first.path))
    if not request.step:
        return submit(request, first, **flags)
    for name in ("wait", "follow", "cancel_on_interrupt"):
        if flags.pop(name):
            what = f"the first run was a `run`, which has no --{name.replace('_', '-')}"
            raise UsageError(what, fix="leave it out")
    return run_step(request, first, **flags)


def show_changes(first: Run, prepared: PreparedJob) -> None:
    """Print what will differ from the first run."""
    from runner.preparation.job import code_of

    code, text = code_of(prepared)
    differences = (*plan_differences(first.needed_plan(), prepared.plan), *code_differences(first, code, text))
    if line := image_line(first.needed_plan().image, prepared.plan):
        say(line)
    if prepared.snapshot is not None and prepared.snapshot.first is not None:
        say("code: the copy that ran; --snapshot copies it as it is now, --without snapshot runs it where it is")
    what = "differs from {} (first -> now):" if differences else "the same plan and code as {}"
    for line in (what.format(first.run_id), *difference_lines(differences)):
        say(line)


def image_line(first: PlannedImage, plan: Plan) -> str:
    """Which image will run, compared with the first run's; empty for a job without a container."""
    image = plan.image
    if not run_runtime(plan.runtime).is_container:
        return ""
    if not image.digest and not image.path:
        return f"image: {image.reference}, by its name: it may stand for another image than in the first run"
    one, other = ((each.digest, "" if each.digest else f"{each.path}\0{each.sha256}") for each in (image, first))
    if one != other:
        return f"image: {image.pinned}, not the one that ran ({first.pinned})"
    if not image.digest and not image.sha256:
        return f"image: {image.pinned}, whose content is not known: it may be another one than in the first run"
    return f"image: {image.pinned}, the one that ran{', in another file' * (image.sha256 != first.sha256)}"


def _field(option: str) -> str:
    """The field of a request that an option sets, or the option of the scheduler that it is."""
    fields = {
        flag.lstrip("-"): field for field, (name, each) in FIELDS.items()
        for flag in (name.replace("_", "-"), *each.flags) if flag == name.replace("_", "-") or flag.startswith("--")
    }  # fmt: skip
    fields |= {name.replace("_", "-"): name for name, each in OPTIONS.items() if each.of_scheduler}
    fields["arguments"] = "arguments"
    wanted = option.lstrip("-")
    if wanted not in fields:
        raise UsageError(f"no option {option!r}", where="--without", fix=instead(wanted, fields, "see --help"))
    return fields[wanted]


@click.command()
@click.argument("first", shell_complete=by_shell("runs"))
@click.argument("second", shell_complete=by_shell("runs"))
@JSON
def diff(first: str, second: str, as_json: bool) -> int:
    """Show what differs between the runs FIRST and SECOND: request, plan, image, code, script, environment, versions
    and verdict. Each is an id, a name, the beginning of one, a job's id or a directory.
    """
    one, two = find(first), find(second)
    differences = run_differences(one, two)
    lines = [f"A  {one.run_id}", f"B  {two.run_id}", *difference_lines(differences)]
    if not differences:
        lines.append("no difference in request, plan, image, code, script, environment, versions and verdict")
    facts = {"first": one.run_id, "second": two.run_id, "differences": differences}
    return answer(facts, lines, as_json=as_json)


def difference_lines(differences: Iterable[Difference]) -> Iterator[str]:
    """Differences under their areas: in one line where 80 columns are enough, else in three."""
    for area, entries in groupby(differences, lambda each: each.area):
        yield area
        for each in entries:
            first, second = plain(each.first), plain(each.second)
            line = f"  {each.key}: {first} -> {second}"
            yield from (line,) if len(line) <= _WIDTH else (f"  {each.key}:", f"    A  {first}", f"    B  {second}")
