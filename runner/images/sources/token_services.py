"""Which host may get a registry's login: the registry, and the token service that belongs to it.

A registry names its token service itself, as the realm of its challenge. Were that believed, any registry could have a
login sent anywhere, or have a token made for it by a service that knows the user.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from runner.core import paths, strict_yaml
from runner.model.site import AtRegistry, UserConfig

# The token services of two registries on hosts of other names: https://distribution.github.io/distribution/spec/auth/
# (Docker's hub), https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md (NGC).
FIXED = {"docker.io": "auth.docker.io", "nvcr.io": "authn.nvidia.com"}
# Nothing that two readers of an address could take for different hosts: no user name, no backslash, ASCII only.
_REALM = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
_OURS = ("scope", "service", "account", "client_id", "grant_type", "refresh_token", "offline_token")


@dataclass(frozen=True)
class TokenService:
    """Where a registry says that tokens are given out.

    Attributes:
        url: to ask at, with no parameters but its own. host: ``HOST[:PORT]`` in lower case, without the usual port.
        encrypted: whether it speaks TLS.
    """

    url: str
    host: str
    encrypted: bool


def parse(realm: str) -> TokenService | None:
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

    Args:
        registry: ``HOST[:PORT]`` as in references; ``docker.io`` for Docker's hub.

    Raises:
        UsageError: the user's configuration is invalid.
    """
    return host_of(service.host) == host_of(registry) or is_named(service, registry)


def is_named(service: TokenService, registry: str) -> bool:
    """Whether it is a fixed pair, or one of the user's: only then is a login that was kept for the service used.

    On another port of the same host another program may answer: what the service gives those who log in there is not
    for it.

    Raises:
        UsageError: the user's configuration is invalid.
    """
    return FIXED.get(registry.lower()) == service.host or _configured(registry) == service.host


def configuration(service: TokenService, registry: str) -> str:
    """The lines of the user's configuration that let the service have the registry's login."""
    return f'registries: {{"{registry}": {{token_service: "{service.host}"}}}}'


def host_of(netloc: str) -> str:
    """The host of ``HOST[:PORT]``, in lower case; empty where there is none."""
    return urlsplit(f"//{netloc}").hostname or ""


def is_loopback(netloc: str) -> bool:
    """Whether ``HOST[:PORT]`` is this machine itself."""
    try:
        return ipaddress.ip_address(host_of(netloc)).is_loopback
    except ValueError:
        return host_of(netloc) == "localhost"


def _configured(registry: str) -> str:
    path = paths.config_file()
    registries = strict_yaml.load(path, UserConfig).registries if path.exists() else {}
    named = {name.lower(): facts for name, facts in registries.items()}
    return named.get(registry.lower(), AtRegistry()).token_service.lower().removesuffix(":443")
