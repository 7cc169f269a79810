"""What runs a command in a writable root: Enroot, Apptainer or Charliecloud, each with no engine and no privilege.

The command is root there, by a user namespace. It sees the image's environment, and of this machine only its network:
the proxies, the names of hosts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.core import process
from runner.core.errors import RefusedError
from runner.images.conversion import sif
from runner.images.packing import rootfs

ENROOT, APPTAINER, CHARLIECLOUD = "enroot", "apptainer", "ch-run"
TOOLS = (ENROOT, APPTAINER, CHARLIECLOUD)
# What a work directory holds. Values are in files of it and not in arguments: they may be secrets.
ROOT, ENVIRONMENT, SHELL_ENVIRONMENT, RC = "root", "environment", "environment.sh", "rc"
_INSTALL = "`module load` enroot, apptainer or charliecloud; Debian: apt install charliecloud-runtime"
_QUERY_S = 60.0
# Of ours: what finds the programs, their own settings, and what reaches the network.
_KEPT = re.compile(r"PATH|HOME|USER|LOGNAME|TMPDIR|XDG_\w+|(?:ENROOT|APPTAINER|SINGULARITY|CH)_\w+")
_PROXIES = re.compile(r"(?:https?|ftp|all|no)_proxy", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LEFT_OUT = frozenset((".lock",))  # Enroot's mark of a root that is in use
_WRITABLE = ("--writable", "--contain", "--no-home")


@dataclass(frozen=True)
class Tool:
    """A program that is here.

    Attributes:
        name: of TOOLS. program: what is called. version: as it prints it. options: further ones that it wants here.
    """

    name: str
    program: str
    version: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """A writable copy of an image.

    Attributes:
        work: the directory with its root, and beside it what the programs want. workdir: where the command starts.
        environment: variables that the command gets besides the proxies.
    """

    work: Path
    workdir: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The writable root."""
        return self.work / ROOT


def find(wanted: str | None) -> Tool:
    """The program of that name, or the first that is here.

    Raises:
        RefusedError: it is not here.
    """
    for name in (wanted,) if wanted else TOOLS:
        if name == APPTAINER:
            try:
                program = sif.apptainer_program()
            except RefusedError:
                if wanted:
                    raise
                continue
            return Tool(name, program, _version(program), () if os.geteuid() == 0 else ("--fakeroot",))
        if process.find(name) is not None:
            return Tool(name, name, _version(name), _seccomp() if name == CHARLIECLOUD else ())
    what = f"{wanted} was not found" if wanted else f"none of {', '.join(TOOLS)} was found"
    raise RefusedError(what, where="PATH", fix=_INSTALL)


def command(tool: Tool, copy: Copy, words: Sequence[str], ours: Mapping[str, str]) -> tuple[str, ...]:
    """The command line; ``ours``: this process's environment."""
    if tool.name == ENROOT:
        # NVIDIA's images ask for GPUs, and Enroot's hook fails where there is no nvidia-container-cli: a login node.
        more = ("--env", "NVIDIA_VISIBLE_DEVICES=void", *(word for name in _proxies(ours) for word in ("--env", name)))
        return (tool.program, "start", "--root", "--rw", "--rc", str(copy.work / RC), *more, ROOT, *words)
    if tool.name == APPTAINER:
        # It passes the proxies on by itself, also with --cleanenv.
        own = ("--cleanenv", "--env-file", str(copy.work / SHELL_ENVIRONMENT))
        return (tool.program, "exec", *_WRITABLE, *tool.options, *own, "--pwd", copy.workdir, str(copy.root), *words)
    options = ("--write", "--private-tmp", "--no-passwd", "--uid=0", "--gid=0", "--cd", copy.workdir, *tool.options)
    environment = ("--unset-env=*", "--env-no-expand", f"--set-env={copy.work / ENVIRONMENT}")
    return (tool.program, *options, *environment, str(copy.root), "--", *words)


def environment(tool: Tool, copy: Copy, ours: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the program runs."""
    kept = {name: value for name, value in ours.items() if _KEPT.fullmatch(name) or _PROXIES.fullmatch(name)}
    own = {"TERM": ours.get("TERM", "dumb"), "USER": ours.get("USER") or "root"}
    if tool.name == ENROOT:
        own |= {"ENROOT_DATA_PATH": str(copy.work), "ENROOT_MOUNT_HOME": "n"}
    return {**kept, **own}


def files(copy: Copy, ours: Mapping[str, str]) -> dict[str, str]:
    """Files that the programs want in the work directory: name -> content."""
    variables = {"HOME": "/root", "TERM": ours.get("TERM", "dumb"), **copy.environment, **_proxies(ours)}
    # The command itself, not the image's entry point: a banner has no place in an edit.
    return {
        ENVIRONMENT: rootfs.charliecloud_environment(variables),
        # Apptainer's shell, outside of the container, reads this: no name of the image's may be anything else to it.
        SHELL_ENVIRONMENT: "".join(
            f"{name}={_twice(value)}\n" for name, value in copy.environment.items() if _NAME.fullmatch(name)
        ),
        RC: f'cd {shlex.quote(copy.workdir)} && exec "$@"\n',
    }


def _twice(value: str) -> str:
    """Quoted for a shell, and again for the shell to which Apptainer gives what that one has read."""
    return shlex.quote(re.sub(r"([\\$`])", r"\\\1", value))


def _proxies(ours: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(ours.items()) if _PROXIES.fullmatch(name)}


def _version(program: str) -> str:
    found = re.search(r"[0-9]+\.[0-9][\w.+~-]*", _answer(program, "version" if program == ENROOT else "--version"))
    return found[0] if found else ""


def _seccomp() -> tuple[str, ...]:
    """What lets package managers change owners, where this Charliecloud has it."""
    return ("--seccomp",) if "--seccomp" in _answer(CHARLIECLOUD, "--help") else ()


def _answer(program: str, option: str) -> str:
    named = {**os.environ, "USER": os.environ.get("USER") or "root"}  # without it ch-run says nothing else
    done = process.run((program, option), timeout_s=_QUERY_S, check=False, env=named)
    return done.out + done.err
