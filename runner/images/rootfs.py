"""An exported root file system on its way into a squashfs: what is dropped, what is put in.

The stream is passed on block by block: owners, modes, links, devices, long names, extended attributes and file
capabilities stay bit for bit what the engine sent. Formats: POSIX ustar with pax (``x``, ``g``) and GNU (``L``,
``K``) prefixes; what Enroot's import puts into a root is described in facts/pyxis-and-enroot (docker.sh of 4.1).
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from runner.errors import InfrastructureError

_BLOCK = 512
_CHUNK = 1 << 20
# An engine makes these empty in every container. As empty files they serve as mount points for the host's own,
# which a read-only root needs; whatever an engine wrote into them is not the image's.
MOUNT_POINT_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
_DROPPED = frozenset({".dockerenv", "run/.containerenv"})


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
        parents = {name[:cut] for name in self.names for cut in range(len(name)) if name[cut] == "/" and name[:cut]}
        return len(self.names | parents)


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
    source: IO[bytes],
    files: Sequence[Injected],
    directories: Collection[str],
    passed: Passed,
    *,
    mtime: int,
    capture: Collection[str] = (),
) -> Iterator[bytes]:
    """Blocks of the tar that is squashed: ``source`` without the engine's artefacts, then what is put in.

    Args:
        source: the engine's export, read to its end.
        files: replace whatever the image has under their names. directories: made where the image lacks them.
        passed: filled while the blocks are taken. mtime: of what is put in, seconds since the epoch.
        capture: names of small files whose contents are kept in ``passed``.

    Raises:
        InfrastructureError: the stream is no tar, or ends too early.
    """
    replaced = {file.name for file in files}
    while (group := _next_group(source)) is not None:
        name, size, head = group
        keep = not _is_artefact(name) and name not in replaced
        if keep:
            if name:
                passed.names.add(name)
            yield head
        kept = io.BytesIO() if name in capture else None
        for block in _data(source, size):
            if kept is not None:
                kept.write(block)
            if keep:
                yield block
        if kept is not None:
            passed.captured[name] = kept.getvalue()[:size]
    for directory in directories:
        if directory not in passed.names:
            passed.names.add(directory)
            yield _entry(directory, tarfile.DIRTYPE, 0o755, mtime)
    for file in files:
        passed.names.add(file.name)
        yield _entry(file.name, tarfile.REGTYPE, file.mode, mtime, len(file.content))
        yield file.content + b"\0" * (-len(file.content) % _BLOCK)
    yield b"\0" * (2 * _BLOCK)


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
    return name in _DROPPED or name.startswith("dev/")


def _next_group(source: IO[bytes]) -> tuple[str, int, bytes] | None:
    """(path, bytes of data, raw header blocks with their prefixes) of the next entry; None at the end."""
    raw = b""
    path: str | None = None
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
            return _normal(path if path is not None else _ustar_name(header)), data, raw
        body = _exactly(source, length + -length % _BLOCK)
        raw += body
        if kind == b"L":
            path = _text(body[:length].rstrip(b"\0"))
        elif kind == b"x":
            records = dict(_pax(body[:length]))
            path = _text(records[b"path"]) if b"path" in records else path
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


def _entry(name: str, kind: bytes, mode: int, mtime: int, size: int = 0) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime, entry.size = kind, mode, mtime, size
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _single_quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _double_quoted(word: str) -> str:
    for special in ("\\", '"', "$", "`"):
        word = word.replace(special, "\\" + special)
    return f'"{word}"'
