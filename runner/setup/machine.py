"""This machine: is it of a cluster? Which modules its Python lacks, which packages; installing them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from runner.core import paths, process
from runner.core.errors import RefusedError
from runner.core.invocation import PROGRAM
from runner.core.lock import locked
from runner.core.ownership import whole_parts

# Where the configuration of each scheduler's clients lies: slurm.conf(5), pbs.conf(8), lsf.conf(5).
_SLURM = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_PBS = ("/etc/pbs.conf", "/var/spool/torque/server_name", "/var/spool/pbs/server_name")


def real_cluster() -> str | None:
    """Why this machine looks like a login node or node of a real cluster; None if it does not."""
    return cluster_reason(os.environ, lambda path: Path(path).exists(), lambda name: process.find(name) is not None)


def cluster_reason(env: Mapping[str, str], exists: Callable[[str], bool], program: Callable[[str], bool]) -> str | None:
    """The same, as a function of the environment and files.

    A client alone is no cluster: Debian's slurm-client can be installed anywhere; it is one with a configuration.
    """
    for variable in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        if env.get(variable):
            return f"{variable} is set: this is a job"
    slurm = [env["SLURM_CONF"]] if env.get("SLURM_CONF") else _SLURM
    pbs = [env["PBS_CONF_FILE"]] if env.get("PBS_CONF_FILE") else _PBS
    for clients, places in ((("sbatch", "sinfo"), slurm), (("qstat", "qsub"), pbs)):
        client = next((name for name in clients if program(name)), None)
        place = next((name for name in places if exists(name)), None)
        if client and place:
            return f"{client} is here and {place} too"
    return None


# Looks, and imports nothing: torch alone would take seconds. Nothing of the directory where the user is, either: what
# lies there may be another user's.
_LOOK = """\
import sys
sys.path[:] = [place for place in sys.path if place]
import importlib.util
print("{}.{}".format(*sys.version_info))
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is None:
        print(name)
"""
_FRAMEWORKS = {"torch": "pytorch", "tensorflow": "tensorflow"}


def missing_modules(needs: Sequence[str], python: Path | None = None) -> tuple[str, str]:
    """What a Python (None: ``python3`` of PATH) lacks to run a program that imports ``needs``, and the commands that
    provide it; empty if it lacks nothing.
    """
    python = python or process.find("python3")
    if python is None:
        return "no python3 is in PATH", "activate an environment that has one"
    env = {**os.environ, "PYTHONPATH": whole_parts(os.environ.get("PYTHONPATH", ""))}
    done = process.run((python, "-c", _LOOK, *needs), timeout_s=60, check=False, env=env)
    version, *absent = done.out.split() or ["?"]
    if done.code != 0 or version.startswith("2."):
        return f"{python} cannot be used (version {version}): {done.last_lines(1)}", "activate another environment"
    if not absent:
        return "", ""
    fix = f"in the environment that is to be used: python3 -m pip install {' '.join(absent)}"
    if "horovod" in absent:
        framework = next((_FRAMEWORKS[name] for name in needs if name in _FRAMEWORKS), "pytorch")
        fix = f"{PROGRAM} env create NAME --framework {framework} --at DIR, and --env-name DIR/NAME"
    return f"{python} (Python {version}) has no {' and no '.join(absent)}", fix


POLICY = Path("/usr/sbin/policy-rc.d")
# What invoke-rc.d asks before it starts a service (invoke-rc.d(8)); 101 means: not allowed.
_REFUSE = "#!/bin/sh\n# gpu-runner: no service is started while it installs packages\nexit 101\n"
_MARK = "gpu-runner:"
_TIMEOUT_S = 1800
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300")


class Package(msgspec.Struct, frozen=True):
    """One package that a step needs, and why; it is there if all of its programs are."""

    name: str
    programs: tuple[str, ...]
    why: str


ENGINE = Package("docker.io", ("dockerd", "containerd", "runc"), "builds images (none of its services is started)")
NEEDED: tuple[Package, ...] = (
    Package("mmdebstrap", ("mmdebstrap",), "makes the box's root and the stand-in base image"),
    Package("squashfs-tools", ("mksquashfs", "unsquashfs"), "packs images into squashfs files"),
    Package("util-linux", ("unshare", "nsenter", "setsid"), "gives the box its own namespaces"),
    Package("mount", ("mount",), "mounts the box's root"),
    Package("tar", ("tar",), "unpacks the box's root"),
    Package("openssh-client", ("ssh", "ssh-keygen"), "reaches hosts that have no scheduler (--hosts)"),
)
# Only an ordinary user needs it: it makes the box's root in a user namespace.
FOR_USERS = Package("uidmap", ("newuidmap", "newgidmap"), "lets an ordinary user make the box's root")
# Not Debian: Debian's keys are a package of their own there.
KEYRING = Package("debian-archive-keyring", (), "proves that the box's packages are Debian's")


def missing_packages(
    *, engine: bool, has: Callable[[str], bool] | None = None, debian: bool | None = None, root: bool | None = None
) -> tuple[Package, ...]:
    """The packages that are not there.

    Args:
        engine: a container engine is needed too (none answers).
        has: whether a program is there; debian: whether this is Debian; root: whether we are root. None looks.
    """
    has = has or _has_program
    debian = Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists() if debian is None else debian
    root = os.geteuid() == 0 if root is None else root
    wanted = [*NEEDED, *([ENGINE] if engine else []), *([] if root else [FOR_USERS])]
    lacking = [package for package in wanted if not all(has(name) for name in package.programs)]
    return (*lacking, *(() if debian else (KEYRING,)))


def install_packages(packages: Iterable[Package], say: Callable[[str], None]) -> None:
    """Install them with apt-get, as root or through sudo; services that they bring are not started.

    One at a time of a user: the first to end would take the policy away from under the others.

    Raises:
        RefusedError: no apt-get, or no way to become root; the message holds the command line.
        CommandFailedError: apt-get failed.
    """
    names = [package.name for package in packages]
    if not names:
        return
    command = [*_APT, "install", "--yes", "--no-install-recommends", *names]
    by_hand = "sudo " + shlex.join(["apt-get", "install", "--no-install-recommends", *names])
    if process.find("apt-get") is None:
        fix = f"install them with this system's package manager (Debian and Ubuntu: {by_hand})"
        what = f"this machine lacks {', '.join(names)}, and has no apt-get to install them"
        raise RefusedError(what, where="PATH", fix=fix)
    become = _become_root(by_hand)
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive"]
    with locked(paths.ensure_directory(paths.cache("locks")) / "packages.lock", say), _no_service_starts(become):
        for step in ([*_APT, "update"], command):
            output: list[str] = []
            say(shlex.join(step))
            code = process.stream([*become, *quiet, *step], output.append, timeout_s=_TIMEOUT_S)
            if code != 0:
                raise process.CommandFailedError(process.Completed(tuple(step), code, "\n".join(output), ""))


def _become_root(by_hand: str) -> list[str]:
    if os.geteuid() == 0:
        return []
    if process.find("sudo") is None:
        raise RefusedError("installing packages needs root, and there is no sudo", where="apt-get", fix=by_hand)
    # A sudo that would ask has no terminal to ask on here: process runs every program in a session of its own.
    if process.run(["sudo", "-n", "true"], timeout_s=20, check=False).code != 0:
        raise RefusedError("sudo asks for a password here", where="sudo -n true", fix=f"{by_hand}\n  then try again")
    return ["sudo", "-n"]


@contextmanager
def _no_service_starts(become: list[str]) -> Iterator[None]:
    """During the block a policy-rc.d refuses to start services; one that exists already is not replaced."""
    if POLICY.exists() and _MARK not in POLICY.read_text(errors="replace"):
        yield
        return
    try:
        process.run([*become, "tee", POLICY], timeout_s=20, input_text=_REFUSE)
        process.run([*become, "chmod", "755", POLICY], timeout_s=20)
        yield
    finally:
        process.run([*become, "rm", "-f", POLICY], timeout_s=20)


def _has_program(name: str) -> bool:
    # The system's own directories too: an ordinary user's PATH often lacks sbin.
    return process.find(name) is not None or process.find(name, "/usr/sbin:/sbin:/usr/bin:/bin") is not None
