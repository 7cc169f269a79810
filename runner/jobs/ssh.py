"""ssh into a running job: by the user's sshd behind a step's standard input, or by the site's on its node.

.ssh-RUN/RANK/   beside the run directory, which the job's container may write to; for its owner alone
    key, host_key, known_hosts, authorized_keys, sshd_config      of the user's sshd
    session      what each session runs on the node (ssh-session.sh); config: for ssh, scp and rsync on this machine
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from runner.backends.schedulers.script_parts import SHELL
from runner.core import files, ownership, process
from runner.core.errors import RefusedError
from runner.jobs.beside import Place, place_beside
from runner.jobs.directory import Run
from runner.jobs.service import login, reach_of
from runner.model.site import Site
from runner.sites.user import login_name

Access = Literal["own sshd", "site's sshd"]
_SUPPORT = (
    'ask the site: "May I run `sshd -i` as myself inside my own jobs, for keys only, without a port, reached through '
    "srun's standard input?\" With a yes, write `user_sshd: true` into the site file; `shell RUN` needs none"
)


def access_of(site: Site) -> Access:
    """How ssh may get into a job. Raises RefusedError: the site does not say that it may."""
    if site.user_sshd:
        return "own sshd"
    if reach_of(site) == "ssh":
        return "site's sshd"
    what = f"the site {site.name} says neither `user_sshd: true` nor `ssh_to_nodes: true`"
    raise RefusedError(what, where="--ssh", fix=_SUPPORT)


def connection(run: Run, rank: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """What serves one connection to the user's sshd, by its input and output, and its whole environment. Raises as
    ``place_beside``; RunnerError: ssh-keygen makes no keys.
    """
    place, directory = place_beside(run, rank), _prepared(run, rank)
    words = ("/bin/bash", "-p", "-c", (SHELL / "sshd.sh").read_text(), "sshd", str(directory))
    _write_session(directory, place)
    return place.step(words, terminal=False)


def directions(run: Run, rank: int, access: Access) -> tuple[Path, str]:
    """A configuration for ssh on this machine, and the text of one for a person's machine. Raises as ``connection``."""
    place, directory = place_beside(run, rank), _prepared(run, rank)
    _write_session(directory, place)
    user = f"User {login_name()}"
    if access == "site's sshd":
        of_node = [f"HostName {place.node}", user, "RequestTTY yes"]
        of_node.append(f"RemoteCommand {_escaped(str(directory / 'session'))}")
        hosts = place.plan.hosts if place.plan is not None else None
        here = [*of_node, *([f'Include "{hosts.config}"'] if hosts is not None and hosts.config else [])]
        away = [*of_node, f"ProxyJump {login()}"]
    else:
        words = (*_own_program(), "shell", "--ssh", "--stdio", str(run.path), "--rank", str(rank))
        own = _without_tokens(directory)
        of_key = [f'IdentityFile "{own}/key"', "IdentitiesOnly yes"]
        known = [f'UserKnownHostsFile "{own}/known_hosts"', "GlobalKnownHostsFile /dev/null"]
        here = [user, *of_key, "StrictHostKeyChecking yes", *known, f"ProxyCommand {_escaped(*words)}"]
        through = f"ProxyCommand ssh {login()} {_escaped(shlex.join(words))}"
        away = [user, "StrictHostKeyChecking accept-new", through]
    config = directory / "config"
    files.write_private(config, _host(run, here))
    return config, _host(run, away)


def _host(run: Run, options: Sequence[str]) -> str:
    return "\n    ".join((f"Host {run.run_id}", *options)) + "\n"


def _own_program() -> tuple[str, ...]:
    """With ``-m``, Python would look in the directory where ssh is called: what lies there may be another user's."""
    script = Path(sys.executable).with_name("gpu-runner")
    if script.exists():
        return (str(script),)
    places = f"import sys; sys.path[:] = [*filter(None, sys.path), {str(Path(__file__).parents[2])!r}]"
    begin = f"{places}; import runpy"  # after that: before 3.11 it is a file like any other
    return sys.executable, "-c", f"{begin}; runpy.run_module('runner', run_name='__main__', alter_sys=True)"


def _escaped(*words: str) -> str:
    return _without_tokens(shlex.join(words))


def _without_tokens(text: str | Path) -> str:
    """For a line of ssh's configuration, in which % has a meaning."""
    return str(text).replace("%", "%%")


def _prepared(run: Run, rank: int) -> Path:
    """The directory with keys, made once; sshd_config comes last. Without ``StrictModes``: of a project's directory
    others may write to those above, and could change the job's script as well. No other user's process gets to this
    sshd.
    """
    directory = run.path.with_name(f".ssh-{run.run_id}") / str(rank)
    for each in (directory.parent, directory):
        each.mkdir(mode=0o700, exist_ok=True)
        if not ownership.is_private(each):
            what = "what ssh reads there could be another user's"
            raise RefusedError(what, where=str(each), fix="submit with --runs in a directory of your own")
    if (directory / "sshd_config").exists():
        return directory
    for key in ("key", "host_key"):
        if not (directory / key).exists():
            words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", run.run_id, "-f", str(directory / key))
            process.run(words, timeout_s=60)
    public = {key: (directory / f"{key}.pub").read_text() for key in ("key", "host_key")}
    files.write_private(directory / "authorized_keys", public["key"])
    files.write_private(directory / "known_hosts", f"{run.run_id} {public['host_key']}")
    options = (
        f'HostKey "{directory}/host_key"',
        f'AuthorizedKeysFile "{_without_tokens(directory)}/authorized_keys" .ssh/authorized_keys',
        f"AllowUsers {login_name()}",
        *("AuthenticationMethods publickey", "PasswordAuthentication no", "KbdInteractiveAuthentication no"),
        *("PermitRootLogin prohibit-password", "StrictModes no", "PidFile none", "LogLevel ERROR"),
        "SetEnv SHLVL=1",  # else bash reads ~/.bashrc of the node first, which is not the job's
        *("Subsystem sftp internal-sftp", f"ForceCommand {shlex.quote(str(directory / 'session'))}"),
    )
    files.write_private(directory / "sshd_config", "\n".join(options) + "\n")
    return directory


def _write_session(directory: Path, place: Place) -> None:
    words = ("/bin/bash", "-p", "-c", (SHELL / "ssh-session.sh").read_text(), "session", *place.entering(()))
    files.write(directory / "session", f"#!/bin/bash\nexec {shlex.join(words)}\n".encode(), mode=0o700)
