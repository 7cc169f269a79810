"""Places of a node: who else could change what lies there, or exchange it. As runner/core/ownership.py has it of the
login node's; here root may look like a stranger, and a place is often in an image, or the scheduler's.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
import struct
from contextlib import suppress
from typing import AbstractSet, Any, Iterable, Iterator, Sequence

from gpu_runner_inside.launcher.failure import LaunchError

_NO_USER = 2**32 - 1  # the one id that no user can have: (uid_t) -1
_UNKNOWN = (65534, 2**32 - 2)  # whom a network file system or a container does not know
_believed: set[int] = set()  # devices of file systems that no stranger has mounted, nor can take away


def safe_places(bases: Iterable[str]) -> Iterator[str]:
    """The directories in which no other user can replace what is made there, by their real paths: links of others may
    lead elsewhere by then. In a container of an ordinary user, whose root looks like any stranger, owners of others
    than /tmp and /var/tmp must be this user. None with a colon: it parts PYTHONPATH.
    """
    unknown = unmapped_user()
    for base in bases:
        with suppress(OSError):
            real = os.path.realpath(base)
            trusted = {0, os.geteuid(), *([unknown] if base in ("/tmp", "/var/tmp") and unknown is not None else [])}
            safe = base.startswith("/") and ":" not in real and os.path.isdir(real)
            if safe and all(_is_kept(each, trusted) for each in _upwards(real)) and os.access(real, os.W_OK | os.X_OK):
                yield real


def is_closed(path: str) -> bool:
    """Whether a real path is a directory of this user's where no other one can make, or exchange, a name. What all may
    not write to above it may be root's in a container of an ordinary user, as the scheduler's directory of a job.
    """
    own, unknown = {0, os.geteuid()}, unmapped_user()
    with suppress(OSError):
        about = status_of(path)
        is_own = stat.S_ISDIR(about.st_mode) and owner_of(about) == os.geteuid() and not all_may_write(path, about)
        closed = [each for each in _upwards(path) if not os.lstat(os.path.dirname(each)).st_mode & 0o022]
        roots = own if unknown is None else own | {unknown}
        return is_own and all(_is_kept(each, roots if each in closed else own) for each in _upwards(path))
    return False


def is_others(path: str, *, image: bool) -> bool:
    """Whether another user has put it, a directory above it, or a link on the way, into a place where all may write, or
    could; what is not there yet is made there. Root looks like any stranger in a container of an ordinary user, and
    counts as one there. In the image itself no other user can put anything.
    """
    if image and _mount_of(path) == "/":
        return False
    users, first = trusted_names()[0] | {os.geteuid()}, first_of_people()
    with suppress(OSError):
        for each in _way(path):
            above = os.stat(os.path.dirname(each))
            is_open_above = all_may_write(os.path.dirname(each), above)
            if not os.path.lexists(each):
                if not is_open_above:
                    return False
                os.makedirs(path, 0o700)
            about = status_of(each)
            owner = owner_of(about)
            if owner not in users and owner >= first and (is_open_above or owner != about.st_uid):
                return True
            if is_open_above and not above.st_mode & stat.S_ISVTX:
                return True
        return False
    return True


def check_start(owners: Sequence[Sequence[Any]]) -> None:
    """The working directory, which others could make anew, must be of one of these ``owners`` (of the plan), this user,
    the system, or one that RUNNER_TRUST names. Raises LaunchError: ``start-exchanged``.
    """
    about = status_of(os.curdir)
    owner, is_open = owner_of(about), all_may_write(os.getcwd(), about)
    known = {os.geteuid(), *_UNKNOWN, *trusted_names()[0], *(user for _, user in owners)}
    if owners and owner not in known and (is_open or owner >= first_of_people()):
        what = f"{os.getcwd()} is user {owner}'s by now, and what lies there would run as you"
        raise LaunchError("start-exchanged", f"{what}; submit again, from a directory of your own")


def is_open(path: str, *, image: bool) -> bool:
    """Whether it is a directory where all may put what they like, and not in the image itself."""
    if os.path.isdir(path) and not (image and _mount_of(path) == "/"):
        return all_may_write(os.path.realpath(path), os.stat(path))
    return False


def _mount_of(path: str) -> str:
    """Where the file system of a path is mounted; empty where the kernel does not say."""
    real = os.path.join(os.path.realpath(path), "")
    return max((each for each in mount_points() if real.startswith(os.path.join(each, ""))), key=len, default="")


def mount_points() -> list[str]:
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        places = [line.split()[4] for line in file]  # a blank is \040 there
        return [os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), each)) for each in places]
    return []


def _way(path: str) -> Iterator[str]:
    """Each directory and link by which a path is found. Raises OSError: links lead in circles."""
    at, rest = "/", path.split("/")[::-1]
    for _ in range(1000):
        if not rest:
            return
        name = rest.pop()
        each = os.path.join(at, name)
        if name == "..":
            at = os.path.dirname(at)
        elif name not in ("", "."):
            yield each
            at = each
            if os.path.islink(each):
                target = os.readlink(each)
                rest += target.split("/")[::-1]
                at = "/" if target.startswith("/") else os.path.dirname(each)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _upwards(path: str) -> Iterator[str]:
    """A directory and those above it; the root is the runtime's or the system's."""
    while path != "/":
        yield path
        path = os.path.dirname(path)


def _is_kept(path: str, trusted: AbstractSet[int]) -> bool:
    """Whether only the ``trusted`` can rename what is in it, as its owner can, too; of a user's own directory, its
    group is trusted (``all_may_write``), and of a group that the user was put into (all may have that of the login),
    not where others may write above it, the owner.
    """
    about, above, groups = status_of(path), os.lstat(os.path.dirname(path)), _project_groups()
    if stat.S_ISLNK(about.st_mode) or stat.S_ISLNK(above.st_mode):  # it has taken the place of a directory
        return False
    is_closed = not above.st_mode & (0o002 if above.st_gid in groups else 0o022)
    of_project = is_closed and not about.st_mode & 0o002 and about.st_gid in groups
    if owner_of(about) not in (trusted if not of_project else {*trusted, about.st_uid}):
        return False
    others = 0o002 if about.st_uid == os.geteuid() else 0o022
    is_open = about.st_mode & others or all_may_write(path, about)
    return not is_open or about.st_mode & stat.S_ISVTX != 0


def all_may_write(path: str, about: os.stat_result) -> bool:
    """Whether all may write to a directory, by its mode, or as a group may, or one of an ACL, that all may have;
    to a user's own (root chooses groups), also where a group may that the user is not in.
    """
    if about.st_mode & stat.S_IWOTH or not about.st_mode & stat.S_IWGRP:
        return about.st_mode & stat.S_IWOTH != 0
    (login, groups), is_own = groups_of_all(), about.st_uid == os.geteuid()
    if login is None and is_own:  # it may be the user's alone
        return False
    acl = b""
    with suppress(OSError):
        acl = os.getxattr(path, "system.posix_acl_access")[4:]
    entries = [*struct.iter_unpack("<HHI", acl)]  # tag (4: the mode's group, 8: a named one), permissions, an id
    named = {number for tag, may, number in entries if tag == 8 and may & 2}
    if not entries or any(tag == 4 and may & 2 for tag, may, _ in entries):
        named.add(about.st_gid)
    mine = {login, *_project_groups(), *trusted_names()[1]}
    is_lent = is_own and os.geteuid() != 0 and any(each >= first_of_people() for each in named - mine)
    return not groups.isdisjoint(named) or (is_lent and unmapped_user() is None)


def groups_of_all() -> tuple[int | None, set[int]]:
    """The login's group, None where it is not known; and those that all may have: it, unless it is this user's alone,
    and Debian's ``users``, but for those that RUNNER_TRUST names.
    """
    login, groups = None, {os.getgid()}
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid())
        login = user.pw_gid
        groups = {login}
        if grp.getgrgid(login).gr_name == user.pw_name:
            groups = set()  # useradd(8)
    with suppress(KeyError):
        groups.add(grp.getgrnam("users").gr_gid)
    return login, groups - trusted_names()[1]


def _project_groups() -> set[int]:
    """None where the login's group is not known, as in many containers, or others look like it; none of the system: all
    may be in one.
    """
    if unmapped_user() is not None:
        return set()
    try:
        mine = {each for each in (os.getegid(), *os.getgroups()) if each >= first_of_people()}
        return mine - {pwd.getpwuid(os.geteuid()).pw_gid}
    except KeyError:
        return set()


def first_of_people() -> int:
    """The first id that is no system account's (login.defs(5))."""
    with suppress(OSError, ValueError, StopIteration), open("/etc/login.defs", "rb") as file:
        return int(next(line[1] for line in map(bytes.split, file) if line[:1] == [b"UID_MIN"] and line[1:]))
    return 1000


def trusted_names() -> tuple[set[int], set[int]]:
    """The users, and the groups, that RUNNER_TRUST names."""
    users: set[int] = set()
    groups: set[int] = set()
    for name in os.environ.get("RUNNER_TRUST", "").split(","):
        with suppress(KeyError):
            if name.startswith("@"):
                groups.add(int(name[1:]) if name[1:].isdecimal() else grp.getgrnam(name[1:]).gr_gid)
            elif name:
                users.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
    return users, groups


def status_of(place: str | int) -> os.stat_result:
    """What it is, by a path, a link itself, or a handle, as ``owner_of`` takes it. Raises OSError."""
    about = os.fstat(place) if isinstance(place, int) else os.lstat(place)
    with suppress(OSError, ValueError, IndexError):
        _look_at_mount(place, about)
    return about


def owner_of(about: os.stat_result) -> int:
    """Whose it is (``status_of``); of a stranger's FUSE file system he who mounted it, as that says what he likes of
    owners; no user's if it has left since then.
    """
    if os.major(about.st_dev) or about.st_dev in _believed:
        return about.st_uid
    with suppress(OSError, ValueError, IndexError):  # without /proc, nothing is known
        kinds = _mounts(2, b"0:%d" % os.minor(about.st_dev))
        if not kinds and about.st_dev != os.lstat("/").st_dev:  # chroot(2) takes its own from the list
            return _NO_USER
        for kind in kinds:
            if kind.startswith(b"fuse"):
                mounter = int(kind.rpartition(b" ")[2].partition(b"user_id=")[2].split(b",")[0])
                own = {os.geteuid(), outside(os.geteuid()), *trusted_names()[0]}
                if mounter >= first_of_people() and mounter not in own:
                    return mounter
    _believed.add(about.st_dev)
    return about.st_uid


def _look_at_mount(place: str | int, about: os.stat_result) -> None:
    """Believe a device that is no mount's, as of btrfs and overlayfs, where it is in one that is no FUSE file system's.
    Raises OSError, ValueError, IndexError.
    """
    device = about.st_dev
    if os.major(device) or device in _believed or _mounts(2, b"0:%d" % os.minor(device)):
        return
    how = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.dup(place) if isinstance(place, int) else os.open(place, how)
    try:  # while it is held, neither device nor mount is another one's
        with open(f"/proc/self/fdinfo/{handle}", "rb") as file:
            mount = file.read().partition(b"mnt_id:")[2].split()[:1]
        kinds = _mounts(0, mount[0]) if mount else []
        is_fuse = kinds[0].startswith(b"fuse") if kinds else _is_fuse(handle)
        if os.fstat(handle).st_dev == device and not is_fuse:
            _believed.add(device)
    finally:
        os.close(handle)


def _is_fuse(handle: int) -> bool:
    """By statfs(2), where the kernel names no mount, as gVisor, or not all of them, as below chroot(2)."""
    import ctypes

    buffer = ctypes.create_string_buffer(256)  # struct statfs has 120; f_type comes first
    return bool(ctypes.CDLL(None).fstatfs(handle, buffer)) or buffer.raw[:4] == b"FUse"


def _mounts(field: int, value: bytes) -> list[bytes]:
    """Type and options of the mounts that have it in a field: 0, their number; 2, their device (proc(5)). Raises
    OSError.
    """
    with open("/proc/self/mountinfo", "rb") as file:
        return [line.partition(b" - ")[2] for line in file if line.split()[field] == value]


def outside(user: int) -> int:
    """The id that a user has outside this user namespace. Raises OSError, ValueError."""
    return next((outer + user - first for first, outer, count in _ranges() if first <= user < first + count), user)


def _ranges() -> list[tuple[int, ...]]:
    """Of ids in this user namespace: the first here, and outside, and how many (user_namespaces(7))."""
    with open("/proc/self/uid_map", "rb") as known:
        return [tuple(map(int, line.split())) for line in known]


def unmapped_user() -> int | None:
    """The id that all users have whom a container's user namespace does not know, root among them; None without one."""
    with suppress(OSError, ValueError):
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            unknown = int(file.read())
        if not any(first <= unknown < first + count for first, _, count in _ranges()):
            return unknown
    return None
