"""``logs``: the output of a run's batch script and ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import RUN
from runner.errors import Exit, UsageError
from runner.invocation import PROGRAM

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory


@click.command()
@RUN
@click.option("--rank", type=click.IntRange(min=0), help="One rank only. [default: the batch script and rank 0]")
@click.option("--all", "every", is_flag=True, help="Every rank.")
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the job has ended.")
def command(run: str | None, rank: int | None, every: bool, follow: bool) -> int:
    """Print the logs of RUN (an id or name, or its beginning; a job id; a directory; or the newest)."""
    from runner.jobs.logs import follow_files, log_files
    from runner.jobs.lookup import find

    directory = find(run)
    files = log_files(directory, rank=rank, every=every)
    if not files and not follow:
        raise UsageError(
            _why_none(directory) if rank is None else f"rank {rank} has no log",
            where=str(directory.logs),
            fix=f"see `{PROGRAM} status {directory.run_id}`",
        )
    if not follow:
        for path in files:
            _print(path, path.read_bytes(), header=len(files) > 1)
        return Exit.GOOD
    follow_files(directory, _print, rank=rank, every=every)
    return Exit.GOOD


def _why_none(run: RunDirectory) -> str:
    from runner.cli.waiting import describe
    from runner.jobs.life import Standing, standing

    now = standing(run)
    if isinstance(now, Standing):
        return f"no log yet: {describe(now.progress, now.tasks)}"
    if now.outcome == "cancelled":
        return "no log: cancelled before it started"
    return f"no log: {now.reasons[0] if now.reasons else now.outcome}"


def _print(path: Path, content: bytes, header: bool) -> None:
    if not content:
        return
    if header:
        click.echo(f"==> {path.name}")
    sys.stdout.buffer.write(content if content.endswith(b"\n") else content + b"\n")
    sys.stdout.buffer.flush()
