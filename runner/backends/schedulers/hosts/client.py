"""Hosts that the user's own ssh reaches, with no scheduler: a job is its controller, a process of this machine.

The controller is known, watched and ended as a job of the local scheduler; before it is started, every host is asked
whether it is ready.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from runner.backends import LEFTOVERS
from runner.backends.schedulers.local.client import JobProcesses, Local, plan_of
from runner.backends.schedulers.script_parts import SHELL
from runner.core import files, ownership, paths, process
from runner.core.errors import Exit, NotAcceptedError, UnknownStateError
from runner.model.backends import RUNTIMES
from runner.model.job import JobState
from runner.model.plan import ListedHosts, Plan
from runner.render import quote_always

ASK_S = 60.0  # all hosts together, ssh's own time-outs in it
_QUICK_S = 20.0
# No person is there to answer ssh's questions, and a lost node is noticed within 45 s. Names, keys, routes and
# which hosts to trust come from the user's configuration; nothing here loosens it.
OPTIONS = (
    *("-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
    # A connection that is shared would live on after its job, and hold its files open.
    *("-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes"),
)
# The command for a node's login shell, of any kind: all else goes through standard input.
REMOTE = "exec bash -s"
MARK = "gpu-runner:"
TOKEN = "hosts.token"  # file in the run directory: who reads its content sees that very directory
_OLDEST_PYTHON = (3, 8)  # recipes/lib
_SERVES = ", where rank 0 serves"
# What hosts know their own name as. The first then serves at its address on its way out (network.py of recipes/lib).
_OWN = ("127.0.0.1", "127.0.1.1")


def command_line(hosts: ListedHosts) -> tuple[str, ...]:
    """The program and its options; ``-- HOST`` and REMOTE come after them. Raises as ``with_ssh_config``."""
    return ("ssh", *paths.with_ssh_config(hosts.config), *OPTIONS)


class SshHosts(Local):
    """Jobs whose controller runs here, and whose ranks run where ssh leads."""

    def submit(self, run_directory: Path, script: str) -> str:
        """Check all hosts, then start the controller. Raises NotAcceptedError: a host is not ready: which, why, and the
        fix; exit 3 where it must be fixed first, 8 where trying again may help.
        """
        plan = plan_of(run_directory)
        token = secrets.token_hex(16)
        (run_directory / TOKEN).write_text(f"{token}\n")
        try:
            problems = _check_hosts(plan, str(run_directory), token)
        finally:
            (run_directory / TOKEN).unlink()
        if problems:
            lines = [f"{fault.host}: {fault.what}" for fault in problems]
            refused = any(fault.code == Exit.REFUSED for fault in problems)
            raise NotAcceptedError(
                "\n  ".join(["not every host is ready:", *lines]) if len(lines) > 1 else lines[0],
                where="ssh " + ", ".join(dict.fromkeys(fault.host for fault in problems)),
                fix="; ".join(dict.fromkeys(fault.fix for fault in problems)),
                code=Exit.REFUSED if refused else Exit.INFRASTRUCTURE,
            )
        return super().submit(run_directory, script)

    def environment(self, run_directory: Path) -> Mapping[str, str]:
        """Of the controller, with what hosts read after its other variables (hosts.sh)."""
        given = super().environment(run_directory)
        path = ownership.whole_parts(given.get("PATH", "")) or os.defpath
        return {**given, "RUNNER_CODE": "\n".join(_code_lines({**given, "PATH": path}))}

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """As of the controller; the nodes are the hosts."""
        names = _hosts(plan_of(run_directory)).names
        return msgspec.structs.replace(super().state(job_id, run_directory), nodes=",".join(names))

    def cancel(self, job_id: str) -> None:
        """End the ranks everywhere through the controller, and wait until it has ended. Raises UnknownStateError: it
        runs on another machine, or is another user's.
        """
        if not JobProcesses(job_id).of_this_boot:
            raise UnknownStateError(
                f"the controller of job {job_id} is not on this machine",
                where=os.uname().nodename,
                fix="cancel it where it was submitted (`host` in the run's provenance.json)",
            )
        super().cancel(job_id)


def _hosts(plan: Plan) -> ListedHosts:
    assert plan.hosts is not None
    return plan.hosts


@dataclass(frozen=True)
class Fault:
    """Why a host cannot take its part of the job.

    Attributes:
        code: of the process: 3 where it must be fixed first, 8 where trying again may help.
    """

    host: str
    what: str
    fix: str
    code: Exit = Exit.REFUSED


def _check_hosts(plan: Plan, run: str, token: str) -> list[Fault]:
    """What keeps the hosts from taking the job; empty if nothing does."""
    hosts = _hosts(plan)
    head = _head(hosts)
    path = os.environ.get("PATH", "") if not RUNTIMES[plan.runtime].is_container else ""
    ended = _ask_all(hosts, question(plan, run, head, path))
    answers = [None if done is None or done.code != 0 else answer(done.out) for done in ended]
    silent = [
        no_answer(host, None if done is None else done.code, "" if done is None else done.err, ASK_S)
        for host, done, answer_of_host in zip(hosts.names, ended, answers, strict=True)
        if answer_of_host is None
    ]
    own = next((each for each in _used(plan) if files.is_on_own_disk(Path(each))), "")
    return silent or list(faults(plan, run, head, token, [each for each in answers if each], own))


def _head(hosts: ListedHosts) -> str:
    """The first host as ssh's configuration knows it. Raises NotAcceptedError: there is no ssh, or its configuration
    cannot be taken.
    """
    argv = (*command_line(hosts), "-G", "--", hosts.names[0])
    try:
        done = process.run(argv, timeout_s=_QUICK_S, check=False)
    except process.CommandNotFoundError as error:
        fix = "apt-get install openssh-client"
        raise NotAcceptedError("ssh was not found", where="PATH", fix=fix, code=Exit.REFUSED) from error
    if done.code != 0:
        fix = "fix ssh's configuration"
        raise NotAcceptedError(f"ssh: {done.last_lines(1)}", where="ssh -G", fix=fix, code=Exit.REFUSED)
    named = (line.partition(" ")[2] for line in done.out.splitlines() if line.startswith("hostname "))
    return next(named, hosts.names[0])


def _ask_all(hosts: ListedHosts, code: str) -> Sequence[process.Completed | None]:
    """The end of one ssh a host, all at once; None where it had not ended within ASK_S."""
    children = []
    try:
        for host in hosts.names:
            argv = (*command_line(hosts), "--", host, REMOTE)
            children.append((argv, process.start(argv, stdin=process.PIPE)))
        for _, child in children:
            assert child.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, and says why
                child.stdin.write(code.encode("utf-8", "surrogateescape"))
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


def question(plan: Plan, run: str, head: str, path: str) -> str:
    """The bash code that every host of the plan runs.

    Args:
        run: the run directory.
        head: the first host, as ssh's configuration knows it.
        path: PATH of the submitting shell, which native programs get there, too; empty for the node's own.
    """
    hosts = _hosts(plan)
    lists = {"mounts": [mount.source for mount in plan.mounts], "programs": hosts.programs, "modules": hosts.modules}
    lines = [
        *_code_lines({"PATH": path} if path else {}),
        f"token={quote_always(f'{run}/{TOKEN}')} head={quote_always(head)} image={quote_always(plan.image.path)}",
        *(f"{name}=({' '.join(map(quote_always, values))})" for name, values in lists.items()),
        f"RUNNER_TRUST={quote_always(os.environ.get('RUNNER_TRUST', ''))}",
        *(each.read_text("utf-8") for each in (LEFTOVERS, SHELL / "preflight.sh")),
    ]
    return "\n".join(lines)


def _code_lines(environment: Mapping[str, str]) -> Iterator[str]:
    """The variables of paths.CODE, as exports: whole on this machine alone. Nothing but bash runs in between."""
    own = {name: environment[name] for name in paths.CODE if name in environment}
    others = paths.for_other_machines(own)
    yield from (f"export {name}={quote_always(value)}" for name, value in others.items())
    if others != own:
        whole = " ".join(f"{name}={quote_always(value)}" for name, value in own.items())
        yield "read -r runner_boot </proc/sys/kernel/random/boot_id"
        yield f'[ "$runner_boot" != {_boot_id()} ] || export {whole}'


def answer(out: str) -> dict[str, list[str]] | None:
    """A host's answers by name; None where the output is incomplete."""
    answers: dict[str, list[str]] = {}
    for line in out.splitlines():
        if line.startswith(f"{MARK} "):
            _, name, value = line.split(" ", 2)
            answers.setdefault(name, []).append(value)
    return answers if "end" in answers else None


def faults(
    plan: Plan, run: str, head: str, token: str, answers: Sequence[Mapping[str, Sequence[str]]], own: str = ""
) -> Iterator[Fault]:
    """What keeps the hosts, whose answers stand in the plan's order, from taking the job. ``own``: what it uses by its
    path that is on this machine's own disk; empty for nothing.
    """
    machines: dict[str, str] = {}
    for node, (host, answers_of_host) in enumerate(zip(_hosts(plan).names, answers, strict=True)):
        problems = _host_faults(plan, run, token, answers_of_host)
        yield from (Fault(host, what, fix) for what, fix in problems)
        first = {name: values[0] for name, values in answers_of_host.items()}
        if own and first["machine"].split()[1:] != [_boot_id()]:
            what = f"what lies at {own} there may be another user's: here it is on this machine's own disk"
            yield Fault(host, what, "use a directory that all hosts share")
        gpus, ranks = first["gpus"], plan.tasks_per_node[node]
        if plan.device == "cuda" and int(gpus) < ranks:
            what = f"it has {gpus} NVIDIA GPUs, and {ranks} ranks are planned there"
            fewer = f"give its number: {host}:{gpus}" if int(gpus) else "leave it out"
            yield Fault(host, what, f"{fewer}; or a site file with `device: cpu`")
        address = first["head"].split(" ", maxsplit=1)[0]
        if plan.nodes > 1 and not address:
            fix = "put a host first in the list whose name or address (ssh's HostName) the others can resolve"
            yield Fault(host, f"it cannot resolve {head!r}{_SERVES}", fix)
        elif plan.nodes > 1 and address in _OWN and (node > 0 or "no-way-out" in answers_of_host):
            what = f"{head!r}{_SERVES}, is a loopback address there ({address})"
            yield Fault(host, what, "put a host first in the list by the name that all others know it by")
        other = machines.setdefault(first["machine"], host)
        if other != host:
            yield Fault(host, f"it is the same machine as {other}", "name each machine once, with all of its ranks")


def _used(plan: Plan) -> Iterator[str]:
    """The places that a host finds by the paths that they have here, but for the run directory: of a job without a
    container, those of this shell's environment, too.
    """
    yield from (each for each in (plan.image.path, *(mount.source for mount in plan.mounts)) if each)
    if not RUNTIMES[plan.runtime].is_container:
        # Whatever else these variables name stays here (_code_lines), and is not missed.
        listed = (paths.split_list(name, os.environ.get(name, "")) for name in paths.CODE[2:])
        programs = map(process.find, ("python3", *plan.program[:1]))  # there others of these names would be run
        words = paths.named_code(plan.program, Path(plan.workdir), files.is_on_own_disk)
        named = map(str, (plan.workdir, *filter(None, programs), *words, *chain(*listed)))
        yield from (each for each in named if each.startswith("/") and os.path.lexists(each))


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _host_faults(plan: Plan, run: str, token: str, answers: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """What is wrong with one host's files and programs, and the fix."""
    if answers["token"][0] != token:
        fix = "name a directory of a file system that every host shares, with --runs"
        yield f"it does not see the run directory {run}", fix
    elif "exchangeable" in answers:
        fix = f"name a directory, with --runs, that is your own on every host; {ownership.TRUSTS}"
        yield f"another user could exchange the run directory {run} there", fix
    image, size = plan.image, answers.get("image", [""])[0]
    if image.path and size in ("", "0"):
        fix = "put the images where every host sees them (RUNNER_STORE), or name one that it sees with --image"
        yield f"it does not see the image {image.path}", fix
    elif image.path and image.size_bytes and int(size) != image.size_bytes:
        yield f"its {image.path} has {size} bytes, and the image {image.size_bytes}", "put the same image there"
    for number in answers.get("no-mount", ()):
        yield f"it has no {plan.mounts[int(number)].source!r} to mount", "correct the path, or put it there"
    for program in answers.get("no-program", ()):
        fix = "install it there, or use another runtime (--runtime); a non-interactive ssh must find it in PATH"
        yield f"it has no {program}", fix
    version = [int(number) for number in answers.get("python", [""])[0].split()]
    if version and tuple(version) < _OLDEST_PYTHON:
        yield f"its python3 is {version[0]}.{version[1]}", "put 3.8 or newer first in PATH"
    lacking = answers.get("no-modules", [""])[0]
    if lacking:
        fix = "use an environment that every host sees, or a container (--runtime)"
        yield f"its python3 cannot import {', '.join(lacking.split())}", fix


# What ssh says (OpenSSH 7 to 10) -> what it means, the fix, and the exit code. Nothing is ever loosened for the user.
_SSH_SAYS: tuple[tuple[str, str, str, Exit], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending \S+ key",
        "its host key differs from the one that ssh knows",
        "ask its administrator whether it was set up anew; then `ssh-keygen -R {host}`, and accept the new key by hand",
        Exit.REFUSED,
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "ssh does not know its host key, which you must compare and accept",
        "`ssh {host}` once by hand, and accept the key if its fingerprint is right",
        Exit.REFUSED,
    ),
    (
        r"Permission denied|Too many authentication failures|No more authentication methods",
        "it refuses a login without a password",
        "`ssh-copy-id {host}`, or load your key into ssh-agent: `ssh -o BatchMode=yes {host} true` must work",
        Exit.REFUSED,
    ),
    (
        r"Could not resolve hostname",
        "its name is not known here",
        "correct it, or give it a HostName in ssh's configuration",
        Exit.REFUSED,
    ),
    (
        r"Connection refused|timed out|No route to host|Network is unreachable|Connection (closed|reset)",
        "no ssh answers there",
        "check that it is up: `ssh {host}` must work from here; or leave it out",
        Exit.INFRASTRUCTURE,
    ),
)


def no_answer(host: str, code: int | None, err: str, within_s: float) -> Fault:
    """Why a host did not answer. ``code``: of ssh; None where it had not ended in time. ``err``: its standard error."""
    if code is None:
        fix = "check the host and its file systems: `ssh HOST` must work from here; or leave it out"
        return Fault(host, f"it has not answered within {within_s:g} s", fix, Exit.INFRASTRUCTURE)
    last = (err.strip().splitlines() or [f"ssh ended with exit code {code}"])[-1]
    for pattern, what, fix, exit_code in _SSH_SAYS:
        if re.search(pattern, err):
            return Fault(host, f"{what} ({last})", fix.format(host=host), exit_code)
    fix = f"`ssh {host} bash` must work from here without a question"
    return Fault(host, last, fix, Exit.INFRASTRUCTURE if code == 255 else Exit.REFUSED)
