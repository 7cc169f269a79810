"""``submit job.sbatch``: a batch script of the user, submitted as it is, or read without running anything."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import answer, say
from runner.core import files, ownership
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.paths import site_of_shell
from runner.core.text import counted, printable

if TYPE_CHECKING:
    from runner.batch_scripts.translation import Translation
    from runner.model.output import ScriptCheck

_NAMES = (".sbatch", ".slurm")
_MOST_BYTES = 1 << 20
_TAKES = {"site", "runs", "no_diff", "arguments"}  # of a job's options: all others stand in the script


def is_batch_script(word: str) -> bool:
    """Whether it is the name of a batch script, or of a file whose first line and an ``#SBATCH`` line say so."""
    is_named = "/" in word or word.endswith(_NAMES)  # else it may be a program, or what another user has put there
    if word.startswith("-") or (not is_named and (shutil.which(word) or ownership.exchangeable_by(Path(word)))):
        return False
    return _reads_so(word)


def others_script(word: str) -> str:
    """Who, in words, can write a batch script that is none here, but would be one in this user's copy; else empty."""
    is_here = not is_batch_script(word) and "/" not in word and _reads_so(word)
    return ownership.exchangeable_by(Path(word)) if is_here else ""


def _reads_so(word: str) -> bool:
    try:
        with files.open_regular(Path(word)) as file:
            head = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return word.endswith(_NAMES)
    return word.endswith(_NAMES) or (
        head.startswith(b"#!") and re.search(rb"^#SBATCH\s", head, re.MULTILINE) is not None
    )


def run_script(
    words: Sequence[str], given: Mapping[str, Any], typed: Sequence[str], *, check: bool, as_json: bool, **flags: Any
) -> int:
    """Submit the script, or check it; returns the exit code.

    Args:
        words: the script, and its own arguments. given: options of a job, by their fields. typed: the command line.
    """
    from runner.cli.submit import attend
    from runner.preparation.options import FIELDS

    script = Path(words[0])
    try:
        files.open_named(script).close()
    except OSError as error:
        raise UsageError(f"it cannot be read: {error.strerror}", where=words[0], fix="name a batch script") from None
    if others := sorted(set(given) - _TAKES):
        option = FIELDS.get(others[0], others)[0].replace("_", "-")
        what = f"the script is submitted as it is, and has no place for --{option}"
        fix = f"write it there as #SBATCH; or see our command: `{PROGRAM} submit {shlex.quote(words[0])} --check`"
        raise UsageError(what, where=words[0], fix=fix)
    if check:
        return _check(script, words[1:], as_json=as_json)
    if flags["dry_run"] or flags["full"] or flags["write"] is not None:
        what = "the script is what is submitted: none of ours is made"
        raise UsageError(what, where="--dry-run, --full, --write", fix="leave it out, or use --check")
    run = _submit(script, words[1:], given, typed)
    if not as_json:
        click.echo(f"job {run.submitted.job_id}: {script}, as it is\nrun {run.run_id}: {run.path}")
    waiting = {name: flags[name] for name in ("wait", "follow", "cancel_on_interrupt")}
    return attend(run, **waiting, as_json=as_json)


def _submit(script: Path, arguments: Sequence[str], given: Mapping[str, Any], typed: Sequence[str]) -> Any:
    from runner.batch_scripts.directives import header
    from runner.batch_scripts.faults import output_faults
    from runner.cli.progress import slow
    from runner.jobs.scripts import submit_script
    from runner.model.backends import SCHEDULERS
    from runner.model.job import CommandLine
    from runner.preparation.observation import clients
    from runner.preparation.request import make_request
    from runner.preparation.site import read_user_site

    request = make_request({"gpus": 1, **given, "arguments": ()})
    site = read_user_site(request.site or site_of_shell() or None, request, for_job=False, say=say).site
    if not SCHEDULERS[site.scheduler].records:
        what = f"a batch script is submitted to Slurm, and {site.name} has {SCHEDULERS[site.scheduler].title}"
        raise UsageError(what, where=str(script), fix="--site names a cluster with Slurm")
    with files.open_named(script) as file:
        of_script = header(file.read(_MOST_BYTES).decode("utf-8", "replace"))
    start = Path.cwd() / of_script.options.get("chdir", "")
    what, fix = ownership.of_others(start, "the script starts in this directory")
    if what:
        raise UsageError(what, where=str(start), fix=fix)
    for fault in output_faults(of_script, Path.cwd()):
        say(f"warning: {script}, line {fault.line}: {fault.what}; fix: {fault.fix}")
    with slow("submitting the job"):
        return submit_script(
            script, arguments, scheduler=site.scheduler, clients=clients(site), runs=Path(request.runs),
            command=CommandLine(("submit", *typed), str(Path.cwd())), with_diff=not request.no_diff,
        )  # fmt: skip


def _check(script: Path, arguments: Sequence[str], *, as_json: bool) -> int:
    from runner.batch_scripts.faults import faults, output_faults
    from runner.batch_scripts.reading import read
    from runner.batch_scripts.translation import translation
    from runner.model.output import LeftOut, Problem, ScriptCheck

    try:
        text = files.read_named(script, _MOST_BYTES).decode("utf-8", "replace")
        batch_script = read(text, os.environ, arguments)
        ours = translation(batch_script)
        found = (*faults(batch_script), *output_faults(batch_script.header, Path.cwd()))
    except (RecursionError, files.UnusableFileError) as error:
        why = "its brackets are too deep" if isinstance(error, RecursionError) else error.strerror
        raise UsageError(f"it cannot be read: {why}", where=str(script), fix="name a batch script") from None
    dropped = tuple(LeftOut(*each) for each in ours.dropped)
    placed = ours.placed
    facts = ScriptCheck(
        str(script), _command(ours), ours.refused, placed.nodes if placed else None,
        placed.processes if placed else None, found, dropped,
    )  # fmt: skip
    first = next(iter(found), None)
    problem = Problem(first.code, first.what, f"{script}, line {first.line}", first.fix, "user") if first else None
    lines = map(printable, _lines(facts))
    return answer(facts, lines, as_json=as_json, exit_code=Exit.REFUSED if found else Exit.GOOD, error=problem)


def _command(ours: Translation) -> str:
    """Our command, as it is typed; empty where there is none."""
    from msgspec.structs import replace

    from runner.preparation.options import default_of, words_of
    from runner.preparation.request import make_request

    if ours.refused:
        return ""
    request = replace(make_request(ours.values), runs=default_of("runs"))
    return f"{PROGRAM} submit {shlex.join(words_of(request))}"


def _lines(facts: ScriptCheck) -> Iterator[str]:
    for each in facts.findings:
        yield f"{facts.script}, line {each.line} [{each.code}]: {each.what}"
        yield f"  fix: {each.fix}"
    if not facts.findings:
        yield f"{facts.script}: nothing wrong was seen"
    if not facts.command:
        yield f"no command of ours: {facts.no_command}"
        return
    shape = f"{counted(facts.processes or 0, 'process')} on each of {counted(facts.nodes or 0, 'node')}"
    yield f"our command for the same, {shape}:"
    yield f"  {facts.command}"
    yield from (
        f"  without {each.what}{f' (line {each.line})' if each.line else ''}: {each.why}" for each in facts.left_out
    )
