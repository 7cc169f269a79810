"""``submit job.sbatch``: a batch script of the user, submitted as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import say
from runner.core import files
from runner.core.errors import Exit, UsageError

if TYPE_CHECKING:
    pass

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
    words: Sequence[str], given: Mapping[str, Any], typed: Sequence[str], *, as_json: bool, **flags: Any
) -> int:
    """Submit the script; returns the exit code.

    Args:
        words: the script, and its own arguments. given: options of a job, by their fields. typed: the command line.
    """
    script = Path(words[0])
    if others := sorted(set(given) - _TAKES):
        what = f"the script is submitted as it is, and has no place for {others[0]}"
        fix = "leave it out, or write it there as #SBATCH"
        raise UsageError(what, where=words[0], fix=fix)
    if flags["dry_run"] or flags["full"] or flags["write"] is not None:
        what = "the script is what is submitted: none of ours is made"
        raise UsageError(what, where="--dry-run, --full, --write", fix="leave it out")
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
    from runner.cli.progress import slow
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
