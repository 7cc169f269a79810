"""Where the packages of a box come from: the host's own Debian mirror where it serves, Debian's elsewhere."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from runner.box.config import SUITES
from runner.core import paths, process
from runner.core.errors import InfrastructureError, RefusedError
from runner.core.files import sha256
from runner.core.hide import names_user
from runner.core.lock import locked

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
    proxies = re.findall(r'^Acquire::(https?)::Proxy "([^"]*)";$', apt_config_dump, re.MULTILINE)
    return {f"{scheme}_proxy": url for scheme, url in proxies if names_user(url)}


def _entries(text: str) -> Iterator[Source]:
    """Debian's own archives among the entries of one source file; third parties have other paths or keys."""
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if re.search(r"^Types:", body, re.MULTILINE):
        entries = (entry for stanza in re.split(r"\n\s*\n", body) for entry in _stanza(stanza))
    else:
        entries = (entry for line in body.splitlines() for entry in _one_line(line))
    for uri, suite, components, signed_by in entries:
        is_debian = urlsplit(uri).path.rstrip("/").endswith(("/debian", "/debian-security"))
        usable = is_debian and "main" in components and not names_user(uri)
        if usable and (not signed_by or "debian-archive" in signed_by):
            yield Source(uri.rstrip("/"), suite, signed_by)


def _stanza(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    pairs = re.findall(r"^([\w-]+):((?:.*(?:\n[ \t].*)*))$", text, re.MULTILINE)
    fields = {name.lower(): value.split() for name, value in pairs}
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


# What a node has to have: Slurm, its authentication, and PMIx for srun --mpi=pmix; the container runtime and what
# mounts its images; what Enroot calls; an interpreter for programs outside a container; the tools that the box's
# own start uses.
PACKAGES = (
    *("slurm-wlm", "munge", "libpmix2"),
    *("charliecloud-runtime", "squashfuse", "fuse3"),
    *("squashfs-tools", "bsdextrautils"),
    *("python3", "python3-yaml"),
    *("hostname", "iproute2", "procps", "util-linux", "ca-certificates"),
)
# What one suite alone has.
MORE_PACKAGES = {"unstable": ("apptainer",)}
# A box needs no manuals, and half of the files would be translations.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")

_RECIPE = 1  # a change of how a root is made that the names above do not show
_TIMEOUT_S = 1800


class BoxRoot(msgspec.Struct, frozen=True):
    """A pristine root in the cache.

    Attributes:
        path: the root directory; never written to by a box.
        version: what its Slurm calls itself, for example ``22.05.8``.
    """

    path: Path
    version: str


def key(slurm: str, machine: str, as_root: bool, more: tuple[str, ...] = ()) -> str:
    """Name of the root in the cache: the suite and a hash of what goes into it."""
    inputs = msgspec.json.encode((_RECIPE, SUITES[slurm], packages(SUITES[slurm], more), LEFT_OUT, machine, as_root))
    return f"{SUITES[slurm]}-{sha256(inputs)[:16]}"


def packages(suite: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The Debian packages of a root of that suite, with those that one box wants besides."""
    return (*PACKAGES, *MORE_PACKAGES.get(suite, ()), *more)


def location(slurm: str, more: tuple[str, ...] = ()) -> Path:
    """Where the root of that Slurm and those further packages lies, once made."""
    return paths.cache("box-roots") / key(slurm, platform.machine(), os.geteuid() == 0, more)


def ensure(slurm: str, say: Callable[[str], None], *, more: tuple[str, ...] = (), cold: bool = False) -> BoxRoot:
    """The root with that Slurm; made now (about a minute, 200 MB to fetch) unless the cache has it.

    Args:
        more: Debian packages besides those of every root.
        cold: make it anew even if the cache has it; nothing may run from the old one.

    Raises:
        RefusedError: mmdebstrap is missing.
        InfrastructureError: the packages could not be fetched or unpacked.
    """
    final = location(slurm, more)
    facts = final / "facts.json"
    if facts.exists() and not cold:
        return _read(final)
    paths.ensure_directory(final.parent)
    with locked(Path(f"{final}.lock"), say):
        if facts.exists() and not cold:
            return _read(final)
        fresh = final.with_name(f"{final.name}.new-{os.getpid()}")
        try:
            _make(slurm, more, fresh, say)
            if final.exists():
                shutil.rmtree(final)
            fresh.rename(final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return _read(final)


def mmdebstrap_argv(
    suite: str, include: tuple[str, ...], archive: Path, mode: str, entries: tuple[Source, ...],
    apt_options: tuple[str, ...],
) -> list[str]:  # fmt: skip
    """The command that makes the root's archive; as an ordinary user in a user namespace (``unshare``)."""
    return [
        "mmdebstrap",
        f"--mode={mode}",
        "--variant=minbase",
        f"--include={','.join(include)}",
        '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={option.rstrip(';')}" for option in apt_options),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        suite,
        str(archive),
        *(entry.line for entry in entries),
    ]


def _make(slurm: str, more: tuple[str, ...], fresh: Path, say: Callable[[str], None]) -> None:
    suite = SUITES[slurm]
    root = fresh / "root"
    root.mkdir(parents=True)
    archive = fresh / "root.tar"
    say(f"making the root of the box: Debian {suite} with Slurm {slurm} (about a minute, kept for later)")
    mode = "root" if os.geteuid() == 0 else "unshare"
    apt_config = process.run(["apt-config", "dump"], timeout_s=30).out if process.find("apt-config") else ""
    archives, options = sources(suite, _host_files()), reach_options(apt_config)
    command = mmdebstrap_argv(suite, packages(suite, more), archive, mode, archives, options)
    output: list[str] = []

    def keep(line: str) -> None:
        output.append(line)
        if line.startswith("I: "):
            say(line[3:])

    try:
        env = {**os.environ, **proxy_variables(apt_config)}
        code = process.stream(command, keep, timeout_s=_TIMEOUT_S, env=env)
    except process.CommandNotFoundError as error:
        what = "mmdebstrap is missing: it makes the root of the box"
        raise RefusedError(what, where="PATH", fix="apt-get install mmdebstrap") from error
    if code != 0:
        telling = [line for line in output if line.startswith(("E: ", "Err:", "W: "))] or output
        what = f"mmdebstrap failed with exit code {code}: " + "\n".join(telling[-8:])
        fix = "check that the Debian mirror can be reached"
        fix += "" if mode == "root" else " and that user namespaces work for you (package uidmap, /etc/subuid)"
        raise InfrastructureError(what, where=" ".join(command), fix=fix)
    # Unpacked as ours, device files left out: a box binds its devices, and an ordinary user could make none.
    process.run(
        ["tar", "-xf", archive, "-C", root, "--no-same-owner", "--exclude=./dev/*", "--delay-directory-restore"],
        timeout_s=_TIMEOUT_S,
    )
    archive.unlink()
    # Slurm's plugin loads the name that only the development package brings.
    for library in root.glob("usr/lib/*/pmix2/lib/libpmix.so.2"):
        library.with_name("libpmix.so").symlink_to(library.name)
    # As root, Apptainer would ask for every capability there is, and a machine may have withheld some from its own.
    apptainer = root / "etc/apptainer/apptainer.conf"
    if apptainer.exists():
        every, none = "\nroot default capabilities = full\n", "\nroot default capabilities = no\n"
        apptainer.write_text(apptainer.read_text().replace(every, none))
    facts = {"slurm": slurm, "version": slurm_version((root / "var/lib/dpkg/status").read_text())}
    if not facts["version"].startswith(f"{slurm}."):
        say(f"note: Debian {suite} has Slurm {facts['version']} by now, not {slurm}")
    (fresh / "facts.json").write_bytes(msgspec.json.encode(facts))


def slurm_version(dpkg_status: str) -> str:
    """The upstream version of the installed slurm-client (deb-version(7): without epoch and revision)."""
    stanza = next(part for part in dpkg_status.split("\n\n") if part.startswith("Package: slurm-client\n"))
    full = next(line for line in stanza.splitlines() if line.startswith("Version: ")).removeprefix("Version: ")
    return full.rpartition(":")[2].rpartition("-")[0]


def _read(final: Path) -> BoxRoot:
    facts = msgspec.json.decode((final / "facts.json").read_bytes(), type=dict[str, str])
    return BoxRoot(final / "root", facts["version"])


def _host_files() -> list[str]:
    folder = Path("/etc/apt")
    names = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    return [name.read_text() for name in names if name.suffix in (".list", ".sources") and name.is_file()]
