"""Images of random layers, each with all that a layer may hold, and what the kernel shows of a squashfs."""

import hashlib
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from tests.support.odd_image import CAPABILITY, EPOCH, OLD, Layer, archive

BLOCK = 128 << 10  # bytes
_NAMES = ("a", "A", "b", "c", "ß\U0001f600", "new\nline", "\udcff", ".wh", "n" * 240)
_TOPS = ("a", "A", "b", "opt", "opt/runner", "etc", "run", "var/lib/dpkg", "dev", "/".join(["deep"] * 40))
_FIXED = {*_TOPS, *(top[:at] for top in _TOPS for at, letter in enumerate(top) if letter == "/")}  # directories always
_TARGETS = ("/", "../b", "//x//", "/ß", "../../" + "n" * 120)
_SIZES = (0, 0, 1, 900, 900, 5000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 77, 3 * BLOCK)
_TIMES = (1, OLD, OLD, OLD, EPOCH - 7, EPOCH, EPOCH + 1, EPOCH + 86400, 4_000_000_000)
_CREATED = (0, OLD - 1, *[EPOCH] * 3, *[EPOCH + 1] * 2, *[EPOCH + 90_000] * 4)
_SPECIAL = {"directory": tarfile.DIRTYPE, "opaque": tarfile.DIRTYPE, "fifo": tarfile.FIFOTYPE}
_CHANGES = ("file", "into", "directory", "link", "hard", "fifo", "mode", "time", "move", "remove")
_KINDS = ["file"] * 12 + ["directory", "hard"] * 3 + ["symlink"] * 2 + ["fifo", "device", "opaque"] + ["whiteout"] * 4


class _Writer:
    """One random layer. kinds: of the paths that it brings, also through what is below them."""

    def __init__(self, draw: random.Random) -> None:
        self.layer = Layer()
        self.kinds: dict[str, str] = {}
        self._draw = draw

    def add(self, path: str, kind: str) -> None:
        """Bring this, unless something else is in its way; the engine makes the directories that are not brought."""
        draw = self._draw
        if path in _FIXED and kind not in ("opaque", "whiteout"):
            kind = "directory"
        parents = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        blocked = any(self.kinds.get(parent, "directory") not in ("directory", "opaque") for parent in parents)
        if blocked or path in self.kinds or (path in _FIXED and kind == "whiteout" and draw.random() < 0.8):
            return
        for parent in parents:
            if parent not in self.kinds and draw.random() < 0.7:
                self.add(parent, "directory")
            self.kinds.setdefault(parent, "directory")
        above, _, name = path.rpartition("/")
        given: dict[str, object] = {"mtime": draw.choice(_TIMES), "mode": draw.choice((0o644, 0o755, 0o4755, 0))}
        given["uid"] = draw.choice((0, 1000, 3_000_000_000))
        others = [other for other, its in self.kinds.items() if its in ("file", "symlink", "fifo")]
        # What is in /dev is left out, and no archive can link to it.
        others = [other for other in others if not (other + path).startswith("dev/") and "dev/" not in path]
        self.kinds[path] = "file" if kind == "hard" else kind
        if kind in _SPECIAL:
            self.layer.special(path, _SPECIAL[kind], **given)
        if kind in ("opaque", "whiteout"):
            hidden = f"{path}/.wh..wh..opq" if kind == "opaque" else f"{above}/.wh.{name}".lstrip("/")
            self.layer.file(hidden, b"")
        elif kind == "hard" and others:
            self.layer.special(path, tarfile.LNKTYPE, linkname=draw.choice(others), **given)
        elif kind == "symlink":
            self.layer.special(path, tarfile.SYMTYPE, linkname=draw.choice((*_TOPS, *_TARGETS)), **given)
        elif kind == "device":
            self.layer.special(path, tarfile.CHRTYPE, devmajor=1, devminor=draw.choice((3, 5)), **given)
        elif kind in ("file", "hard"):
            capable = {"SCHILY.xattr.security.capability": CAPABILITY.decode("utf-8", "surrogateescape")}
            noted = {"SCHILY.xattr.user.note": "n"} if draw.random() < 0.001 else {}
            self.layer.file(path, self._content(), pax_headers=capable if draw.random() < 0.1 else noted, **given)

    def _content(self) -> bytes:
        size, kind = self._draw.choice(_SIZES), self._draw.random()
        if kind < 0.15:  # holes
            return (bytes(size) + b"end")[-size:] if size else b""
        return self._draw.randbytes(size) if kind < 0.3 else (self._draw.randbytes(20) * (size // 20 + 1))[:size]


def _layer(draw: random.Random, entries: int, below: set[str]) -> bytes:
    """``below``: what lower layers bring; what this one does is added."""
    writer, known = _Writer(draw), sorted(below)
    for kind in draw.choices(_KINDS, k=entries):
        path = "/".join([draw.choice(_TOPS), *draw.choices(_NAMES, k=draw.choice((0, 1, 1, 1, 2, 3)))])
        # A whiteout of nothing is a file to overlayfs that it lists and cannot find.
        if kind in ("whiteout", "opaque") or (known and draw.random() < 0.3):
            path = draw.choice(known) if known else ""
        if path:
            writer.add(path, kind)
    below |= writer.kinds.keys()
    return writer.layer.bytes()


def archives(seed: int, tag: str, count: int) -> list[bytes]:
    """So many images, each with a name, that share their lower layers, as ``docker save`` writes them."""
    draw = random.Random(seed)
    lower: set[str] = set()
    base = [_layer(draw, 120, lower) for _ in range(draw.choice((1, 2)))]
    made: list[bytes] = []
    for number in range(count):
        if not made or draw.random() < 0.7:  # else further layers over those of the one before
            top, below = [], {*lower}
        top += [_layer(draw, draw.choice((1, 6, 25)), below) for _ in range(draw.choice((0, 1, 1, 2)))]
        start: dict[str, object] = {"Env": [f"N={number}"]}
        if created := draw.choice(_CREATED):  # else what the engine makes for these has the time of the conversion
            start |= {"WorkingDir": draw.choice(("", "/a/b/w", "/b", "/run"))}
            start |= {"Volumes": {f"/{draw.choice(_TOPS)}/volume": {}}} if draw.random() < 0.3 else {}
        text = f"{datetime.fromtimestamp(created, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        made.append(archive(f"{tag}-{number}", base + top, start, text if created else "0001-01-01T00:00:00Z"))
    return made


def change(root: Path, draw: random.Random) -> None:
    """What a command may do to a tree: some of it anew, some removed, moved, linked, or with another mode or time. No
    link is followed: it may lead out of the tree.
    """
    for kind in draw.choices(_CHANGES, k=25):
        there = sorted(each for each in root.rglob("*") if each.relative_to(root).parts[0] not in ("etc", "ch", "dev"))
        places = [root, *(each for each in there if each.is_dir() and not each.is_symlink())]
        old, above = draw.choice(there), draw.choice(places)
        new = above / draw.choice(_NAMES)
        if new.is_symlink() or new.exists() or (kind == "move" and old in (new, *new.parents)):
            continue
        is_file = old.is_file() and not old.is_symlink()
        if kind == "file" or (kind == "into" and is_file):
            with (new if kind == "file" else old).open("r+b" if kind == "into" else "wb") as file:
                file.seek(draw.choice(_SIZES))
                file.write(draw.randbytes(draw.choice(_SIZES)))
        elif kind == "directory":
            new.mkdir()
        elif kind == "link":
            new.symlink_to(draw.choice(_TARGETS))
        elif kind == "hard" and is_file:
            new.hardlink_to(old)
        elif kind == "fifo":
            os.mkfifo(new)
        elif kind == "mode" and not old.is_symlink():
            old.chmod(draw.choice((0o644, 0o4755, 0o700)))
        elif kind == "time":
            at = draw.choice(_TIMES)
            os.utime(old, (at, at), follow_symlinks=False)
        elif kind == "move":
            old.rename(new)
        elif kind == "remove" and draw.random() < 0.5:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()


KERNEL = ("mount", "-t", "squashfs", "-o", "loop,ro")


def as_mounted(squashfs: Path, mount_point: Path, mount: Sequence[str] = KERNEL) -> tuple[str, set[bytes]]:
    """As the kernel, or another that mounts, shows it: the hash of an archive of all below the root, and each path with
    its type and links.
    """
    mount_point.mkdir(exist_ok=True)
    subprocess.run([*mount, squashfs, mount_point], check=True)
    try:
        found = subprocess.check_output(["find", mount_point, "-mindepth", "1", "-printf", r"%P\t%y %n\0"]).split(b"\0")
        paths = b"\0".join(sorted(line.rpartition(b"\t")[0] for line in found if line))
        options = "--no-recursion --null -T - -c --format=pax --pax-option=delete=atime,delete=ctime --numeric-owner"
        tar = ["tar", "-C", str(mount_point), *options.split(), "--xattrs", "--xattrs-include=*"]
        return hashlib.sha256(subprocess.run(tar, input=paths, check=True, stdout=-1).stdout).hexdigest(), {*found}
    finally:
        subprocess.run(["umount", mount_point], check=True)
