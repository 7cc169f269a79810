"""``shell``: a terminal on a GPU node: in a job of its own that ends with it, or beside a job that runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from runner.cli.job_options import ReferringCommand, given, job_options, typed
from runner.cli.options import say
from runner.cli.progress import slow
from runner.core.errors import Exit, RefusedError, RunnerError, UnknownStateError, UsageError
from runner.core.invocation import PROGRAM

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.ssh import Access
    from runner.model.request import Request

_ATTACHED, _EVERY_S = "attached", 30.0  # see hold.py of gpu_runner_inside
_POLL_S = 0.5
_SHELL = ("bash", "-i")
T = TypeVar("T")


@click.command(cls=ReferringCommand)
@job_options(by_hand="[RUN] [-- COMMAND]")
@click.option("--rank", type=click.IntRange(min=0), default=0, help="With RUN: beside this rank. [default: 0]")
@click.option("--ssh", is_flag=True, help="Print the configuration by which ssh, scp and editors get there.")
@click.option("--stdio", is_flag=True, hidden=True)  # a ProxyCommand, which --ssh prints
def command(rank: int, *, ssh: bool, stdio: bool, dry_run: bool, full: bool) -> int:
    """Open a shell in the image, or environment, on a GPU node; Ctrl-D ends its job. Or run COMMAND there.

    With RUN, which may be any job of yours: beside it, on one of its nodes, in its container and its environment; the
    job goes on. Other options are those of submit; in an allocation (salloc, qsub -I) it is a step of that.
    """
    context = click.get_current_context()
    own, program = _arguments(context.params["arguments"])
    if (ssh and program != _SHELL) or (stdio and not (ssh and own)):
        raise UsageError("--ssh takes no command", where="--ssh", fix="give it to ssh")
    if not own:
        from runner.jobs.service import program_inside
        from runner.preparation.request import complete

        request = job_request("shell", program_inside("hold"))
        access = _access(complete(request).site, request) if ssh else None
        return in_own_job(request, lambda run: _use(run, program, access), dry_run=dry_run, full=full)
    if values := given(context).keys() - {"arguments"}:
        fix = "leave them out, or leave RUN out: then they are those of a job for the shell"
        raise UsageError("RUN runs already: no option of a job is for it", where=", ".join(sorted(values)), fix=fix)
    from runner.jobs.lookup import find
    from runner.jobs.states import ensure_own

    run = find(own)
    if run.plan is not None and run.submitted is not None and rank < run.tasks and run.records.start(rank) is None:
        ensure_own(run)
        _wait_for_start(run, rank)
    if not ssh:
        return _attach(run, program, rank)
    access = _access_to(run)
    if not stdio:
        return _show_ssh(run, rank, access)
    from runner.core.process import foreground
    from runner.jobs.ssh import connection

    words, environment = connection(run, rank)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by ssh at its end, which is the end of our input, too
    return foreground(words, env=environment)


def _access(site: str | None, request: Request) -> Access:
    from runner.jobs.ssh import access_of
    from runner.preparation.site import read_user_site

    return access_of(read_user_site(site, request, for_job=True).site)


def _access_to(run: Run) -> Access:
    """By the site as its file is now."""
    from pathlib import Path

    from runner.core.paths import is_site_file
    from runner.jobs.directory import REQUEST
    from runner.model.request import RequestRecord

    if (record := run.read(REQUEST, RequestRecord)) is None:
        fix = f"`{PROGRAM} shell {run.run_id}`"
        raise RefusedError("it has no run directory of ours, for the keys of ssh", where=run.run_id, fix=fix)
    site = record.request.site or record.site
    if is_site_file(site):
        site = str(Path(record.request.directory) / site)
    return _access(site, record.request)


def _use(run: Run, program: Sequence[str], access: Access | None) -> int:
    if access is None:
        return _attach(run, program, 0)
    _show_ssh(run, 0, access)
    return wait_for_end(run)


def wait_for_end(run: Run) -> int:
    """Until the job's program ends; returns its exit code."""
    from runner.model.records import ExitRecord

    say("Ctrl-C here ends its job")
    return wait_until(run, lambda: run.records.record(0, "exit", ExitRecord)).status


def _show_ssh(run: Run, rank: int, access: Access) -> int:
    from shlex import quote

    from runner.jobs.ssh import directions

    config, text = directions(run, rank, access)
    say("on your machine, in ~/.ssh/config:")
    click.echo(text, nl=False)
    if access == "own sshd":
        say(f"with a key of your ~/.ssh/authorized_keys here, or a copy of {quote(str(config.with_name('key')))}")
    say(f"then, and for an editor: `ssh {run.run_id}`; here: `ssh -F {quote(str(config))} {run.run_id}`")
    return Exit.GOOD


def _arguments(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """RUN and COMMAND; empty where they were not given."""
    after = len(typed()) - typed().index("--") - 1 if "--" in typed() else 0
    own, program = words[: len(words) - after], tuple(words[len(words) - after :])
    if len(own) > 1:
        fix = f"{PROGRAM} shell {own[0]} -- {' '.join(own[1:])}"
        raise UsageError("a command stands behind --", where=" ".join(own), fix=fix)
    return (own[0] if own else ""), program or _SHELL


def in_own_job(request: Request, use: Callable[[Run], int], *, dry_run: bool, full: bool) -> int:
    """Submit the job and, once its rank has started, ``use`` it; it ends with that, or with this process."""
    from runner.cli.job_options import command_line
    from runner.cli.submit import prepare_and_show, show_start
    from runner.jobs.states import cancel_run
    from runner.preparation.job import start

    prepared, code = prepare_and_show(request, None, dry_run=dry_run, full=full, as_json=False)
    if dry_run or code != Exit.GOOD:
        return code
    with slow("submitting the job"):
        run, job_id = start(prepared, command=command_line(prepared))
    show_start(run, prepared.plan, job_id)
    try:
        with _ending_with_terminal(), _attached(run):
            _wait_for_start(run, 0)
            return use(run)
    finally:
        try:
            if not cancel_run(run)[1]:
                say(f"job {job_id} ends")
        except RunnerError as error:
            say(f"job {job_id} could not be cancelled ({error.what}): `{PROGRAM} cancel {run.run_id}`")


def job_request(verb: str, program: Sequence[str]) -> Request:
    """The request of a job of this verb for this program."""
    from runner.model.backends import SCHEDULERS
    from runner.preparation.request import make_request

    values = given(click.get_current_context())
    for name in ("recipe", "meter_batch"):
        if name in values:
            raise UsageError(f"`{verb}` runs no recipe", where=f"--{name.replace('_', '-')}", fix="leave it out")
    in_job = any(os.environ.get(SCHEDULERS[name].job_variable) for name in SCHEDULERS.every() if SCHEDULERS[name].steps)
    of_verb = {"gpus": 1, "job_name": verb, "wireup": "own", **values, "arguments": tuple(program)}
    return make_request(of_verb, step=in_job)


def _wait_for_start(run: Run, rank: int) -> None:
    """Raises RunnerError: the job ended before."""
    with slow("waiting for a node"):
        wait_until(run, lambda: run.records.start(rank))


def wait_until(run: Run, look: Callable[[], T | None]) -> T:
    """What there is to see of a run, once it is there. Raises RunnerError: the job ended before."""
    from runner.backends.schedulers import quiet_s

    said, asked = "", 0.0
    while (seen := look()) is None:
        if time.monotonic() - asked > max(5.0, quiet_s(run.submitted.scheduler if run.submitted else "")):
            reason, asked = _why_it_waits(run), time.monotonic()
            if reason not in ("", said):
                say(said := reason)
        time.sleep(_POLL_S)
    return seen


def _why_it_waits(run: Run) -> str:
    from runner.jobs.life import Standing, standing

    try:
        now = standing(run)
    except UnknownStateError as error:  # which may pass, and the job goes on
        return error.what
    if not isinstance(now, Standing):
        what = f"the job has ended: {'; '.join(now.reasons) or now.outcome}"
        raise RunnerError(what, where=str(run.path), fix=now.fix or f"`{PROGRAM} logs {run.run_id}`")
    return now.progress.state.reason if now.progress.state else ""


def _attach(run: Run, program: Sequence[str], rank: int) -> int:
    from runner.core.process import foreground
    from runner.jobs.beside import beside

    words, environment = beside(run, program, rank=rank, terminal=sys.stdin.isatty() and sys.stdout.isatty())
    code = foreground(words, env=environment)
    return code if code >= 0 else 128 - code


@contextmanager
def _attached(run: Run) -> Iterator[None]:
    """Says to the job's program, for the length of a ``with`` block, that a terminal is attached; to the user, if
    the job ends meanwhile, as by its time limit.
    """
    from runner.model.records import ExitRecord

    ended = Event()

    def touch() -> None:
        while True:
            with suppress(OSError):
                through_no_link = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                os.close(os.open(run.path / _ATTACHED, through_no_link, 0o600))
                os.utime(run.path / _ATTACHED, follow_symlinks=False)
            if ended.wait(_EVERY_S):
                return
            if run.records.record(0, "exit", ExitRecord) is not None:
                say("the job has ended")
                return

    thread = Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _ending_with_terminal() -> Iterator[None]:
    """What would end this process at once, its terminal's end among it, ends the block in order."""

    def end(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
