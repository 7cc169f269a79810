"""Images of random layers, each with all that a layer may hold, and what the kernel shows of a squashfs."""

import hashlib
import os
import random
import stat
import subprocess
import tarfile
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from tests.support.odd_image import CAPABILITY, EPOCH, OLD, Layer, archive

BLOCK = 128 << 10  # bytes
_NAMES = ("a", "A", "b", "c", "ß\U0001f600", "new\nline", "\udcff", ".wh", "n" * 240)
_TOPS = ("a", "A", "b", "opt", "opt/runner", "etc", "run", "var/lib/dpkg", "dev", "/".join(["deep"] * 40))
_FIXED = {top[: top.find("/", at)] for top in _TOPS for at, letter in enumerate(top) if letter == "/"} | {*_TOPS}
_SIZES = (0, 0, 1, 900, 900, 5000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 77, 3 * BLOCK)
_TIMES = (1, OLD, OLD, OLD, EPOCH - 7, EPOCH, EPOCH + 1, EPOCH + 86400, 4_000_000_000)
_CREATED = (0, OLD - 1, *[EPOCH] * 3, *[EPOCH + 1] * 2, *[EPOCH + 90_000] * 4)


class _Writer:
    """One random layer."""

    def __init__(self, draw: random.Random) -> None:
        self.layer = Layer()
        self._draw = draw
        self.kinds: dict[str, str] = {}

    def path(self) -> str:
        below = self._draw.choices(_NAMES, k=self._draw.choice((0, 1, 1, 1, 2, 3)))
        return "/".join([self._draw.choice(_TOPS), *below])

    def _free(self, path: str) -> bool:
        """Whether this layer can bring it; it brings some of the directories above, and the engine makes the others."""
        parents = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        if path in self.kinds or any(self.kinds.get(parent, "directory") != "directory" for parent in parents):
            return False
        for parent in parents:
            if parent not in self.kinds and self._draw.random() < 0.7:
                self.add(parent, "directory")
            self.kinds[parent] = "directory"
        return True

    def add(self, path: str, kind: str) -> None:
        draw = self._draw
        kind = "directory" if path in _FIXED and kind not in ("whiteout", "opaque") else kind
        if (path in _FIXED and kind == "whiteout" and draw.random() < 0.8) or not self._free(path):
            return
        self.kinds[path] = kind
        time, mode = draw.choice(_TIMES), draw.choice((0o644, 0o755, 0o4755, 0, 0o1777))
        given = {"mtime": time, "mode": mode, "uid": draw.choice((0, 1000, 3_000_000_000))}
        above, _, name = path.rpartition("/")
        linkable = {other for other, its in self.kinds.items() if its in ("file", "symlink", "fifo")}
        others = sorted(other for other in linkable - {path} if not other.startswith("dev/"))
        if kind == "directory":
            self.layer.special(path, tarfile.DIRTYPE, **given)
        elif kind == "opaque":
            self.layer.special(path, tarfile.DIRTYPE, **given)
            self.layer.file(f"{path}/.wh..wh..opq", b"")
            self.kinds[path] = "directory"
        elif kind == "whiteout":
            self.layer.file(f"{above}/.wh.{name}" if above else f".wh.{name}", b"")
        elif kind == "hard" and others and not path.startswith("dev/"):
            self.layer.special(path, tarfile.LNKTYPE, linkname=draw.choice(others), **given)
        elif kind == "symlink":
            self.layer.special(path, tarfile.SYMTYPE, linkname=draw.choice((*_TOPS, "/", "../b", "//x//")), **given)
        elif kind == "fifo":
            self.layer.special(path, tarfile.FIFOTYPE, **given)
        elif kind == "device":
            self.layer.special(path, tarfile.CHRTYPE, devmajor=1, devminor=draw.choice((3, 5)), **given)
        else:
            self.kinds[path] = "file"
            attributes = {"SCHILY.xattr.security.capability": CAPABILITY} if draw.random() < 0.1 else {}
            attributes |= {"SCHILY.xattr.user.note": b"n"} if draw.random() < 0.001 else {}
            headers = {key: value.decode("utf-8", "surrogateescape") for key, value in attributes.items()}
            self.layer.file(path, self._content(), pax_headers=headers, **given)

    def _content(self) -> bytes:
        size = self._draw.choice(_SIZES)
        kind = self._draw.random()
        if kind < 0.15:  # holes
            return (bytes(size) + b"end")[-size:] if size else b""
        return self._draw.randbytes(size) if kind < 0.3 else (self._draw.randbytes(20) * (size // 20 + 1))[:size]


_KINDS = {"file": 12, "directory": 3, "hard": 3, "symlink": 2, "fifo": 1, "device": 1, "whiteout": 4, "opaque": 1}


def _layer(draw: random.Random, entries: int, below: set[str]) -> bytes:
    writer = _Writer(draw)
    for kind in draw.choices([*_KINDS], [*_KINDS.values()], k=entries):
        known = sorted(below)
        # A whiteout of nothing is a file to overlayfs that it lists and cannot find.
        is_hidden = kind in ("whiteout", "opaque") or (known and draw.random() < 0.3)
        if not is_hidden or known:
            writer.add(draw.choice(known) if is_hidden else writer.path(), kind)
    below |= writer.kinds.keys()
    return writer.layer.bytes()


def archives(seed: int, tag: str, count: int) -> list[bytes]:
    """So many images of one name that share their lower layers, as ``docker save`` writes them."""
    draw = random.Random(seed)
    lower: set[str] = set()
    base = [_layer(draw, 120, lower) for _ in range(draw.choice((1, 2)))]
    made: list[bytes] = []
    for number in range(count):
        if not made or draw.random() < 0.7:  # else further layers over those of the one before
            top, below = [], {*lower}
        top += [_layer(draw, draw.choice((1, 6, 25)), below) for _ in range(draw.choice((0, 1, 1, 2)))]
        volumes: dict[str, object] = {f"/{draw.choice(_TOPS)}/volume": {} for _ in range(draw.choice((0, 0, 1)))}
        start: dict[str, object] = {"Env": [f"N={number}"], "WorkingDir": draw.choice(("", "/a/b/w", "/b", "/run"))}
        created = datetime.fromtimestamp(draw.choice(_CREATED) or 0, timezone.utc)
        text = "0001-01-01T00:00:00Z" if not created.timestamp() else f"{created:%Y-%m-%dT%H:%M:%SZ}"
        made.append(archive(tag, base + top, start | {"Volumes": volumes}, text))
    return made


def as_mounted(squashfs: Path, mount_point: Path) -> dict[str, object]:
    """All that the kernel says of each entry: attributes, links, what they share, and a hash of the content."""
    mount_point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", squashfs, mount_point], check=True)
    try:
        seen: dict[str, object] = {}
        first: dict[int, str] = {}
        for above, directories, files in os.walk(mount_point):
            for path in [above, *(f"{above}/{name}" for name in sorted([*files, *directories]))]:
                about = os.lstat(path)
                name = os.path.relpath(path, mount_point)
                kind = stat.S_IFMT(about.st_mode)
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest() if kind == stat.S_IFREG else ""
                content = os.readlink(path) if kind == stat.S_IFLNK else content  # noqa: PTH115 - as written
                attributes = {key: os.getxattr(path, key, follow_symlinks=False) for key in _attributes(path)}
                size = about.st_size if kind == stat.S_IFREG else 0
                numbers = (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, about.st_nlink, about.st_rdev)
                same = first.setdefault(about.st_ino, name) if kind != stat.S_IFDIR else ""
                seen[name] = (numbers, size, content, attributes, same)
        return seen
    finally:
        subprocess.run(["umount", mount_point], check=True)


def _attributes(path: str) -> list[str]:
    with suppress(OSError):  # there is no table of attributes
        return os.listxattr(path, follow_symlinks=False)
    return []
