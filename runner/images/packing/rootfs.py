"""An exported root file system on its way into a squashfs: what is dropped, what is put in.

The stream is passed on block by block, bit for bit what the engine sent; what Enroot's import puts into a root is
described in facts/pyxis-and-enroot (docker.sh of 4.1).
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from runner.core.errors import RefusedError
from runner.images.packing.tarstream import BLOCK, END, Member, TarStream, entry, normal, retimed, spelled, timely

# An engine makes these empty in every container. As empty files they serve as mount points for the host's own,
# which a read-only root needs; whatever an engine wrote into them is not the image's.
_MOUNT_POINT_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
LARGEST_CAPTURED = 1 << 20  # bytes; what is larger, or a hole of terabytes, is none of ours
DROPPED = frozenset({".dockerenv", "run/.containerenv"})
# What an engine makes in every container that lacks it (Docker: daemon/initlayer); a base from elsewhere gets it too.
_MADE_BY_ENGINES = ("dev", "proc", "sys")
_LINKS = (("etc/mtab", "/proc/mounts"),)
_RC_LOCAL = b"""\
# This file is sourced by /etc/rc when the container starts.
# It can be used to manipulate the entrypoint or the command of the container.
"""


@dataclass(frozen=True)
class Config:
    """How an image's configuration starts a container. workdir: empty means ``/``. volumes: paths of declared ones."""

    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Injected:
    """A file put into the root."""

    name: str
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Additions:
    """All that a finished root has beyond its image, whichever way it is packed.

    Attributes:
        files: replace whatever the image has under their names, sorted as a directory walk meets them.
        directories: made where the image lacks them, parents first. links: (name, target), likewise.
        timed: names whose time is ``mtime``: what we or the engine may have made or written into.
        mtime: seconds since the epoch.
    """

    files: tuple[Injected, ...]
    directories: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    timed: frozenset[str]
    mtime: int


@dataclass
class Passed:
    """What the packed root holds; complete once the stream has ended. names: every path passed on or put in, relative,
    without a trailing slash; the root itself left out. captured: contents of the requested files. devices: paths of
    device files, which are left out: only root could unpack them. sha256: of the file, hex, where it was taken from
    what was written.
    """

    names: set[str] = field(default_factory=set)
    captured: dict[str, bytes] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    sha256: str = ""

    def entries(self) -> int:
        """Entries that the finished file system holds, the root left out: parents that no entry names count too."""
        return len(with_parents(self.names))


def additions(config: Config, directories: Iterable[str], mtime: int) -> Additions:
    """What is put into the root of an image with this configuration: start-up files as Enroot's import writes them,
    Charliecloud's environment file, and ``directories``.
    """
    texts = {
        "etc/rc": rc_file(config),
        "etc/environment": environment_file(config.environment),
        "etc/fstab": fstab_file(config.volumes),
        "ch/environment": charliecloud_environment(config.environment),
    }
    contents = {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}
    contents |= {"etc/rc.local": _RC_LOCAL, **dict.fromkeys(_MOUNT_POINT_FILES, b"")}
    names = sorted(contents, key=walk_order)
    files = tuple(Injected(name, contents[name], 0o755 if name == "etc/rc" else 0o644) for name in names)
    paths = (*directories, *_MADE_BY_ENGINES, config.workdir, *config.volumes)
    wanted = {_inside(path) for path in paths} - {""}
    wanted |= {parent for name in [*wanted, *names] for parent in parents(name)}
    timed = frozenset([*wanted, *names, *(name for name, _ in _LINKS), "", "run"])
    return Additions(files, tuple(sorted(wanted, key=walk_order)), _LINKS, timed, mtime)


def _inside(path: str) -> str:
    """A path of an image's configuration, relative to the root: as in a chroot, none leads out of it."""
    return normal(posixpath.normpath(f"/{path}"))


def walk_order(name: str) -> tuple[bytes, ...]:
    """Sort key of a path: bytes of its parts, the order in which engines and mksquashfs walk a tree."""
    return tuple(os.fsencode(part) for part in name.split("/"))


def parents(name: str) -> Iterator[str]:
    """The directories above a relative path, outermost first: ``a``, ``a/b`` of ``a/b/c``."""
    return (name[:cut] for cut in range(len(name)) if name[cut] == "/")


def with_parents(names: Iterable[str]) -> set[str]:
    """The names and all directories above them."""
    known = {*names}
    for name in [*known]:
        while (name := name.rpartition("/")[0]) and name not in known:
            known.add(name)
    return known


def rc_file(config: Config) -> str:
    """``/etc/rc``: labels as comments, the working directory, then entry point and command (default /bin/sh)."""

    def quoted(words: Iterable[str]) -> list[str]:
        return ["'" + word.replace("'", "'\\''") + "'" for word in words]

    workdir = config.workdir or "/"
    for special in ("\\", '"', "$", "`"):
        workdir = workdir.replace(special, "\\" + special)
    entrypoint = quoted(config.entrypoint)
    command = quoted(config.command or (() if config.entrypoint else ("/bin/sh",)))
    lines = [f"# {name} {value}".replace("\n", " ").replace("\r", " ") for name, value in config.labels.items()]
    lines += [""] if lines else []
    lines += [
        f'mkdir -p "{workdir}" 2> /dev/null',
        f'cd "{workdir}" && unset OLDPWD || exit 1',
        "",
        "if [ -s /etc/rc.local ]; then",
        "    . /etc/rc.local",
        "fi",
        "",
        "if [ $# -gt 0 ]; then",
        "    " + " ".join(["exec", *entrypoint, '"$@"']),
        "else",
        "    " + " ".join(["exec", *entrypoint, *command]),
        "fi",
    ]
    return "\n".join(lines) + "\n"


def environment_file(environment: Mapping[str, str]) -> str:
    """``/etc/environment``: ``NAME=value`` lines, values unchanged; one with a newline cannot be expressed."""
    left_out = frozenset(omitted(environment))
    return "".join(f"{name}={value}\n" for name, value in environment.items() if name not in left_out)


def charliecloud_environment(environment: Mapping[str, str]) -> str:
    """``/ch/environment`` (ch-run --set-env): the same, but it takes off a pair of single quotes around a value."""
    return environment_file(
        {
            name: f"'{value}'" if len(value) > 1 and value[0] == value[-1] == "'" else value
            for name, value in environment.items()
        }
    )


def omitted(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that hold a newline."""
    return tuple(name for name, value in environment.items() if "\n" in name + value)


def fstab_file(volumes: Iterable[str]) -> str:
    """``/etc/fstab``: declared volumes as bind mounts of themselves; blanks and newlines escaped as fstab(5) says."""
    escapes = str.maketrans({letter: f"\\{ord(letter):03o}" for letter in "\\ \t\n"})
    escaped = ["/" + name.translate(escapes) for name in sorted({_inside(volume) for volume in volumes} - {""})]
    return "".join(
        f"${{ENROOT_ROOTFS}}{volume} {volume} none x-create=dir,bind,rw,nosuid,nodev\n" for volume in escaped
    )


def filtered(source: IO[bytes], added: Additions, passed: Passed, *, capture: Collection[str] = ()) -> Iterator[bytes]:
    """Blocks of the tar that is squashed: ``source`` without the engine's artefacts, and what is put in.

    Files are put in where a sorted walk would meet them: mksquashfs writes data in the order of the stream, so a
    sorted source gives the bytes that packing the tree itself gives.

    Args:
        source: the engine's export, read to its end. passed: filled while the blocks are taken.
        capture: names of small files whose contents are kept in ``passed``, if they have at most LARGEST_CAPTURED.
    """
    waiting = deque(added.files)
    replaced = frozenset(file.name for file in added.files)
    not_directories: set[str] = set()

    def put_in(file: Injected) -> Iterator[bytes]:
        passed.names.add(file.name)
        yield entry(file.name, tarfile.REGTYPE, file.mode, added.mtime, len(file.content))
        yield file.content + b"\0" * (-len(file.content) % BLOCK)

    yield entry("./", tarfile.DIRTYPE, 0o755, added.mtime)
    stream = TarStream(source, "the engine's export")
    for member in stream:
        while waiting and walk_order(waiting[0].name) < walk_order(member.path):
            yield from put_in(waiting.popleft())
        _check_free(member, replaced)
        if member.kind != tarfile.DIRTYPE:
            not_directories.add(member.path)
        is_artefact = member.path in DROPPED or member.path.startswith("dev/")
        is_link = member.kind == tarfile.LNKTYPE and normal(member.link) in passed.devices
        if not is_artefact and (is_link or member.kind in (tarfile.CHRTYPE, tarfile.BLKTYPE)):
            passed.devices.add(member.path)
        keep = bool(member.path) and not is_artefact and member.path not in replaced | passed.devices
        if keep:
            passed.names.add(member.path)
            head = retimed(member, added.mtime) if member.path in added.timed else member.head
            yield spelled(member, timely(head))
        kept = io.BytesIO() if member.path in capture and member.size <= LARGEST_CAPTURED else None
        for block in stream.data(member):
            if kept is not None:
                kept.write(block)
            if keep:
                yield block
        if kept is not None:
            passed.captured[member.path] = kept.getvalue()[: member.size]
    for file in waiting:
        yield from put_in(file)
    yield from _lacking(added, passed, not_directories)
    yield END


def _check_free(member: Member, replaced: frozenset[str]) -> None:
    """Refuse a directory in a file's place, anything else in a directory's, and a hard link to what is replaced."""
    if member.kind == tarfile.DIRTYPE:
        wrong = member.path if member.path in replaced else ""
    elif member.kind == tarfile.LNKTYPE and member.path not in replaced and normal(member.link) in replaced:
        wrong = normal(member.link)
    else:
        wrong = member.path if any(member.path in parents(name) for name in replaced) else ""
    if wrong:
        raise obstructed(wrong)


def _lacking(added: Additions, passed: Passed, not_directories: Collection[str]) -> Iterator[bytes]:
    """Directories and links that the stream did not bring; none below a link or a file."""
    for directory in added.directories:
        if directory not in passed.names and not any(parent in not_directories for parent in parents(directory)):
            passed.names.add(directory)
            yield entry(directory, tarfile.DIRTYPE, 0o755, added.mtime)
    for name, target in added.links:
        if name not in passed.names:
            passed.names.add(name)
            yield entry(name, tarfile.SYMTYPE, 0o777, added.mtime, link=target)


def obstructed(name: str) -> RefusedError:
    """The image has something else where a start-up file or its directory belongs, or shares that file."""
    return RefusedError(
        f"the image's /{name} is in the way of the start-up files that Enroot and Charliecloud need",
        where=f"/{name}",
        fix=f"make /{name} an ordinary file or directory in the image, with no other link to it",
    )
