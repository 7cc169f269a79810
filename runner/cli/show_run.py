"""``show``: what a run was, on what code it ran, where and when, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from runner.cli.allotment import lines_of_standing
from runner.cli.options import JSON, RUN, answer, by_shell
from runner.cli.table import field_lines, show_file, width_of_terminal
from runner.core import files
from runner.core.errors import Exit, RunnerError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import first_of, rate, shape_text
from runner.jobs.directory import CODE_DIFF
from runner.jobs.facts import shown_run
from runner.jobs.life import Standing, standing
from runner.jobs.lookup import find
from runner.model.backends import NATIVE
from runner.model.figure import in_words
from runner.study.of_run import studies_of

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.model.job import CodeRecord, NodeShare
    from runner.model.output import ShownRun
    from runner.model.verdict import Verdict

_MOST_FILES = 5


@click.command()
@RUN
@click.argument("second", required=False, shell_complete=by_shell("runs"))
@click.option(
    "--diff", "diff_only", is_flag=True, help="Print the uncommitted changes of your code that were recorded."
)
@JSON
def command(run: str | None, second: str | None, diff_only: bool, as_json: bool) -> int:
    """Show RUN: its command line, the git commit of your program, its image, nodes, times and verdict. With SECOND:
    what differs between the two in request, plan, image, code, script, environment, versions and verdict.

    RUN is an id, a name, the beginning of one, a job's id or a directory; by default the newest run.
    """
    if second is not None:
        from runner.cli.rerun import diff

        if diff_only:
            raise UsageError("--diff shows what a run kept", where="--diff", fix="leave it out, or name one run")
        return int(click.get_current_context().invoke(diff, first=run, second=second, as_json=as_json))
    directory = find(run)
    if diff_only and not as_json:
        return _print_diff(directory)
    now: Verdict | Standing | None = None
    problem = ""
    try:
        now = standing(directory)
    except RunnerError as error:
        problem = error.what
    facts = shown_run(directory, now, studies_of(directory))
    return answer(facts, field_lines(_fields(facts, problem)), as_json=as_json)


def _print_diff(run: Run) -> int:
    path = run.path / CODE_DIFF
    if not path.exists():
        fix = f"`{PROGRAM} show {run.run_id}` says what is known of the code"
        raise UsageError("this run has no difference kept", where=str(path), fix=fix)
    try:
        content = run.content_of(CODE_DIFF)
    except files.UnusableFileError as error:
        raise UsageError(f"the difference cannot be read: {error.strerror}", where=str(path)) from None
    show_file(content)
    return Exit.GOOD


def _fields(facts: ShownRun, problem: str) -> Iterator[tuple[str, str]]:
    yield "run", facts.run
    yield "", facts.directory
    yield "command", shlex.join(facts.command_line) or "not recorded"
    yield "", f"in {facts.typed_in}" if facts.typed_in else ""
    yield "", f"repeats {facts.rerun_of}" if facts.rerun_of else ""
    yield from _code(facts)
    if (record := facts.record) is not None:
        yield "job", f"{facts.job}, {record.name}"
        yield "script", record.script
        yield "", f"starts in {record.directory}"
        yield "output", "; ".join(dict.fromkeys(filter(None, (record.output, record.error))))
        yield "nodes", facts.scheduler.nodes if facts.scheduler else ""
        yield from _end_of(facts, problem)
        return
    shape = shape_text(facts.gpus, facts.nodes, facts.ranks)
    yield "job", f"{facts.job or 'no id'} ({facts.site}, {facts.runtime}), {shape}"
    if facts.image:
        yield "runs in" if facts.runtime == NATIVE else "image", facts.image
        yield "", facts.image_file if facts.image_file != facts.image else ""
    yield "nodes", "; ".join(_node(node) for node in facts.node_list) or "none recorded"
    yield from _end_of(facts, problem)


def _end_of(facts: ShownRun, problem: str) -> Iterator[tuple[str, str]]:
    yield "allocated", facts.allocated
    for place, line in enumerate(lines_of_standing(facts, width_of_terminal())):
        yield "" if place else "limits", line
    yield "submitted", _time(facts.submitted)
    yield "started", _time(facts.started, facts.submitted, "after it was submitted")
    yield "ended", _time(facts.ended, facts.started, "later")
    yield "forced", ", ".join(facts.forced)
    yield "verdict", problem or _end(facts)


def _code(facts: ShownRun) -> Iterator[tuple[str, str]]:
    code = facts.code
    if code is None:
        yield "code", "of a shipped recipe" if facts.command_line else ""
        return
    if code.repository:
        where = f" ({code.branch})" if code.branch else " (detached)"
        yield "code", (f"commit {code.commit}{where}" if code.commit else "no commit yet") + f" in {code.repository}"
    yield "" if code.repository else "code", code.problem
    if code.dirty is not None and not code.problem:
        yield "", _changes(code)
    if facts.code_copy:
        yield "", f"a copy ran: {facts.code_copy}"
    if code.untracked:
        yield "", f"{code.untracked} is not tracked by git: no commit and no difference has it"
    if code.binary or code.too_long:
        yield "", f"changed but not kept: {', '.join((*code.binary, *code.too_long)[:_MOST_FILES])}"
    if facts.code_diff:
        yield "", f"{facts.code_diff}{f' (secrets replaced: {code.redacted})' if code.redacted else ''}"


def _changes(code: CodeRecord) -> str:
    if not code.dirty:
        return "no uncommitted changes of tracked files"
    names = first_of(code.changed, _MOST_FILES)
    kept = "" if code.diff_kept else "; the difference is not kept"
    return f"with uncommitted changes: {names}{kept}"


def _node(node: NodeShare) -> str:
    gpus = f", GPUs {_ranges(node.gpus)}" if node.gpus else ""
    return f"{node.name}: {'rank' if len(node.ranks) == 1 else 'ranks'} {_ranges(node.ranks)}{gpus}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """``0-3,6``."""
    groups: list[list[int]] = []
    for number in sorted(numbers):
        if groups and number == groups[-1][1] + 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in groups)


def _time(when: datetime | None, since: datetime | None = None, relation: str = "") -> str:
    if when is None:
        return ""
    text = f"{when.astimezone():%Y-%m-%d %H:%M:%S %z}"
    return f"{text}, {(when - since).total_seconds():.0f} s {relation}" if since is not None else text


def _end(facts: ShownRun) -> str:
    verdict = facts.verdict
    if verdict is None:
        is_known = facts.state != "unknown"
        return f"none yet: {f'the job is {facts.state}' if is_known else 'the scheduler does not know the job'}"
    reason = f": {verdict.reasons[0]}" if verdict.reasons else ""
    figure = facts.figure
    if figure is None:
        return f"{verdict.outcome}{reason}"
    doubts = f" ({in_words(figure.doubts)})" if figure.doubts else ""
    return f"{verdict.outcome}, {rate(figure.value)} {figure.unit}/s{doubts}"
