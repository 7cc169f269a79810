"""Where the packages of a box come from: the host's own Debian mirror where it serves, Debian's elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import msgspec

from runner.core.hide import names_user

DEBIAN = "http://deb.debian.org/debian"
DEBIAN_SECURITY = "http://deb.debian.org/debian-security"
ROLLING = ("unstable", "sid", "testing")  # suites without -updates and -security

_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


class Source(msgspec.Struct, frozen=True):
    """One archive and suite of it."""

    uri: str
    suite: str
    signed_by: str = ""

    @property
    def line(self) -> str:
        """As in sources.list; only the main component is needed."""
        signed = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {signed}{self.uri} {self.suite} main"


def sources(suite: str, host_files: Iterable[str]) -> tuple[Source, ...]:
    """The archives for ``suite``: the host's where it names that suite, else Debian's own.

    Args:
        host_files: contents of the host's apt source files, in either of apt's formats (sources.list(5)).
    """
    wanted = (suite,) if suite in ROLLING else (suite, f"{suite}-updates", f"{suite}-security")
    of_host = [entry for text in host_files for entry in _entries(text) if entry.suite in wanted]
    if any(entry.suite == suite for entry in of_host):
        return tuple(dict.fromkeys(of_host))
    return tuple(Source(DEBIAN_SECURITY if name.endswith("-security") else DEBIAN, name) for name in wanted)


def reach_options(apt_config_dump: str) -> tuple[str, ...]:
    """From the host's ``apt-config dump``: how the archive is reached, and how old it may be.

    These stand on a command line and stay in the root: a proxy with a password is left to ``proxy_variables``.
    """
    wanted = re.compile(r"Acquire::(?:https?::(?:Proxy|CaInfo|Timeout)|Check-(?:Valid-Until|Date)|Retries)\b[^;]*;")
    return tuple(line for line in apt_config_dump.splitlines() if wanted.fullmatch(line) and not names_user(line))


def proxy_variables(apt_config_dump: str) -> dict[str, str]:
    """The host's proxies that hold a password, as the variables that apt reads where its options name none."""
    found = re.findall(r'^Acquire::(https?)::Proxy "([^"]*)";$', apt_config_dump, re.MULTILINE)
    return {f"{scheme}_proxy": url for scheme, url in found if names_user(url)}


def _entries(text: str) -> Iterator[Source]:
    """Debian's own archives among the entries of one source file; third parties have other paths or keys."""
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if re.search(r"^Types:", body, re.MULTILINE):
        found = (entry for stanza in re.split(r"\n\s*\n", body) for entry in _stanza(stanza))
    else:
        found = (entry for line in body.splitlines() for entry in _one_line(line))
    for uri, suite, components, signed_by in found:
        is_debian = urlsplit(uri).path.rstrip("/").endswith(("/debian", "/debian-security"))
        usable = is_debian and "main" in components and not names_user(uri)
        if usable and (not signed_by or "debian-archive" in signed_by):
            yield Source(uri.rstrip("/"), suite, signed_by)


def _stanza(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    fields = {
        name.lower(): value.split()
        for name, value in re.findall(r"^([\w-]+):((?:.*(?:\n[ \t].*)*))$", text, re.MULTILINE)
    }
    if "deb" not in fields.get("types", []) or fields.get("enabled") == ["no"]:
        return
    for uri in fields.get("uris", []):
        for suite in fields.get("suites", []):
            yield uri, suite, fields.get("components", []), " ".join(fields.get("signed-by", []))


def _one_line(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    match = _ONE_LINE.match(text.strip())
    if match:
        options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
        yield match["uri"], match["suite"], match["components"].split(), options.get("signed-by", "")
