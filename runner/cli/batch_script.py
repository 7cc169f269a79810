"""``submit job.sbatch``: a batch script of the user's own, submitted as it is, or read without running anything."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import answer, say
from runner.cli.progress import slow
from runner.core import files
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, printable

if TYPE_CHECKING:
    from runner.batch_scripts.translation import Translation

_NAMES = (".sbatch", ".slurm")
_MOST_BYTES = 1 << 20
_TAKES = {"site", "runs", "no_diff", "arguments"}  # of a job's options: all others stand in the script


def is_batch_script(word: str) -> bool:
    """Whether it names a file that is a batch script, by its name, or its first line and an ``#SBATCH`` line."""
    if word.startswith("-"):
        return False
    try:
        with files.open_regular(Path(word)) as file:
            head = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return False
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
    script = Path(words[0])
    if others := sorted(set(given) - _TAKES):
        what = f"the script is submitted as it is, and has no place for {others[0]}"
        fix = f"write it there as #SBATCH; or see our command: `{PROGRAM} submit {shlex.quote(words[0])} --check`"
        raise UsageError(what, where=words[0], fix=fix)
    if check:
        return _check(script, as_json=as_json)
    if flags["dry_run"] or flags["full"] or flags["write"] is not None:
        what = "the script is what is submitted: none of ours is made"
        raise UsageError(what, where="--dry-run, --full, --write", fix="leave it out, or use --check")
    run = _submit(script, words[1:], given, typed)
    if not as_json:
        click.echo(f"job {run.submitted.job_id}: {script}, as it is\nrun {run.run_id}: {run.path}")
    if flags["follow"]:
        from runner.cli.logs import follow_to_verdict
        from runner.jobs.logs import Selection

        return follow_to_verdict(run, Selection(), prefixed=False, cancel_on_interrupt=flags["cancel_on_interrupt"])
    if flags["wait"]:
        from runner.cli.wait import wait_and_judge

        return wait_and_judge(run, timeout_s=None, as_json=as_json, cancel_on_interrupt=flags["cancel_on_interrupt"])
    if as_json:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        return json_output.show(run_facts(run, None))
    return Exit.GOOD


def _submit(script: Path, arguments: Sequence[str], given: Mapping[str, Any], typed: Sequence[str]) -> Any:
    from runner.jobs.scripts import submit_script
    from runner.model.backends import SCHEDULERS
    from runner.model.job import CommandLine
    from runner.preparation.observation import clients
    from runner.preparation.request import make_request
    from runner.preparation.site import read_user_site

    request = make_request({"gpus": 1, **given, "arguments": ()})
    site = read_user_site(request.site or os.environ.get("RUNNER_SITE"), request, for_job=False, say=say).site
    if not SCHEDULERS[site.scheduler].records:
        what = f"a batch script is submitted to Slurm, and {site.name} has {SCHEDULERS[site.scheduler].title}"
        raise UsageError(what, where=str(script), fix="--site names a cluster with Slurm")
    with slow("submitting the job"):
        return submit_script(
            script, arguments, scheduler=site.scheduler, clients=clients(site), runs=Path(request.runs),
            command=CommandLine(("submit", *typed), str(Path.cwd())), with_diff=not request.no_diff,
        )  # fmt: skip


def _check(script: Path, *, as_json: bool) -> int:
    from runner.batch_scripts.faults import faults
    from runner.batch_scripts.reading import read
    from runner.batch_scripts.translation import translation
    from runner.model.output import Problem

    text = files.read_bytes(script, _MOST_BYTES).decode("utf-8", "replace")
    try:
        batch_script = read(text, os.environ)
        ours, found = translation(batch_script), faults(batch_script)
    except RecursionError:
        fix = "write its commands out"
        raise UsageError("its brackets are too deep to be read", where=str(script), fix=fix) from None
    facts = {
        "script": str(script),
        "command": _command(ours),
        "no_command": ours.refused,
        "placement": ours.placed,
        "dropped": [{"line": line, "what": what, "why": why} for line, what, why in ours.dropped],
        "findings": found,
    }
    first = next(iter(found), None)
    problem = Problem(first.code, first.what, f"{script}, line {first.line}", first.fix, "user") if first else None
    lines = map(printable, _lines(script, facts, ours))
    return answer(facts, lines, as_json=as_json, exit_code=Exit.REFUSED if found else Exit.GOOD, error=problem)


def _command(ours: Translation) -> str:
    """Our command, as it is typed; empty where there is none."""
    from runner.preparation.options import words_of
    from runner.preparation.request import make_request

    return "" if ours.refused else shlex.join((PROGRAM, "submit", *words_of(make_request(ours.values))))


def _lines(script: Path, facts: Mapping[str, Any], ours: Translation) -> Iterator[str]:
    for each in facts["findings"]:
        yield f"{script}, line {each.line} [{each.code}]: {each.what}"
        yield f"  fix: {each.fix}"
    if not facts["findings"]:
        yield f"{script}: nothing is seen that is wrong"
    if ours.placed is None or ours.refused:
        yield f"no command of ours: {ours.refused}"
        return
    placed = ours.placed
    shape = f"{counted(placed.processes, 'rank')} on each of {counted(placed.nodes, 'node')}"
    yield f"our command for it ({shape}):"
    yield f"  {facts['command']}"
    yield from (f"  without line {each['line']}, {each['what']}: {each['why']}" for each in facts["dropped"])
