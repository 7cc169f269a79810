"""A separate program, standard library only: mounts layers in a private namespace and becomes mksquashfs.

It reads one JSON object (see ``mksquashfs.packed_layers``) on standard input, and answers on standard output:
``ok``, the captured files and the paths of device files as JSON, the bytes that will be read and every path; or ``no``
and the reason; or ``obstructed`` and a path. Each part ends with a NUL. Then it executes mksquashfs. Where the object
has ``names``, ``ok`` is followed by a tar archive of these paths instead.

The mounts lie in a mount namespace of this process alone, and it dies with the process that started it: whatever
kills either of them, no mount, no tree and no running mksquashfs is left. The overlay is writable into a tmpfs, so
that what is put in needs no copy of the image, and all of it is done with the new root as ours: no symbolic link of
the image leads out of it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
# The engine's export carries this attribute and no other; an image packed both ways must give the same bytes.
_KEPT_ATTRIBUTES = {"security.capability"}
_PACKED_NAMESPACES = ("user.", "trusted.", "security.")
_TAR_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE, stat.S_IFCHR: tarfile.CHRTYPE, stat.S_IFBLK: tarfile.BLKTYPE,
}  # fmt: skip
_LARGEST_CAPTURED = 1 << 20  # bytes; as rootfs.LARGEST_CAPTURED


class Unavailable(Exception):
    """This machine or this image does not allow mounting; the message is the reason."""


class Obstructed(Exception):
    """The image has something in the way of what is put in; the message is its path."""


def main() -> None:
    spec = json.load(sys.stdin)
    try:
        root = _mounted(spec["layers"], spec["mount_point"], spec["parent"])
        outside = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        os.chroot(root)
        os.chdir("/")
        if "names" in spec:
            members = _chosen(spec["names"])
            _answer(b"ok")
            _archive(members, spec["timed"])
            return
        captured = {  # contents of small regular files, base64
            name: base64.b64encode(file.read_bytes()).decode()
            for name, file in ((name, Path("/", name)) for name in spec["capture"])
            if file.is_file() and not file.is_symlink() and file.stat().st_size <= _LARGEST_CAPTURED
        }
        _drop(spec["dropped"])
        _add(spec)
        size, paths, devices = _walked()
        _retime(spec["timed"], spec["mtime"])
        os.fchdir(outside)
        os.chroot(".")
    except Obstructed as error:
        _answer(b"obstructed", os.fsencode(str(error)))
        return
    except (OSError, Unavailable) as error:
        _answer(b"no", os.fsencode(str(error)))
        return
    _answer(b"ok", json.dumps([captured, devices]).encode(), b"%d" % size, *paths)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the end of the answer
    os.execv(spec["command"][0], spec["command"])


def _chosen(names: dict[str, bool]) -> dict[str, os.stat_result]:
    """What there is of these names, those above it first, of what is below those whose value is true, and of all hard
    links to any of it; no symbolic link is followed. Unavailable: as ``_check_attributes``.
    """
    chosen = {"": os.lstat("/")}
    missing: dict[tuple[int, int], int] = {}  # of each file how many of its names are not chosen

    def choose(name: str, *, whole: bool = False) -> None:
        above = chosen.get(name.rpartition("/")[0])
        if name in chosen or above is None or not stat.S_ISDIR(above.st_mode) or not os.path.lexists(f"/{name}"):
            return
        about = os.lstat(f"/{name}")
        if stat.S_ISSOCK(about.st_mode):
            return
        _check_attributes(os.fsencode(f"/{name}"))
        chosen[name] = about
        if not stat.S_ISDIR(about.st_mode):
            key = about.st_dev, about.st_ino
            missing[key] = missing.get(key, about.st_nlink) - 1
        elif whole:
            waiting.extend((f"{name}/{below}", True) for below in sorted(os.listdir(f"/{name}"), reverse=True))  # noqa: PTH208

    waiting = sorted(names.items(), reverse=True)
    while waiting:
        name, whole = waiting.pop()
        choose(name, whole=whole)
    for above, directories, files in os.walk("/") if any(missing.values()) else ():
        for path in (f"{above.rstrip('/')}/{name}" for name in (*directories, *files)):
            about = os.lstat(path) if os.path.lexists(path) else chosen[""]
            if missing.get((about.st_dev, about.st_ino)):
                for end in (at for at, letter in enumerate(f"{path}/") if letter == "/" and at):
                    choose(path[1:end])
    return chosen


def _archive(members: dict[str, os.stat_result], timed: list[str]) -> None:
    """A tar archive of these paths, to standard output. timed: as for ``_retime``, after which a symbolic link is no
    other name's, too.
    """
    linked: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, about in members.items():
            path, member = Path("/", name), tarfile.TarInfo(name or ".")
            member.mode, member.mtime = stat.S_IMODE(about.st_mode), about.st_mtime_ns // 10**9
            member.type = _TAR_TYPES[stat.S_IFMT(about.st_mode)]
            alone = member.issym() and name in timed
            first = name if alone else linked.setdefault((about.st_dev, about.st_ino), name)
            if first != name and not member.isdir():
                member.type, member.linkname = tarfile.LNKTYPE, first
            elif member.issym():
                member.linkname = os.readlink(path)  # noqa: PTH115 - as written
            for key in _KEPT_ATTRIBUTES & {*os.listxattr(path, follow_symlinks=False)}:
                value = os.getxattr(path, key, follow_symlinks=False)
                member.pax_headers = {f"SCHILY.xattr.{key}": value.decode("utf-8", "surrogateescape")}
            if member.isreg():
                member.size = about.st_size
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)


def _answer(*parts: bytes) -> None:
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(b"".join(part + b"\0" for part in parts))


def _mounted(layers: list[str], mount_point: str, parent: int) -> str:
    """The merged tree's path: an overlay of ``layers`` (topmost first) in a tmpfs that hides ``mount_point``."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Be killed when the starting thread ends, also by a signal that it cannot catch (prctl(2)); exec keeps this.
    _checked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        raise Unavailable("the process that started it is gone")
    _checked(libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    place = os.fsencode(mount_point)
    _checked(libc.mount(b"tmpfs", place, b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=0700"), "mount tmpfs")
    os.chdir(place)
    for directory in ("upper", "work", "root"):
        os.mkdir(directory, 0o755)  # noqa: PTH102 - relative to a directory that is ours alone
    # The options of a mount end with a page: 128 layers by their own paths would not fit, and may hold a colon.
    for number, layer in enumerate(layers):
        os.symlink(layer, str(number))  # noqa: PTH211 - likewise
    lower = ":".join(str(number) for number in range(len(layers)))
    options = f"lowerdir={lower},upperdir=upper,workdir=work".encode()
    _checked(libc.mount(b"overlay", b"root", b"overlay", 0, options), "mount overlay")
    return str(Path(mount_point) / "root")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _drop(names: list[str]) -> None:
    """What engines leave in a container: these files, and all below /dev."""
    to_remove = [Path("/", name) for name in names if _is_real(name)]
    if _is_directory(Path("/dev")):
        to_remove += Path("/dev").iterdir()
    for path in to_remove:
        if _is_directory(path):
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _add(spec: dict[str, Any]) -> None:
    os.umask(0)
    for name in spec["directories"]:
        if _is_real(name) and not os.path.lexists(f"/{name}"):
            Path("/", name).mkdir(mode=0o755)
    for name, content, mode in spec["files"]:
        path = Path("/", name)
        if not _is_real(name):
            raise Obstructed(str(Path(name).parent))
        if _is_directory(path):
            raise Obstructed(name)
        path.unlink(missing_ok=True)
        path.write_bytes(base64.b64decode(content))
        path.chmod(mode)
        os.utime(path, (spec["mtime"], spec["mtime"]))
    for name, target in spec["links"]:
        if _is_real(name) and not os.path.lexists(f"/{name}"):
            Path("/", name).symlink_to(target)


def _is_real(name: str) -> bool:
    """Whether everything above it is a directory and no symbolic link."""
    above = [Path("/", *Path(name).parts[:depth]) for depth in range(1, len(Path(name).parts))]
    return all(map(_is_directory, above))


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _walked() -> tuple[int, list[bytes], list[str]]:
    """(bytes of the regular files, all paths, those of device files), after device files and sockets were removed.

    Unavailable: files carry attributes that mksquashfs would pack and the engine's export does not, or times that it
    would turn into others.
    """
    size = 0
    paths: list[bytes] = []
    devices: list[str] = []
    seen: set[tuple[int, int]] = set()
    pending = [b"/"]
    while pending:
        directory = pending.pop()
        _check_attributes(directory)
        to_remove = []
        with os.scandir(directory) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                if (kind := stat.S_IFMT(about.st_mode)) in (stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
                    to_remove.append(entry.path)
                    devices += [os.fsdecode(entry.path[1:])] * (kind != stat.S_IFSOCK)
                    continue
                if not 0 <= about.st_mtime < 1 << 32:
                    raise Unavailable(f"{os.fsdecode(entry.path)} has a time that no squashfs holds")
                paths.append(entry.path[1:])
                if stat.S_ISDIR(about.st_mode):
                    pending.append(entry.path)
                    continue
                _check_attributes(entry.path)
                if about.st_nlink == 1 or (about.st_dev, about.st_ino) not in seen:
                    size += about.st_size
                    seen.add((about.st_dev, about.st_ino))
        before = os.lstat(directory)
        for path in to_remove:
            os.unlink(path)  # noqa: PTH108 - bytes
        if to_remove:
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    return size, paths, devices


def _check_attributes(path: bytes) -> None:
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith(_PACKED_NAMESPACES) and name not in _KEPT_ATTRIBUTES:
            raise Unavailable(f"{os.fsdecode(path)} has the extended attribute {name}, which an export leaves out")


def _retime(names: list[str], mtime: int) -> None:
    """Of directories and symbolic links only: a file of the image would be copied into the tmpfs for it."""
    for name in names:
        path = Path("/", name)
        if _is_real(name) and (path.is_dir() or path.is_symlink()):
            os.utime(path, (mtime, mtime), follow_symlinks=False)


if __name__ == "__main__":
    main()
