"""Starting, finding and ending a box: one process and everything below it.

State of a box, in ``<cache>/boxes/NAME``: ``pid`` (process, start time, mode; written by the box itself),
``spec.json`` (written when it is ready), ``bin/`` (the clients), ``site.yaml`` (to submit to it), ``logs/``. A box
that is taken down leaves nothing; one that failed to start leaves its logs until the next start.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from runner.box import config, root
from runner.box.config import DEFAULT_NAME, BoxSpec, check_name
from runner.core import files, paths, process, process_identity
from runner.core.errors import InfrastructureError, RefusedError
from runner.core.invocation import PROGRAM
from runner.core.lock import locked
from runner.core.text import counted
from runner.setup.machine import real_cluster
from runner.sites.loader import read_site

READY_WITHIN_S = 60.0

Say = Callable[[str], None]


class Box(msgspec.Struct, frozen=True):
    """A running box.

    Attributes:
        state: its state directory.
        bin_dir: holds sbatch, srun, squeue ...: programs for the host that run inside the box.
        pid: the host's number of its first process.
        version: of its Slurm.
    """

    name: str
    state: Path
    bin_dir: Path
    pid: int
    version: str
    spec: BoxSpec

    @property
    def site(self) -> str:
        """What ``submit --site`` takes: the shipped site, or this box's own site file."""
        return DEFAULT_NAME if self.name == DEFAULT_NAME else str(self.state / "site.yaml")


class _Record(msgspec.Struct, frozen=True):
    spec: BoxSpec
    root: str
    version: str


def boxes_dir() -> Path:
    """Where the boxes of this user keep their state."""
    return paths.cache("boxes")


def up(spec: BoxSpec, say: Say = lambda _line: None) -> Box:
    """The box that ``spec`` describes, started unless it runs already.

    Raises:
        RefusedError: this is a real cluster, the box runs with another spec, or the machine lacks what it needs.
        InfrastructureError: it did not come up.
    """
    running = find(spec.name)
    if running and running.spec == spec:
        return running
    reason = real_cluster()
    if reason:
        what = f"this looks like a real cluster ({reason}); a box is for machines without one"
        fix = f"submit to the cluster itself: {PROGRAM} submit --help"
        raise RefusedError(what, where="this machine", fix=fix)
    with _locked(spec.name, say):
        running = find(spec.name)
        if running and running.spec == spec:
            return running
        if running:
            old, new = msgspec.to_builtins(running.spec), msgspec.to_builtins(spec)
            other = "; ".join(f"{key} is {old[key]!r}, not {new[key]!r}" for key in old if old[key] != new[key])
            what, fix = f"box {spec.name} is up with other settings: {other}", f"{PROGRAM} box down --name {spec.name}"
            raise RefusedError(what, where=str(running.state), fix=fix)
        _end(spec.name)
        return _start(spec, say)


def down(name: str, say: Say = lambda _line: None) -> bool:
    """End a box with all that runs in it and remove its state; returns whether it ran.

    Of a box that failed to start the logs stay, until the next start.

    Raises:
        InfrastructureError: it did not end.
    """
    check_name(name)
    if name not in names():
        return False
    with _locked(name, say):
        return _end(name)


def find(name: str) -> Box | None:
    """The box of that name if it is up and ready, else None. Reads three small files."""
    state = boxes_dir() / name
    # A path, as a site's file may have, could lead to another user's programs.
    if "/" in name or (pid := _alive(state)) is None:
        return None
    try:
        record = msgspec.json.decode((state / "spec.json").read_bytes(), type=_Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return Box(name, state, state / "bin", pid, record.version, record.spec)


def inside(root: Path = Path("/")) -> str:
    """The name of the box that this process runs in, as in the shell of its salloc; empty outside of any."""
    try:
        return (root / "etc/box/name").read_text().strip()
    except OSError:
        return ""


def names() -> tuple[str, ...]:
    """Every box of this user that has left a state directory, up or not. A link is none: all that it leads to would be
    removed.
    """
    own = (path for path in boxes_dir().glob("*/") if not path.is_symlink() and path.stat().st_uid == os.geteuid())
    return tuple(sorted(path.name for path in own))


def telling_line(state: Path) -> str:
    """The log line that best explains why a box failed (box.log holds the output of every daemon)."""
    log = state / "logs" / "box.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    fatal = [line for line in lines if re.search(r"fatal|not permitted|denied|wrong fs type", line)]
    bad = fatal or [line for line in lines if "error" in line] or lines
    return f"{log}: {bad[0] if fatal else bad[-1]}" if bad else str(log)


def _start(spec: BoxSpec, say: Say) -> Box:
    missing = [bind.source for bind in spec.binds if not Path(bind.source).exists()]
    if missing:
        raise RefusedError(f"nothing at {missing[0]} to bind into the box", where="--bind", fix="correct the path")
    cold = paths.caches_ignored()
    target = root.location(spec.slurm, spec.packages) / "root"
    if cold and any(_root_of(name) == str(target) for name in names() if find(name)):
        raise RefusedError("COLD=1 would remake a root that a running box uses", fix=f"{PROGRAM} box down --name NAME")
    box_root = root.ensure(spec.slurm, say, more=spec.packages, cold=cold)
    state = boxes_dir() / spec.name
    shutil.rmtree(state, ignore_errors=True)
    _lay_out(state, spec, box_root.path)
    say(f"starting box {spec.name}: Slurm {box_root.version}, {counted(spec.nodes, 'node')}")
    with (state / "logs" / "box.log").open("wb") as log:
        account = _account()
        command = config.unshare_argv(account, state, box_root.path)
        process.start(command, stdout=log, stderr=process.STDOUT, env=account.environment).wait()
    try:
        _await_ready(state, spec)
    except BaseException:
        _end(spec.name)
        raise
    files.write(state / "spec.json", msgspec.json.encode(_Record(spec, str(box_root.path), box_root.version)))
    box = find(spec.name)
    if box is None:
        raise InfrastructureError(f"box {spec.name} ended as soon as it was up", where=telling_line(state))
    return box


def _lay_out(state: Path, spec: BoxSpec, pristine: Path) -> None:
    account = _account()
    state.mkdir(mode=0o700)
    for name in ("bin", "files", "logs", "mnt"):
        (state / name).mkdir()
    own = {name: (pristine / name).read_text() for name in ("etc/passwd", "etc/group")}
    for name, content in config.files(spec, account, own).items():
        path = state / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    entries = (entry for entry in os.scandir("/") if entry.name.isprintable())  # no line of `binds` could hold others
    top_level = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    needed = [path for path in (Path.home(), paths.cache_dir(), paths.source_root()) if path]
    seen = config.binds(spec, top_level, needed, state / "logs")
    (state / "binds").write_text("".join(f"{bind.source}\t{bind.target}\n" for bind in seen))
    site = msgspec.structs.replace(read_site(DEFAULT_NAME), box=spec.name)
    if (pristine / "usr/bin/apptainer").exists():
        site = msgspec.structs.replace(site, runtimes=(*site.runtimes, "apptainer"))
    (state / "site.yaml").write_bytes(msgspec.yaml.encode(site.document))
    wrapper = state / "bin" / config.WRAPPERS[0]
    wrapper.write_text(config.script("wrapper"))
    wrapper.chmod(0o755)
    for name in config.WRAPPERS[1:]:
        if name == "in-box" or (pristine / "usr/bin" / name).exists():
            (state / "bin" / name).hardlink_to(wrapper)


def _await_ready(state: Path, spec: BoxSpec) -> None:
    """Wait until every node is idle. Raises InfrastructureError with the reason, at once where the box has ended."""
    deadline = time.monotonic() + READY_WITHIN_S
    idle = [f"{node} idle" for node in spec.node_names]
    seen = "sinfo printed nothing"
    while time.monotonic() < deadline and not _has_failed(state):
        if (state / "logs" / "slurmctld.log").exists():
            with suppress(process.CommandTimeoutError):
                command = (state / "bin" / "sinfo", "--noheader", "--Node", "--format=%N %T")
                answer = process.run(command, timeout_s=5, cwd=Path("/"), check=False)
                if answer.code == 0 and sorted(answer.out.splitlines()) == idle:
                    return
                seen = f"sinfo: {', '.join(answer.out.split(chr(10))).strip(', ') or answer.last_lines(1)}"
        time.sleep(0.05)
    what = "failed to start" if _has_failed(state) else f"was not up in {READY_WITHIN_S:g} s; {seen}"
    fix = f"read {state / 'logs'}"
    if "unshare" in _log(state) and os.geteuid() != 0:
        fix = (
            "allow user namespaces for ordinary users (Ubuntu 24.04: sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0), or run as root"
        )
    raise InfrastructureError(f"box {spec.name} {what}", where=telling_line(state), fix=fix)


def _log(state: Path) -> str:
    """The output of every daemon."""
    return (state / "logs" / "box.log").read_text(errors="replace")


def _has_failed(state: Path) -> bool:
    """Whether waiting is over: the box has gone, or unshare gave up before there was one, or a daemon did."""
    log = _log(state)
    if _alive(state) is None:
        return bool(log) or (state / "pid").exists()
    return ": fatal: " in log


@contextmanager
def _locked(name: str, say: Say) -> Iterator[None]:
    """Only this process starts or ends that box. The lock's file is removed when the box has left no state."""
    path = paths.ensure_directory(boxes_dir()) / f"{name}.lock"
    with locked(path, say):
        try:
            yield
        finally:
            if not (boxes_dir() / name).exists():
                path.unlink()


def _end(name: str) -> bool:
    state = boxes_dir() / name
    was_up = (state / "spec.json").exists()
    pid = _alive(state)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)  # PID 1 of its namespace: the kernel ends all the others with it
        deadline = time.monotonic() + 20
        while _alive(state) is not None:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"process {pid} of box {name} does not end", where=str(state / "pid"))
            time.sleep(0.01)
    if was_up:
        shutil.rmtree(state)
    for entry in state.iterdir() if state.exists() else ():
        if not entry.is_dir():
            entry.unlink()
        elif entry.name != "logs":
            shutil.rmtree(entry)
    return pid is not None


def _alive(state: Path) -> int | None:
    """The box's first process if it still is the one that this user recorded."""
    try:
        with files.open_below(state, "pid") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            pid, start, _mode = file.read(200).decode().split()
        return int(pid) if process_identity.is_running(int(pid), int(start)) else None
    except (OSError, ValueError):
        return None


def _root_of(name: str) -> str:
    return msgspec.json.decode((boxes_dir() / name / "spec.json").read_bytes(), type=_Record).root


def _account() -> config.Account:
    user = pwd.getpwuid(os.geteuid())
    return config.Account(user.pw_uid, user.pw_gid, user.pw_name, user.pw_dir)
