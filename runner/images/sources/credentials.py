"""Logins at registries: where the user keeps them, and which hosts may get them.

A registry names its token service itself, as the realm of its challenge. Were that believed, any registry could have a
login sent anywhere, or have a token made for it by a service that knows the user.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from runner.core import files, paths, process, strict_yaml
from runner.core.errors import RefusedError, RunnerError
from runner.core.loopback import host_of
from runner.model.site import UserConfig

_ENROOT_LINE = re.compile(
    r"^[ \t]*machine\s+(?P<machine>\S+)\s+login\s+(?P<login>\S+)\s+password\s+(?P<password>\S.*?)[ \t]*$", re.MULTILINE
)
_HELPER_S = 60.0  # a person may have to type a passphrase
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<plain>\w+))")


@dataclass(frozen=True)
class Login:
    """A login for a registry; its secrets are never shown. source: the file it is from, for messages. token: an
    identity token (OAuth2) in the place of a password.
    """

    source: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


class _DockerFile(msgspec.Struct, rename="camel"):
    auths: dict[str, Any] | None = None
    creds_store: str | None = None
    cred_helpers: dict[str, str] | None = None


class _Answer(msgspec.Struct, rename="pascal"):
    username: str
    secret: str


def find(host: str) -> Login | None:
    """The login for a registry, or for the service that gives out its tokens: in Docker's file, then in Podman's
    (containers-auth.json(5)), then in Enroot's. ``host``: as in references, with its port; ``docker.io`` for Docker's
    hub. RefusedError: a file or a credential helper is there and cannot be used.
    """
    config = _named("XDG_CONFIG_HOME", "~/.config")
    named = _named("REGISTRY_AUTH_FILE", "")
    podmans = (
        _named("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}") / "containers/auth.json",
        config / "containers/auth.json",
    )
    places = (
        _named("DOCKER_CONFIG", "~/.docker") / "config.json",
        *([named] if named.is_absolute() else []),
        *(path for path in podmans if path.is_file() and path.stat().st_uid in (0, os.geteuid())),
    )
    for path in places:
        if path.is_file() and (login := _in_docker_file(path, host)) is not None:
            return login
    return _in_enroot_file(_named("ENROOT_CONFIG_PATH", f"{config}/enroot") / ".credentials", host)


def _named(variable: str, otherwise: str) -> Path:
    """What a variable names; a relative path does not count: from here it may lead to another user's file."""
    named = os.environ.get(variable, "")
    return Path(named) if named.startswith("/") else Path(otherwise).expanduser()


def _in_docker_file(path: Path, host: str) -> Login | None:
    from docker.auth import AuthConfig
    from docker.errors import DockerException

    try:
        written = msgspec.json.decode(files.read_bytes(path) or b"{}", type=_DockerFile)
        server = "https://index.docker.io/v1/" if host == "docker.io" else host
        helper = (written.cred_helpers or {}).get(server) or written.creds_store
        if helper and "/" in helper:
            raise ValueError(f"{helper} is no name of a credential helper")
        if helper and (login := _from_helper(f"docker-credential-{helper}", server, path)) is not None:
            return login
        auths = AuthConfig.parse_auth(written.auths or {}, raise_on_error=True)
        entry = AuthConfig({"auths": auths}).resolve_authconfig(host) or {}
    except (DockerException, RunnerError, ValueError, TypeError, OSError) as error:
        what = f"the login for {host} cannot be read: {getattr(error, 'what', error)}"
        raise RefusedError(what, where=str(path), fix=f"log in again: docker login {host}") from error
    user, password, token = (entry.get(name) or "" for name in ("username", "password", "IdentityToken"))
    return Login(str(path), user, password, token) if token or user else None


def _from_helper(program: str, server: str, path: Path) -> Login | None:
    """What a credential helper answers (docker-credential-helpers' protocol); None where it knows no login."""
    done = process.run((program, "get"), timeout_s=_HELPER_S, input_text=server, check=False)
    if done.code != 0:
        if "credentials not found" in done.out:
            return None
        is_login = done.out.lstrip().startswith("{")
        raise process.CommandFailedError(replace(done, out="") if is_login else done)
    answer = msgspec.json.decode(done.out, type=_Answer)
    if answer.username == "<token>":
        return Login(str(path), token=answer.secret)
    return Login(str(path), answer.username, answer.secret) if answer.username else None


def _in_enroot_file(path: Path, host: str) -> Login | None:
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"Enroot's credentials cannot be read: {error}", where=str(path)) from error
    # Enroot's name for the hub is that of its machine.
    names = {"registry-1.docker.io", "auth.docker.io"} if host == "docker.io" else {host, host.removesuffix(":443")}
    for line in _ENROOT_LINE.finditer(text):
        if line["machine"] in names:
            return Login(str(path), line["login"], _password(line["password"], host, path))
    return None


def _password(text: str, host: str, path: Path) -> str:
    """The password, with Enroot's substitution where it starts with ``$``: variables only, never a command."""
    if not text.startswith("$"):
        return text
    match = _VARIABLE.fullmatch(text)
    value = os.environ.get(match["braced"] or match["plain"]) if match else None
    if value is None:
        what = "names a variable that is not set" if match else "is a command, and commands of files are not run here"
        raise RefusedError(
            f"the password for {host} {what}",
            where=str(path),
            fix=f"log in with docker login {host} (or podman login), or write the password itself into this file",
        )
    return value


# The token services of two registries on hosts of other names: https://distribution.github.io/distribution/spec/auth/
# (Docker's hub), https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md (NGC).
_FIXED = {"docker.io": "auth.docker.io", "nvcr.io": "authn.nvidia.com"}
# Nothing that two readers of an address could take for different hosts: no user name, no backslash, ASCII only.
_REALM = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
_OURS = ("scope", "service", "account", "client_id", "grant_type", "refresh_token", "offline_token")


@dataclass(frozen=True)
class TokenService:
    """Where a registry says that tokens are given out. url: with no parameters but its own. host: ``HOST[:PORT]`` in
    lower case, without the usual port. encrypted: whether it speaks TLS.
    """

    url: str
    host: str
    encrypted: bool


def parse_realm(realm: str) -> TokenService | None:
    """The token service of a challenge's realm; None where that is no plain address of one.

    What the realm itself says of scope or user is dropped: only the repository's own content is asked for.
    """
    match = _REALM.fullmatch(realm)
    if match is None or "\\" in realm or "#" in realm:
        return None
    scheme, host, port = match["scheme"].lower(), match["host"].lower(), match["port"]
    usual = "443" if scheme == "https" else "80"
    host += f":{int(port)}" if port and int(port) != int(usual) else ""
    parts = urlsplit(match["path"] or "/")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name.lower() not in _OURS])
    return TokenService(f"{scheme}://{host}{parts.path}{'?' + query if query else ''}", host, scheme == "https")


def belongs(service: TokenService, registry: str) -> bool:
    """Whether a registry's login may be sent to this service: the same host, a fixed pair, or as the user says.
    registry: ``HOST[:PORT]`` as in references; ``docker.io`` for Docker's hub.
    """
    return host_of(service.host) == host_of(registry) or is_named(service, registry)


def is_named(service: TokenService, registry: str) -> bool:
    """Whether it is a fixed pair, or one of the user's: only then is a login that was kept for the service used.

    On another port of the same host another program may answer: what the service gives those who log in there is not
    for it.
    """
    registries = strict_yaml.layered(paths.config_files(), UserConfig, paths.check_settings).registries
    named = {name.lower(): facts.token_service.lower().removesuffix(":443") for name, facts in registries.items()}
    return service.host in (_FIXED.get(registry.lower()), named.get(registry.lower(), ""))


def configuration(service: TokenService, registry: str) -> str:
    """The lines of the user's configuration that let the service have the registry's login."""
    return f'registries: {{"{registry}": {{token_service: "{service.host}"}}}}'
