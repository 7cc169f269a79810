"""An exported root file system on its way into a squashfs: what is dropped, what is put in.

The stream is passed on block by block: owners, modes, links, devices, long names, extended attributes and file
capabilities stay bit for bit what the engine sent. Formats: POSIX ustar with pax (``x``, ``g``) and GNU (``L``,
``K``) prefixes; what Enroot's import puts into a root is described in facts/pyxis-and-enroot (docker.sh of 4.1).
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

from runner.errors import InfrastructureError, RefusedError

_BLOCK = 512
_CHUNK = 1 << 20
# An engine makes these empty in every container. As empty files they serve as mount points for the host's own,
# which a read-only root needs; whatever an engine wrote into them is not the image's.
MOUNT_POINT_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
DROPPED = frozenset({".dockerenv", "run/.containerenv"})
# What an engine makes in every container that lacks it (Docker: daemon/initlayer); a base from elsewhere gets it too.
_MADE_BY_ENGINES = ("dev", "proc", "sys")
_LINKS = (("etc/mtab", "/proc/mounts"),)


@dataclass(frozen=True)
class Config:
    """What an image's configuration says about starting a container.

    Attributes:
        environment: variables in their order. workdir: empty means ``/``. volumes: paths of declared volumes.
    """

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
    """What went through, known once the stream has ended.

    Attributes:
        names: every path passed on or put in, relative, without a trailing slash; the root itself left out.
        captured: contents of the files asked for.
    """

    names: set[str] = field(default_factory=set)
    captured: dict[str, bytes] = field(default_factory=dict)

    def entries(self) -> int:
        """Entries that the finished file system holds, the root left out: parents that no entry names count too."""
        return len(self.every())

    def every(self) -> set[str]:
        """Every path of the finished file system, the root left out."""
        return self.names.union(parent for name in self.names for parent in parents(name))


def injected_files(config: Config) -> tuple[Injected, ...]:
    """Start-up files as Enroot's import writes them, and Charliecloud's environment file."""
    environment = environment_file(config.environment).encode("utf-8", "surrogateescape")
    return (
        Injected("etc/rc", rc_file(config).encode("utf-8", "surrogateescape"), 0o755),
        Injected(
            "etc/rc.local",
            b"# This file is sourced by /etc/rc when the container starts.\n"
            b"# It can be used to manipulate the entrypoint or the command of the container.\n",
        ),
        Injected("etc/environment", environment),
        Injected("etc/fstab", fstab_file(config.volumes).encode()),
        Injected("ch/environment", charliecloud_environment(config.environment).encode("utf-8", "surrogateescape")),
        *(Injected(name, b"") for name in MOUNT_POINT_FILES),
    )


def additions(config: Config, directories: Iterable[str], mtime: int) -> Additions:
    """What is put into the root of an image with this configuration; ``directories`` are those that we want."""
    files = tuple(sorted(injected_files(config), key=lambda file: order(file.name)))
    paths = (_normal(path) for path in (*directories, *_MADE_BY_ENGINES, config.workdir, *config.volumes))
    wanted = {path for path in paths if path}
    wanted |= {parent for name in [*wanted, *(file.name for file in files)] for parent in parents(name)}
    timed = frozenset([*wanted, *(file.name for file in files), *(name for name, _ in _LINKS), "", "run"])
    return Additions(files, tuple(sorted(wanted, key=order)), _LINKS, timed, mtime)


def order(name: str) -> tuple[bytes, ...]:
    """Sort key of a path: bytes of its parts, the order in which engines and mksquashfs walk a tree."""
    return tuple(os.fsencode(part) for part in name.split("/"))


def parents(name: str) -> Iterator[str]:
    """The directories above a relative path, outermost first: ``a``, ``a/b`` of ``a/b/c``."""
    return (name[:cut] for cut in range(len(name)) if name[cut] == "/")


def rc_file(config: Config) -> str:
    """``/etc/rc``: labels as comments, the working directory, then entry point and command (default /bin/sh)."""
    command = config.command or (() if config.entrypoint else ("/bin/sh",))
    workdir = _double_quoted(config.workdir or "/")
    entry = [_single_quoted(word) for word in config.entrypoint]
    lines = [f"# {name} {value}".replace("\n", " ").replace("\r", " ") for name, value in config.labels.items()]
    lines += [""] if lines else []
    lines += [
        f"mkdir -p {workdir} 2> /dev/null",
        f"cd {workdir} && unset OLDPWD || exit 1",
        "",
        "if [ -s /etc/rc.local ]; then",
        "    . /etc/rc.local",
        "fi",
        "",
        "if [ $# -gt 0 ]; then",
        "    " + " ".join(["exec", *entry, '"$@"']),
        "else",
        "    " + " ".join(["exec", *entry, *map(_single_quoted, command)]),
        "fi",
    ]
    return "\n".join(lines) + "\n"


def environment_file(environment: Mapping[str, str]) -> str:
    """``/etc/environment``: ``NAME=value`` lines, values as they are; one with a newline cannot be said."""
    return "".join(f"{name}={value}\n" for name, value in environment.items() if name not in omitted(environment))


def charliecloud_environment(environment: Mapping[str, str]) -> str:
    """``/ch/environment`` (ch-run --set-env): the same, but it takes off a pair of single quotes around a value."""
    lines = []
    for name, value in environment.items():
        if name not in omitted(environment):
            quoted = f"'{value}'" if len(value) > 1 and value[0] == value[-1] == "'" else value
            lines.append(f"{name}={quoted}\n")
    return "".join(lines)


def omitted(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables whose value holds a newline."""
    return tuple(name for name, value in environment.items() if "\n" in value)


def fstab_file(volumes: Iterable[str]) -> str:
    """``/etc/fstab``: declared volumes as bind mounts of themselves; blanks escaped as fstab(5) says."""
    escaped = [volume.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011") for volume in sorted(volumes)]
    return "".join(
        f"${{ENROOT_ROOTFS}}{volume} {volume} none x-create=dir,bind,rw,nosuid,nodev\n" for volume in escaped
    )


def filtered(
    source: IO[bytes], added: Additions, passed: Passed, *, capture: Collection[str] = ()
) -> Iterator[bytes]:
    """Blocks of the tar that is squashed: ``source`` without the engine's artefacts, and what is put in.

    Files are put in where a sorted walk would meet them: mksquashfs writes data in the order of the stream, so a
    sorted source gives the bytes that packing the tree itself gives.

    Args:
        source: the engine's export, read to its end.
        passed: filled while the blocks are taken.
        capture: names of small files whose contents are kept in ``passed``.

    Raises:
        InfrastructureError: the stream is no tar, or ends too early.
        RefusedError: the image has something in the way of what is put in.
    """
    waiting = deque(added.files)
    replaced = frozenset(file.name for file in added.files)
    not_directories: set[str] = set()
    yield _entry("./", tarfile.DIRTYPE, 0o755, added.mtime)
    while (member := _next_member(source)) is not None:
        while waiting and order(waiting[0].name) < order(member.name):
            yield from _put_in(waiting.popleft(), passed, added.mtime)
        _check_free(member, replaced)
        if member.kind != tarfile.DIRTYPE:
            not_directories.add(member.name)
        keep = bool(member.name) and not _is_artefact(member.name) and member.name not in replaced
        if keep:
            passed.names.add(member.name)
            yield member.retimed(added.mtime) if member.name in added.timed else member.head
        kept = io.BytesIO() if member.name in capture else None
        for block in _data(source, member.size):
            if kept is not None:
                kept.write(block)
            if keep:
                yield block
        if kept is not None:
            passed.captured[member.name] = kept.getvalue()[: member.size]
    for file in waiting:
        yield from _put_in(file, passed, added.mtime)
    yield from _lacking(added, passed, not_directories)
    yield b"\0" * (2 * _BLOCK)


def _check_free(member: _Member, replaced: frozenset[str]) -> None:
    """Refuse a directory in a file's place, anything else in a directory's, and a hard link to what is replaced."""
    if member.kind == tarfile.DIRTYPE:
        wrong = member.name if member.name in replaced else ""
    elif member.kind == tarfile.LNKTYPE and member.name not in replaced and _normal(member.target) in replaced:
        wrong = _normal(member.target)
    else:
        wrong = member.name if any(member.name in parents(name) for name in replaced) else ""
    if wrong:
        raise obstructed(wrong)


def _put_in(file: Injected, passed: Passed, mtime: int) -> Iterator[bytes]:
    passed.names.add(file.name)
    yield _entry(file.name, tarfile.REGTYPE, file.mode, mtime, len(file.content))
    yield file.content + b"\0" * (-len(file.content) % _BLOCK)


def _lacking(added: Additions, passed: Passed, not_directories: Collection[str]) -> Iterator[bytes]:
    """Directories and links that the stream did not bring; none below a link or a file."""
    for directory in added.directories:
        if directory not in passed.names and not any(parent in not_directories for parent in parents(directory)):
            passed.names.add(directory)
            yield _entry(directory, tarfile.DIRTYPE, 0o755, added.mtime)
    for name, target in added.links:
        if name not in passed.names:
            passed.names.add(name)
            yield _entry(name, tarfile.SYMTYPE, 0o777, added.mtime, target=target)


def obstructed(name: str) -> RefusedError:
    """The image has something else where a start-up file or its directory belongs, or shares that file."""
    return RefusedError(
        f"the image's /{name} is in the way of the start-up files that Enroot and Charliecloud need",
        where=f"/{name}",
        mend=f"make /{name} an ordinary file or directory of its own in the image",
    )


class ChunkReader(io.RawIOBase):
    """An iterator of byte strings as a file, so that it can be read in blocks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _is_artefact(name: str) -> bool:
    return name in DROPPED or name.startswith("dev/")


@dataclass(frozen=True)
class _Member:
    """An entry of a tar.

    Attributes:
        name: relative, normal; empty for the root. target: of a link, as it is written. kind: as in tarfile.
        size: bytes of data that follow. head: header block with all its prefixes, as they came.
    """

    name: str
    target: str
    kind: bytes
    size: int
    head: bytes

    def retimed(self, mtime: int) -> bytes:
        """The head of a directory or symbolic link with another time; all else as it came."""
        if self.kind not in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            return self.head
        mode = _number(self.head[-_BLOCK:][100:108]) & 0o7777
        return _entry(self.name, self.kind, mode, mtime, target=self.target)


def _next_member(source: IO[bytes]) -> _Member | None:
    """The next entry, read up to its data; None at the end."""
    raw = b""
    path: str | None = None
    target: str | None = None
    size: int | None = None
    while True:
        header = _exactly(source, _BLOCK, at_end_ok=not raw)
        if not header or header.count(0) == _BLOCK:
            _drain(source)
            return None
        _check(header)
        kind, length = header[156:157], _number(header[124:136])
        raw += header
        if kind not in b"xgLK" or kind == b"\0":
            data = 0 if kind in b"123456" and kind != b"\0" else (size if size is not None else length)
            name = path if path is not None else _ustar_name(header)
            link = target if target is not None else _text(header[157:257].split(b"\0", 1)[0])
            return _Member(_normal(name), link, kind, data, raw)
        body = _exactly(source, length + -length % _BLOCK)
        raw += body
        if kind == b"L":
            path = _text(body[:length].rstrip(b"\0"))
        elif kind == b"K":
            target = _text(body[:length].rstrip(b"\0"))
        elif kind == b"x":
            records = dict(_pax(body[:length]))
            path = _text(records[b"path"]) if b"path" in records else path
            target = _text(records[b"linkpath"]) if b"linkpath" in records else target
            size = int(records[b"size"]) if b"size" in records else size


def _data(source: IO[bytes], size: int) -> Iterator[bytes]:
    left = size + -size % _BLOCK
    while left:
        block = source.read(min(left, _CHUNK))
        if not block:
            raise InfrastructureError("the engine's export ended in the middle of a file", mend="convert again")
        left -= len(block)
        yield block


def _exactly(source: IO[bytes], count: int, *, at_end_ok: bool = False) -> bytes:
    parts = []
    left = count
    while left:
        part = source.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    if left and not (at_end_ok and left == count):
        raise InfrastructureError("the engine's export ended too early", mend="convert again")
    return b"".join(parts)


def _drain(source: IO[bytes]) -> None:
    while source.read(_CHUNK):
        pass


def _check(header: bytes) -> None:
    """The checksum that every header carries: the sum of its bytes with the checksum's own field blank."""
    right = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    if header[148:156].strip(b" \0").lstrip(b"0") != b"%o" % right:
        raise InfrastructureError("the engine's export is not a tar archive", mend="convert again; check the engine")


def _number(raw: bytes) -> int:
    """A tar number: octal digits, or base 256 where the first byte's high bit is set."""
    if raw[0] & 0x80:
        return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:], "big")
    return int(raw.split(b"\0", 1)[0].strip() or b"0", 8)


def _pax(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Records ``LENGTH KEY=VALUE\\n``; the length rules, so that a value may hold anything."""
    while body:
        length = int(body.split(b" ", 1)[0])
        key, _, value = body[: length - 1].split(b" ", 1)[1].partition(b"=")
        yield key, value
        body = body[length:]


def _ustar_name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _normal(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _entry(name: str, kind: bytes, mode: int, mtime: int, size: int = 0, *, target: str = "") -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime, entry.size, entry.linkname = kind, mode, mtime, size, target
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _single_quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _double_quoted(word: str) -> str:
    for special in ("\\", '"', "$", "`"):
        word = word.replace(special, "\\" + special)
    return f'"{word}"'
