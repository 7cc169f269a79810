"""Container engines: which one is used (the one that was named, or the first that answers), and a private one."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runner.core import paths, process, process_identity
from runner.core.errors import InfrastructureError, RefusedError, RunnerError, UsageError
from runner.core.files import sha256
from runner.core.lock import locked
from runner.core.loopback import ensure_own_port, is_here
from runner.core.ownership import exchangeable_by, is_private, may_be_strangers

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image
    from docker.tls import TLSConfig

_CONTAINER = "gpu-runner-"  # what the names of containers begin with that processes of ours make
_NO_ENGINE_FIX = (
    "start Docker or Podman, or name one with --engine URL or DOCKER_HOST; `make quickstart` starts a private one"
)
_TLS_FIX = "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the directory of ca.pem, cert.pem and key.pem"
# Why an engine does not answer: a word of the error, what it means, a fix.
_SILENT = (
    ("ermission denied", "permission denied", "join the group of the socket (often `docker`), then log in again"),
    ("SSLError", "TLS with these certificates fails", _TLS_FIX),
    ("", "", _NO_ENGINE_FIX),
)
# sun_path holds 108 bytes, NUL included; dockerd puts sockets up to 40 characters below its exec root.
_SOCKET_ROOM = 64
_START_S = 60.0
_STOP_S = 30.0
_CGROUP_PARENT = "gpu-runner-engine"
_NAMESPACE = "gpu-runner"
_HERE = "tcp://"  # what docker-py makes of it is http://
# A daemon's fixed places on the host; the private one mounts its own directories over them.
_FIXED_PLACES = (Path("/run/containerd"), Path("/run/docker"))
_CREATED = "made"  # the file that lists those which the host did not have before this engine


def _open_client(url: str, *, where: str) -> docker.DockerClient:
    """A client of the engine, which has answered. ``where``: what named the URL, for messages."""
    import docker
    import docker.constants
    import docker.utils
    import requests

    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    has_login = "@" in rest and not rest.startswith("/")
    shown = f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if has_login else url
    try:
        has_tls = bool(os.environ.get("DOCKER_TLS_VERIFY"))  # as docker(1) takes it
        base = _trusted(str(docker.utils.parse_host(url, False, has_tls)), where)
        tls = _tls() if has_tls and base.startswith("https://") else False
        # Builds and exports are silent for minutes: the timeout is for one read, in seconds.
        some = docker.constants.MINIMUM_DOCKER_API_VERSION  # else it would ask for the engine's, as the line below does
        client = docker.DockerClient(base, version=some, timeout=900, tls=tls, use_ssh_client=url.startswith("ssh://"))
        # No proxy on the way to this machine, and no other authorities than those of _tls (REQUESTS_CA_BUNDLE).
        client.api.trust_env = not (tls or base.startswith(_HERE))
        client.api._version = client.api._retrieve_server_version()  # type: ignore[attr-defined]  # stubs lack it
        client.ping()
        # A build would send all of the user's logins to the engine, which has its base by then.
        client.api._set_auth_headers = lambda _headers: None  # type: ignore[attr-defined]  # as above
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        reason, fix = next((reason, fix) for word, reason, fix in _SILENT if word in str(error))
        what = f"the container engine at {shown} does not answer" + (f": {reason}" if reason else "")
        raise InfrastructureError(what, where=where, fix=fix) from error
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{shown!r} is not the URL of a container engine",
            where=where,
            fix="write it as unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST",
        ) from error
    return client


def _tls() -> TLSConfig:
    """What proves an engine to us and us to it. UsageError: no such files are named.

    DOCKER_CERT_PATH is needed: without it, what is started with these variables may take no TLS.
    """
    import docker

    with suppress(docker.errors.TLSParameterError):
        if os.environ.get("DOCKER_CERT_PATH"):
            return docker.utils.kwargs_from_env()["tls"]
    raise UsageError("it names no directory with ca.pem, cert.pem and key.pem", where="DOCKER_CERT_PATH", fix=_TLS_FIX)


def _trusted(base: str, where: str) -> str:
    """What docker-py makes of an engine's URL; at this machine, with the address at which a trusted user listens.

    Raises:
        RefusedError: a stranger could answer in the engine's place, and would have images and logins.
        InfrastructureError: nothing listens there.
    """
    scheme, _, rest = base.partition("://")
    if scheme == "http":
        if not is_here(netloc := rest.partition("/")[0]):
            what = "an engine on another host is not used without TLS: who answers gets logins, and makes images"
            raise RefusedError(what, where=where, fix=f"{_TLS_FIX}; or name it ssh://USER@HOST")
        login, at, host = netloc.rpartition("@")
        return f"{_HERE}{login}{at}{ensure_own_port(host)}:{urlsplit(f'//{host}').port}"
    if scheme == "http+unix" and ((whose := exchangeable_by(Path(rest), new=True)) or may_be_strangers(Path(rest))):
        whose = whose or "where others may put theirs"
        raise RefusedError(f"the engine's socket is {whose}", where=where, fix="name one of the system, or of your own")
    return base


def connect(url: str | None = None) -> docker.DockerClient:
    """A client of the first engine that answers: ``url``, DOCKER_HOST, Docker's socket, Podman's, our private one.

    Raises:
        UsageError: what was named is no URL. InfrastructureError: the engine that was named does not answer.
        RefusedError: none was named and none answers.
    """
    return connected(url)[1]


def connected(url: str | None = None) -> tuple[str, docker.DockerClient]:
    """The URL of that engine, with the address that its client reaches it at, and the client; raises as ``connect``."""
    named = url or os.environ.get("DOCKER_HOST")
    if named:
        client = _open_client(named, where="--engine" if url else "DOCKER_HOST")
        reached: str = client.api.base_url
        return (f"{_HERE}{reached.removeprefix('http://')}" if reached.startswith("http://") else named), client
    tried: list[str] = []
    for candidate in default_urls(private_state()):
        if not Path(candidate.removeprefix("unix://")).exists():
            continue
        try:
            return candidate, _open_client(candidate, where=candidate)
        except InfrastructureError as error:
            tried.append(error.what)
    raise RefusedError("no container engine answers", where="; ".join(tried), fix=_NO_ENGINE_FIX)


def needs_host_network(client: docker.DockerClient) -> bool:
    """Whether containers need the host's network: the engine has no bridge network, or is Podman, which lists one that
    its plugins cannot create, and none when rootless. The host's network always works.
    """
    components = client.version().get("Components") or []
    is_podman = any("podman" in str(part.get("Name", "")).lower() for part in components)
    return is_podman or not client.networks.list(filters={"driver": "bridge"})


def find_image(client: docker.DockerClient, name: str) -> Image | None:
    """The engine's image of this name or id; None: it has none."""
    import docker

    with suppress(docker.errors.ImageNotFound):
        return client.images.get(name)
    return None


@contextmanager
def best_effort() -> Iterator[None]:
    """For what an engine may refuse, and it does not matter: mostly the removal of what is in use, or gone."""
    import docker

    with suppress(docker.errors.APIError):
        yield


def container_name() -> str:
    """A name for a container of this process, which has its mark: a label could be one of the container's image."""
    return f"{_CONTAINER}{process_identity.unique()}"


def remove_orphans(client: docker.DockerClient) -> None:
    """Remove containers that processes of ours made, where this machine can tell that those were killed."""
    for container in client.containers.list(all=True, filters={"name": _CONTAINER}, ignore_removed=True):
        _, ours, mark = f"/{container.name}".partition(f"/{_CONTAINER}")
        if ours and process_identity.state(mark) == "dead":
            with best_effort():
                container.remove(force=True, v=True)


def default_urls(state: Path) -> Iterator[str]:
    """Where an engine may answer: Docker's sockets, Podman's, and the private engine's of this ``state``; none of
    another user, who would see and change what it builds.
    """
    yield "unix:///var/run/docker.sock"
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in (Path(runtime_dir, "docker.sock"), Path(runtime_dir, "podman/podman.sock")):
        with suppress(OSError):
            if path.stat().st_uid in (0, os.geteuid()) and not exchangeable_by(path.parent):
                yield f"unix://{path}"
    if has_private_sockets(state):
        yield private_url(state)


def private_state() -> Path:
    """Where the private engine keeps everything: below the cache directory."""
    return paths.cache("engine")


def start_private(state: Path) -> str:
    """Start the private engine (or find it running) and return its URL: a Docker daemon that leaves the host unchanged.

    It runs in its own mount namespace (its overlay mounts never show on the host), with no bridge, no packet filter
    rules, its own data root, containerd namespace and cgroup parent, and is ended by its process id. Facts: docs of
    dockerd 20.10 and later; an engine without a bridge builds and runs with the host's network. Needs root, or ``sudo``
    without a password; the socket then belongs to the user's group. Who starts it at the same time waits, and finds it.
    """
    with locked(paths.ensure_directory(paths.cache("locks")) / "engine.lock", lambda _line: None):
        return _started(state)


def _started(state: Path) -> str:
    address = private_url(state)
    if _pid(state) is not None and _comes_to_answer(address, lambda: _pid(state) is not None):
        return address
    if process.find("dockerd", _search_path()) is None:
        raise RefusedError("dockerd is not installed", fix="install the package docker.io (or docker-ce)")
    stop_private(state)  # removes what a killed one left: its pid files and sockets would stop a new one
    paths.ensure_directory(state)
    _make_private(_run_dir(state))
    created = "".join(f"{place}\n" for place in _FIXED_PLACES if not place.exists())
    (_run_dir(state) / _CREATED).write_text(created)
    log_path = state / "dockerd.log"
    with log_path.open("ab") as log:
        started = process.start(
            [*_as_root(), *_dockerd_command(state)],
            stdout=log.fileno(),
            stderr=process.STDOUT,
            env=dict(os.environ, PATH=_search_path()),
        )
    if not _comes_to_answer(address, lambda: started.poll() is None):
        last = log_path.read_text(errors="replace").splitlines()[-8:]
        raise InfrastructureError(
            "the private engine did not come up:\n" + "\n".join(last),
            where=str(log_path),
            fix="read the log; a kernel without overlay or cgroup support cannot run dockerd",
        )
    return address


def is_running(state: Path) -> bool:
    """Whether the private engine is up."""
    return _pid(state) is not None and has_private_sockets(state)


def stop_private(state: Path) -> bool:
    """Stop the private engine and all of its processes; its images stay. False where none was running."""
    pid = _pid(state)
    if pid is not None and not _ended(pid, signal.SIGTERM, _STOP_S):
        _ended(pid, signal.SIGKILL, 5.0)
    if not has_private_sockets(state):
        return False  # absent, or another user's: its content is not to be trusted
    orphan = _process(_run_dir(state) / "x/containerd/containerd.pid", _run_dir(state) / "x/containerd/containerd.toml")
    if orphan is not None:
        _ended(orphan, signal.SIGKILL, 5.0)
    if not _another_runs():
        cgroups, note = Path("/sys/fs/cgroup"), _run_dir(state) / _CREATED
        places = map(Path, note.read_text().splitlines() if note.exists() else ())
        for place in (cgroups / _CGROUP_PARENT, *cgroups.glob(f"*/{_CGROUP_PARENT}"), *places):
            _remove_empty_below(place)
    _remove_tree(_run_dir(state))
    return pid is not None


def remove_private(state: Path) -> None:
    """Stop the private engine and delete its images and all that it keeps."""
    stop_private(state)
    _remove_tree(state)


def private_url(state: Path) -> str:
    """The private engine's URL, whether or not it runs."""
    return f"unix://{_run_dir(state)}/docker.sock"


def has_private_sockets(state: Path) -> bool:
    """Whether the sockets' directory exists and is this user's alone."""
    return is_private(_run_dir(state))


def _run_dir(state: Path) -> Path:
    """The directory of sockets and pid file: below the state, or a short private one where that path is too long."""
    inside = state.absolute() / "run"
    if len(os.fsencode(inside)) <= 107 - _SOCKET_ROOM:
        return inside
    digest = sha256(os.fsencode(inside))[:8]
    runtime_dir = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"))
    short = runtime_dir / f"gpu-runner-{digest}"
    if is_private(runtime_dir) and len(os.fsencode(short)) <= 107 - _SOCKET_ROOM:
        return short
    return Path(tempfile.gettempdir()) / f"gpu-runner-{os.getuid()}-{digest}"


def _make_private(directory: Path) -> None:
    """Create a directory that only this user can write to. In /tmp another user may have created the name first."""
    with suppress(FileExistsError):
        directory.mkdir(parents=True, mode=0o700)
    if not is_private(directory):
        raise RefusedError(
            "the private engine's sockets would lie in a directory that other users may change",
            where=str(directory),
            fix="remove it, or set XDG_RUNTIME_DIR or TMPDIR to a private directory with a short path",
        )


def _dockerd_command(state: Path) -> list[str]:
    run_dir = _run_dir(state)
    # The script only mounts; every path comes in as an argument. Older daemons write a key into /etc/docker.
    script = (
        "set -e; own=$1; shift; "
        "if [ -d /etc/docker ]; then mount -t tmpfs -o mode=0755 tmpfs /etc/docker; fi; "
        "while [ $1 != -- ]; do "
        'mkdir -p "$1" "$own$1"; mount --bind "$own$1" "$1"; shift; done; shift; '
        'exec dockerd "$@"'
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(run_dir / "own")]
    command += [*map(str, _FIXED_PLACES), "--"]
    command += ["--host", private_url(state), "--group", str(os.getgid())]
    command += ["--data-root", str(state.absolute() / "data"), "--exec-root", str(run_dir / "x")]
    command += ["--pidfile", str(run_dir / "dockerd.pid"), "--cgroup-parent", f"/{_CGROUP_PARENT}"]
    command += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    command += ["--containerd-namespace", _NAMESPACE, "--containerd-plugins-namespace", f"{_NAMESPACE}-plugins"]
    return command


def _another_runs() -> bool:
    """Whether a private engine of another clone or user runs: they share cgroup parent and fixed places."""
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = cmdline.read_bytes().split(b"\0")
            if command[0].endswith(b"dockerd") and _NAMESPACE.encode() in command:
                return True
    return False


def _search_path() -> str:
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"


def _as_root() -> list[str]:
    """The prefix that runs a command as root: none for root, else sudo that must not ask."""
    if os.geteuid() == 0:
        return []
    if process.find("sudo") and process.run(["sudo", "-n", "true"], timeout_s=10, check=False).code == 0:
        return ["sudo", "-n"]
    raise RefusedError(
        "a private engine needs root",
        fix="run as root, allow sudo without a password, or name an engine with --engine URL",
    )


def _pid(state: Path) -> int | None:
    """The running private engine's process id."""
    if not has_private_sockets(state):
        return None
    return _process(_run_dir(state) / "dockerd.pid", state.absolute() / "data")


def _process(pid_file: Path, word: Path) -> int | None:
    """The process that a pid file names; the file alone proves nothing, ``word`` in its command line does."""
    with suppress(OSError, ValueError):
        pid = int(pid_file.read_text())
        if os.fsencode(word) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    return None


def _comes_to_answer(address: str, goes_on: Callable[[], bool]) -> bool:
    """Whether a starting engine answers; False when it has ended, or after _START_S seconds."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and goes_on():
        with suppress(RunnerError):
            _open_client(address, where=address).close()
            return True
        time.sleep(0.1)
    return False


def _ended(pid: int, number: signal.Signals, limit_s: float) -> bool:
    """Whether a process has ended that many seconds after a signal."""
    try:
        os.kill(pid, number)
    except PermissionError:
        process.run([*_as_root(), "kill", f"-{int(number)}", str(pid)], timeout_s=10, check=False)
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # if it is our child, or it would stay a zombie
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def _remove_empty_below(top: Path) -> None:
    """Remove ``top`` and the directories below it, leaves first (cgroups go this way too); what is in use stays."""
    if top.is_symlink() or not top.is_dir():
        return
    below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    for directory in [*below, top]:
        try:
            directory.rmdir()
        except PermissionError:
            process.run([*_as_root(), "rmdir", str(directory)], timeout_s=10, check=False)
        except OSError:
            continue


def _remove_tree(path: Path) -> None:
    if path.is_symlink() or not path.exists():
        return
    process.run([*_as_root(), "rm", "-rf", "--one-file-system", str(path)], timeout_s=600)
