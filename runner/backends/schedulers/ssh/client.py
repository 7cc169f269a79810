"""Hosts that the user's own ssh reaches, with no scheduler: a job is its controller, a process of this machine.

The controller is known, watched and ended as a job of the local scheduler; before it is started, every host is asked
whether it is ready.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.backends.schedulers.local import client
from runner.backends.schedulers.local.job_processes import JobProcesses
from runner.backends.schedulers.ssh import preflight
from runner.core import file_system, process
from runner.core.errors import Exit, NotAcceptedError, UnknownStateError
from runner.model.job import JobState
from runner.model.plan import ListedHosts, Plan, upgraded
from runner.model.runtimes import RUNTIMES

ASK_S = 60.0  # all hosts together, ssh's own time-outs in it
_QUICK_S = 20.0


class SshHosts(client.Local):
    """Jobs whose controller runs here, and whose ranks run where ssh leads."""

    def submit(self, run_directory: Path, script: str) -> str:
        """Check all hosts, then start the controller.

        Raises:
            NotAcceptedError: a host is not ready: which, why, and the fix; exit 3 where it must be fixed first, 8 where
                trying again may help.
        """
        plan = _plan(run_directory)
        token = secrets.token_hex(16)
        (run_directory / preflight.TOKEN).write_text(f"{token}\n")
        try:
            found = _faults(plan, str(run_directory), token)
        finally:
            (run_directory / preflight.TOKEN).unlink()
        if found:
            raise _refusal(found)
        return super().submit(run_directory, script)

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """As of the controller; the nodes are the hosts."""
        names = _hosts(_plan(run_directory)).names
        return msgspec.structs.replace(super().state(job_id, run_directory), nodes=",".join(names))

    def cancel(self, job_id: str) -> None:
        """End the ranks everywhere through the controller, and wait until it has ended.

        Raises:
            UnknownStateError: it runs on another machine, or is another user's.
        """
        if not JobProcesses(job_id).of_this_boot:
            raise UnknownStateError(
                f"the controller of job {job_id} is not on this machine",
                where=os.uname().nodename,
                fix="cancel it where it was submitted (`host` in the run's provenance.json)",
            )
        super().cancel(job_id)


def _plan(run_directory: Path) -> Plan:
    """The run's plan. Raises UnknownStateError where it cannot be read."""
    try:
        # Not msgspec's own decoder: a value may hold bytes that are no UTF-8, as escapes that it does not take.
        return msgspec.convert(upgraded(json.loads(file_system.read_bytes(run_directory / "plan.json"))), Plan)
    except (OSError, ValueError) as error:
        raise UnknownStateError(f"the run's plan cannot be read: {error}", where=str(run_directory)) from error


def _hosts(plan: Plan) -> ListedHosts:
    assert plan.hosts is not None
    return plan.hosts


def _faults(plan: Plan, run: str, token: str) -> list[preflight.Fault]:
    """What keeps the hosts from taking the job; empty if nothing does."""
    hosts = _hosts(plan)
    head = _head(hosts)
    path = os.environ.get("PATH", "") if not RUNTIMES[plan.runtime].is_container else ""
    ended = _ask_all(hosts, preflight.question(plan, run, head, path))
    answers = [None if done is None or done.code != 0 else preflight.answer(done.out) for done in ended]
    silent = [
        preflight.no_answer(host, None if done is None else done.code, "" if done is None else done.err, ASK_S)
        for host, done, answer in zip(hosts.names, ended, answers, strict=True)
        if answer is None
    ]
    return silent or list(preflight.faults(plan, run, head, token, [answer for answer in answers if answer]))


def _head(hosts: ListedHosts) -> str:
    """The first host as ssh's configuration knows it.

    Raises:
        NotAcceptedError: there is no ssh, or its configuration cannot be taken.
    """
    try:
        done = process.run(
            (*preflight.command_line(hosts), "-G", "--", hosts.names[0]), timeout_s=_QUICK_S, check=False
        )
    except process.CommandNotFoundError as error:
        fix = "apt-get install openssh-client"
        raise NotAcceptedError("ssh was not found", where="PATH", fix=fix, code=Exit.REFUSED) from error
    if done.code != 0:
        fix = "fix ssh's configuration"
        raise NotAcceptedError(f"ssh: {done.last_lines(1)}", where="ssh -G", fix=fix, code=Exit.REFUSED)
    named = (line.partition(" ")[2] for line in done.out.splitlines() if line.startswith("hostname "))
    return next(named, hosts.names[0])


def _ask_all(hosts: ListedHosts, question: str) -> Sequence[process.Completed | None]:
    """The end of one ssh a host, all at once; None where it had not ended within ASK_S."""
    children = []
    try:
        for host in hosts.names:
            argv = (*preflight.command_line(hosts), "--", host, preflight.REMOTE)
            children.append((argv, process.start(argv, stdin=process.PIPE)))
        for _, child in children:
            assert child.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, and says why
                child.stdin.write(question.encode("utf-8", "surrogateescape"))
                child.stdin.close()
            child.stdin = None
        until = time.monotonic() + ASK_S
        ended: list[process.Completed | None] = []
        for argv, child in children:
            try:
                out, err = child.communicate(timeout=max(0.1, until - time.monotonic()))
            except process.TimeoutExpired:
                ended.append(None)
                continue
            output, errors = (raw.decode("utf-8", "replace") for raw in (out, err))
            ended.append(process.Completed(argv, child.returncode, output, errors))
        return ended
    finally:
        for _, child in children:
            if child.poll() is None:
                process.kill_group(child)


def _refusal(found: Sequence[preflight.Fault]) -> NotAcceptedError:
    lines = [f"{fault.host}: {fault.what}" for fault in found]
    fixes = dict.fromkeys(fault.fix for fault in found)
    code = Exit.REFUSED if any(fault.code == Exit.REFUSED for fault in found) else Exit.INFRASTRUCTURE
    return NotAcceptedError(
        "\n  ".join(["not every host is ready:", *lines]) if len(lines) > 1 else lines[0],
        where="ssh " + ", ".join(dict.fromkeys(fault.host for fault in found)),
        fix="; ".join(fixes),
        code=code,
    )
