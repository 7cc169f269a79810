"""Writable copies of images, in directories of the cache that are gone with their work."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.core import paths, process, process_identity
from runner.core.errors import InfrastructureError
from runner.images.store import sif_file
from runner.images.store.stored_image import form_of
from runner.images.writable_root import tools
from runner.images.writable_root.tools import Copy, Tool
from runner.images.writable_root.tree import own_file

_WORK = "builds"
_UNPACK_S = 6 * 3600.0
_NOT_ROOT = "because you're not superuser"  # unsquashfs, of device files: a copy has none


@contextmanager
def work_directory() -> Iterator[Path]:
    """A directory in the cache for this build, removed at its end; those of killed builds are removed first."""
    home = paths.ensure_directory(paths.cache(_WORK))
    for left in home.iterdir():
        if process_identity.state(left.name) == "dead":
            _removed(left)
    mine = home / process_identity.unique()
    try:
        mine.mkdir()
        yield mine
    finally:
        _removed(mine)


def unpack(file: Path, root: Path) -> None:
    """The root of an image file, for its user to write to; device files are left out.

    Raises:
        InfrastructureError: it cannot be unpacked, or the disk is full.
    """
    offset = 0
    if form_of(file) == "sif" and (place := sif_file.root(file)) is not None:
        offset = place.offset
    # Not -xattrs: what a store packs has none but file capabilities, and a copy belongs to an ordinary user.
    words = ("unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-o", str(offset), "-d", root, file)
    done = process.run(words, timeout_s=_UNPACK_S, check=False)
    problems = [line for line in (done.out + done.err).splitlines() if line.strip() and _NOT_ROOT not in line]
    # 2: something that is not fatal, such as a device file.
    if done.code == 0 or (done.code == 2 and not problems):
        return
    text = "\n".join(problems[-8:])
    full = "No space left" in text or "quota exceeded" in text
    raise InfrastructureError(
        f"the image cannot be unpacked (unsquashfs, exit code {done.code}): {text}",
        where=str(root),
        fix="free space there, or set RUNNER_CACHE to a directory with room"
        if full
        else "check the image and the disk",
    )


def call(tool: Tool, copy: Copy, words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """What runs a command as root in the copy, and in which environment; the files that it needs are written."""
    for name, content in tools.files(copy, os.environ).items():
        (copy.work / name).write_text(content, "utf-8", "surrogateescape")
    return tools.command(tool, copy, words, os.environ), tools.environment(tool, copy, os.environ)


def make_readable(root: Path) -> None:
    """Make readable what could not be packed otherwise; and the lists of users, which Enroot leaves to root alone."""
    for path in filter(None, (own_file(root, name) for name in ("etc/passwd", "etc/group"))):
        with suppress(OSError):
            path.chmod(0o644)
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            with suppress(OSError):
                mode = path.lstat().st_mode
                wanted = 0o500 if stat.S_ISDIR(mode) else 0o400
                if not stat.S_ISLNK(mode) and mode & wanted != wanted:
                    path.chmod(stat.S_IMODE(mode) | wanted)


def _removed(tree: Path) -> None:
    """Remove a tree, directories in it that their owner may not read or write to included."""
    shutil.rmtree(tree, ignore_errors=True)
    if not tree.exists():
        return
    for directory, names, _ in os.walk(tree):  # from the top: what is in a directory is read after it was made readable
        for path in (Path(directory, name) for name in names):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(tree, ignore_errors=True)
