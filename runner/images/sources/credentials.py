"""Logins of registries, from the files of Docker, Podman and Enroot: read when a registry asks, and kept nowhere.

Docker's and Podman's files (and their credential helpers) are read by docker-py. Enroot's ``.credentials`` is in
netrc's form, one line a machine (Enroot 4.1, doc/cmd/import.md). Netrc knows no ports: Enroot (and curl, for it) sends
a machine's login to whatever listens on any port of it, which may be another user's program. Here a machine without a
port stands for the port of https alone; another one needs a line ``machine HOST:PORT``, which both pass over.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.core.errors import RefusedError

_ENROOT_LINE = re.compile(
    r"^[ \t]*machine\s+(?P<machine>\S+)\s+login\s+(?P<login>\S+)\s+password\s+(?P<password>\S.*?)[ \t]*$", re.MULTILINE
)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))")
# The hub's name in Docker's file.
_HUB = "docker.io"


@dataclass(frozen=True)
class Login:
    """A login for a registry; its secrets are never shown.

    Attributes:
        source: the file it is from, for messages.
        token: an identity token (OAuth2) in the place of a password.
    """

    source: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def find(host: str) -> Login | None:
    """The login for a registry, or for the service that gives out its tokens; Docker's files come first.

    Args:
        host: as in references, with its port; ``docker.io`` for Docker's hub.

    Raises:
        RefusedError: a file or a credential helper is there and cannot be used.
    """
    for path in _docker_files():
        if (found := _of_docker(path, host)) is not None:
            return found
    return _of_enroot(_enroot_file(), host)


def _docker_files() -> Iterator[Path]:
    """Docker's, then Podman's (containers-auth.json(5)), those that exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    named = os.environ.get("REGISTRY_AUTH_FILE")
    places = (
        Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json",
        *([Path(named)] if named else []),
        Path(runtime) / "containers/auth.json",
        _config_home() / "containers/auth.json",
    )
    return (path for path in places if path.is_file())


def _enroot_file() -> Path:
    directory = os.environ.get("ENROOT_CONFIG_PATH")
    return (Path(directory) if directory else _config_home() / "enroot") / ".credentials"


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _of_docker(path: Path, host: str) -> Login | None:
    from docker import auth
    from docker.errors import DockerException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says the same
            found = auth.load_config(str(path)).resolve_authconfig(host)
    except (DockerException, ValueError, OSError) as error:
        raise RefusedError(
            f"the login for {host} cannot be read: {error}",
            where=str(path),
            fix=f"log in again: docker login {host}",
        ) from error
    if not found:
        return None
    token = found.get("IdentityToken") or found.get("identitytoken") or ""
    user = found.get("Username") or found.get("username") or ""
    password = found.get("Password") or found.get("password") or ""
    return Login(str(path), user, password, token) if token or user else None


def _of_enroot(path: Path, host: str) -> Login | None:
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"Enroot's credentials cannot be read: {error}", where=str(path)) from error
    # Enroot's name for the hub is that of its machine.
    names = {"registry-1.docker.io", "auth.docker.io"} if host == _HUB else {host, host.removesuffix(":443")}
    for line in _ENROOT_LINE.finditer(text):
        if line["machine"] in names:
            return Login(str(path), line["login"], _password(line["password"], host, path))
    return None


def _password(text: str, host: str, path: Path) -> str:
    """The password, with Enroot's substitution where it starts with ``$``: variables only, never a command.

    Raises:
        RefusedError: a command, or a variable that is not set.
    """
    if not text.startswith("$"):
        return text
    found = _VARIABLE.fullmatch(text)
    value = os.environ.get(found["braced"] or found["plain"]) if found else None
    if value is None:
        what = "names a variable that is not set" if found else "is a command, and commands of files are not run here"
        raise RefusedError(
            f"the password for {host} {what}",
            where=str(path),
            fix=f"log in with docker login {host} (or podman login), or write the password itself into this file",
        )
    return value
