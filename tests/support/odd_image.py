"""An image of two layers that holds whatever a root file system may hold, and what an engine shows when it runs it."""

import hashlib
import json
import os
import re
import stat
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import docker
import zstandard

from runner.images.packing.squashfs_tables import FILE, NONE, Squashfs, walk
from tests.support.layers import tar_of

CREATED = "2026-03-04T05:06:07.5Z"
EPOCH = 1772600767
OLD = 1_500_000_000  # seconds: files' times, unless they are odd
CAPABILITY = struct.pack("<IIIII", 0x02000001, 0x2000, 0, 0, 0)  # cap_net_raw=ep, version 2
SPARSE_BYTES = 8 << 20
DEEP = "/".join(["deep"] * 60)
ENVIRONMENT = ['A=it is $HOME "x"', "TWO=a\nb"]


def _bottom() -> bytes:
    layer = Layer()
    layer.directory("bin", "etc", "odd", "gone", "opaque", "opt", "opt/dev", "var", "links", "run")
    layer.file("bin/su", b"#!", mode=0o4755)
    layer.file("bin/ping", b"p", mode=0o755, pax_headers={"SCHILY.xattr.security.capability": _text(CAPABILITY)})
    layer.file("bin/secret", b"s", mode=0)
    layer.directory("closed", mode=0)
    layer.directory("sticky", mode=0o1777)
    layer.directory("group", mode=0o2775)
    layer.special("links/hard", tarfile.LNKTYPE, linkname="bin/su", mode=0o4755)
    layer.special("links/dangling", tarfile.SYMTYPE, linkname="/nowhere/at all")
    layer.special("links/grüße", tarfile.SYMTYPE, linkname="/nowhere/grüße")
    layer.special("links/far", tarfile.SYMTYPE, linkname="../" + "far/" * 40 + "end")
    layer.file("links/a", b"both")
    layer.special("links/b", tarfile.LNKTYPE, linkname="links/a")
    layer.special("var/run", tarfile.SYMTYPE, linkname="/run")
    layer.special("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3)
    layer.special("opt/dev/zero", tarfile.CHRTYPE, devmajor=1, devminor=5)
    layer.special("opt/dev/disk", tarfile.BLKTYPE, devmajor=259, devminor=70000)
    layer.special("fifo", tarfile.FIFOTYPE)
    layer.file("odd/new\nline", b"1")
    layer.file("odd/\udcff\udcfe", b"2")
    layer.file("odd/back\\slash", b"3")
    layer.file("odd/ " + "n" * 250, b"4")
    layer.file("odd/grüße \U0001f600", b"5")
    layer.file("odd/.wh", b"no whiteout")
    layer.file(f"{DEEP}/end", b"6")
    layer.file("owned", b"o", uid=3_000_000_000, gid=3_000_000_000)
    layer.file("sparse", bytes(SPARSE_BYTES) + b"end")
    layer.file("early", b"e", mtime=1)
    layer.file("late", b"l", mtime=EPOCH + 86400)
    layer.file("etc/hosts", b"127.0.0.1 build-host")
    layer.file("etc/environment", b"OLD=1\n")
    layer.file("changed", b"before")
    layer.file("gone/file", b"gone")
    layer.file("gone/kept", b"kept")
    layer.file("opaque/old", b"old")
    layer.directory("tree")
    layer.file("tree/leaf", b"")
    return layer.bytes()


def _top() -> bytes:
    layer = Layer()
    layer.file("gone/.wh.file", b"")
    layer.file("opaque/.wh..wh..opq", b"")
    layer.file("opaque/new", b"new")
    layer.file("links/.wh.a", b"")
    layer.file("changed", b"after")
    layer.file("tree", b"now a file")
    layer.directory("group", mode=0o2770)
    return layer.bytes()


class Layer:
    def __init__(self) -> None:
        self._raw = b""

    def _add(self, name: str, content: bytes, attributes: dict[str, object]) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime = len(content), OLD
        for key, value in attributes.items():
            setattr(entry, key, value)
        head = entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        self._raw += head + content + bytes(-len(content) % tarfile.BLOCKSIZE)

    def file(self, name: str, content: bytes, **attributes: object) -> None:
        self._add(name, content, attributes)

    def special(self, name: str, kind: bytes, **attributes: object) -> None:
        self._add(name, b"", {"type": kind, **attributes})

    def directory(self, *names: str, mode: int = 0o755) -> None:
        for name in names:
            self._add(name, b"", {"type": tarfile.DIRTYPE, "mode": mode})

    def bytes(self) -> bytes:
        return self._raw + bytes(tarfile.RECORDSIZE)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


@contextmanager
def loaded(client: docker.DockerClient, tag: str, archive: bytes) -> Iterator[str]:
    """The image of an archive in the engine, under its name, and removed at the end."""
    client.images.load(archive)
    try:
        yield tag
    finally:
        client.images.remove(tag, force=True)


def archive_of_all(tag: str, *, attribute: str = "") -> bytes:
    """The image. ``attribute``: an extended attribute that one file carries besides."""
    layers = [_bottom(), _top()]
    if attribute:
        extra = Layer()
        extra.file("attributed", b"a", pax_headers={f"SCHILY.xattr.{attribute}": "value"})
        layers.append(extra.bytes())
    start: dict[str, object] = {
        "Env": ENVIRONMENT, "Entrypoint": ["/bin/su", "it's"], "WorkingDir": "/var/run/app",
        "Volumes": {"/vol ume": {}}, "Labels": {"two": "lines\nof it"},
    }  # fmt: skip
    return archive(tag, layers, start)


def archive_of_a_link(tag: str, target: str) -> bytes:
    layer = Layer()
    layer.special("ch", tarfile.SYMTYPE, linkname=target)
    return archive(tag, [layer.bytes()], {})


def archive(tag: str, layers: list[bytes], start: dict[str, object], created: str = CREATED) -> bytes:
    """An image of these tar archives, in the form of ``docker save``; ``start``: the configuration's start-up part."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": start,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(raw).hexdigest()}" for raw in layers]},
    }
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    files = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
    files.update(zip(names, layers, strict=True))
    return tar_of(*((name, content, {}) for name, content in files.items()))


def content_lines(squashfs: Path) -> set[bytes]:
    """All that unsquashfs can say of a squashfs without being root: a line a path, and the files' bytes in its order.

    Left out is whether a file's zeros are stored.
    """
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["unsquashfs", "-q", "-pf", out.name, squashfs], check=True)
        raw = Path(out.name).read_bytes()
    return set(re.sub(rb"^(.* R [0-9]+ [0-7]+ .* [0-9]+ [0-9]+) [01]$", rb"\1", raw, flags=re.MULTILINE).splitlines())


def of_no_file(squashfs: Path) -> bytes:
    """What a squashfs of zstd has in its fragments that none of its files holds, without zeros."""
    parts: dict[int, list[tuple[int, int]]] = {}
    with squashfs.open("rb") as file:
        image = Squashfs(file)
        for _, inode in walk(image.root):
            if inode.kind == FILE and inode.fragment != NONE:
                parts.setdefault(inode.fragment, []).append((inode.offset, inode.size % image.form[0]))
        left = []
        for number, (start, size, _) in enumerate(image.fragments):
            raw = os.pread(file.fileno(), size & 0xFFFFFF, start)
            plain = bytearray(raw if size >> 24 else zstandard.decompress(raw, max_output_size=image.form[0]))
            for at, length in parts.get(number, ()):
                plain[at : at + length] = bytes(length)
            left.append(bytes(plain))
    return b"".join(left).replace(b"\0", b"")


class Entry(NamedTuple):
    """A path in a tree: find's letter for its type, permissions, bytes of a file, time in seconds, a link's target."""

    kind: str
    mode: int
    size: int
    time: int
    target: str


def as_run(client: docker.DockerClient, tag: str) -> dict[str, Entry]:
    """What a program in a container of the image sees.

    The image has no program: the host's ``find`` runs in it, from a mount at /host, which is left out with what
    engines mount.
    """
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line]
    loader = next(path for path in mapped if "/ld-linux" in path)
    libraries = {str(Path(path).parent) for path in mapped}
    mounted = ["/host", "/out", "/proc", "/sys", "/dev"]
    prune = [word for path in mounted for word in ("-path", path, "-prune", "-o")]
    # Into a file: what a container says is logged as JSON, which cannot say every name.
    find = ["/host/usr/bin/find", "/", *prune, "-fprintf", "/out/seen", r"%y\t%m\t%s\t%T@\t%l\t%P\0"]
    with tempfile.TemporaryDirectory() as out:
        client.containers.run(
            tag,
            ["--library-path", ":".join(f"/host{path}" for path in sorted(libraries)), *find],
            entrypoint=[f"/host{loader}"],
            volumes={"/": {"bind": "/host", "mode": "ro"}, out: {"bind": "/out", "mode": "rw"}},
            working_dir="/",
            network_mode="none",
            remove=True,
        )
        raw = Path(out, "seen").read_bytes()
    seen = {}
    for record in raw.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        kind, mode, size, seconds, target, path = record.split("\t", 5)
        seen[path] = Entry(kind, int(mode, 8), int(size) if kind == "f" else 0, int(float(seconds)), target)
    return seen


def as_unpacked(root: Path) -> dict[str, Entry]:
    kinds = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFCHR: "c"}
    seen = {}
    for path in [root, *root.rglob("*")]:
        about = path.lstat()
        kind = kinds.get(stat.S_IFMT(about.st_mode), "b")
        name = str(path.relative_to(root)) if path != root else ""
        target = str(path.readlink()) if kind == "l" else ""
        size = about.st_size if kind == "f" else 0
        seen[name] = Entry(kind, stat.S_IMODE(about.st_mode), size, int(about.st_mtime), target)
    return seen
