"""Whose a place is: who else could exchange what lies there, or lead it elsewhere."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

TRUSTS = "RUNNER_TRUST=NAME,... trusts accounts of the site"  # the end of a fix (exchangeable_by)
_LEFT = "not mounted any more"  # whose a place is (exchangeable_by)
_MOST_ON_THE_WAY = 1000  # names: links may lead in circles
_OWNING_GROUP, _GROUP = 0x04, 0x08  # tags of an ACL's entries for the mode's group and a named one (linux/posix_acl.h)
_NO_USER = 2**32 - 1  # the one id that no user can have: (uid_t) -1
_believed = set[int]()  # devices of file systems that no stranger has mounted, nor can take away


class StrangersLinkError(PermissionError):
    """A link of a user who is not trusted is on the way to what was named: it leads where that user likes."""

    fix = "name the file or directory that is meant; RUNNER_TRUST=NAME trusts that user"


def closed_to_others(path: Path, *, own: bool = True) -> Path | None:
    """The real path of what no other user but root can change or replace; None where one can. It is what is to be used:
    a link that led there may lead elsewhere by then. Of this user's ``own`` some may be a copy of what is another's.
    """
    trusted = (0, os.geteuid()) if own else (0,)
    try:
        real = path.resolve(strict=True)
        for each in (real, *real.parents):
            status = status_of(each, follow=False)  # a link may have taken its place
            # Above it others may write where they cannot rename or remove what is not theirs (sticky).
            sticky = each != real and status.st_mode & stat.S_ISVTX
            is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky
            if is_open or stat.S_ISLNK(status.st_mode) or owner_of(status) not in trusted:
                return None
    except (OSError, RuntimeError, ValueError):
        return None
    return real if path.is_absolute() else None


def exchangeable_by(directory: Path, *, new: bool = False, used: bool = False) -> str:
    """Whose directory it is, or one above it or a link on the way there, in words, where another user could exchange
    what this one makes there, or lead it elsewhere; else empty. Who may write by the group, the owner trusts, but for
    the login's group: who has that may be anybody, and it counts as all (``others_may_write``). Trusted are root,
    accounts of the system, and those that RUNNER_TRUST names; of a directory above that others may not write to, also
    the owner where it is of a group that this user was put into (a project's; who has the same login group may be
    anybody), and not where all may write: it may come from a place that gives its group away. That holds of
    ``directory``, too, where it is only ``used``, as a file. What is not there, another user may have taken away for
    this moment, unless it is ``new``: then it will be this user's, who asks again once it is.
    """
    return next(_exchangers(directory, new=new, used=used), "")


def led_by(directory: Path, owner: int) -> str:
    """The same of what is a user's there who is neither trusted nor the ``owner`` of the directory."""
    known = ("", str(owner))
    strangers = (each for each in _exchangers(directory) if user_of(each) not in known or each.endswith(_LEFT))
    return next(strangers, "")


def beside_its_owner(path: Path) -> str:
    """As ``exchangeable_by`` of what is there, by another one than its owner; of another user's only where that may be
    anybody: whom that user trusts is not for this one to say. Empty where it has left.
    """
    with suppress(OSError):
        is_own = owner_of(status_of(path)) == os.geteuid()
        return next((each for each in _exchangers(path, used=True) if is_own or not user_of(each)), "")
    return ""


def _exchangers(directory: Path, *, new: bool = False, used: bool = False) -> Iterator[str]:
    try:
        real = directory.resolve()
        on_the_way = {each: _looked_at(each) for each in (real, *real.parents, *reversed(_way(directory)))}
    except (OSError, RuntimeError) as error:  # as where a link leads to a name that is too long, or to itself
        yield f"not to be looked at ({getattr(error, 'strerror', 'its links lead in circles')})"
        return
    for each, looked_at in on_the_way.items():
        if looked_at is None:
            if not new:
                yield "not there any more"
            continue
        status, above = looked_at
        is_link, whose = stat.S_ISLNK(status.st_mode), ""
        # Any may write a link; where others may not, it is of those who may write to its directory, which comes, too.
        place = above if is_link else status
        others_write = others_may_write(place)
        if not (is_link and not others_write) and is_strangers(status, above, by_place=used or each != real):
            whose = f"user {user}'s{' link' if is_link else ''}" if (user := owner_of(status)) != _NO_USER else _LEFT
        if not whose and others_write and not is_link and not status.st_mode & stat.S_ISVTX:
            whose = f"{open_to(status, each)} (no sticky bit)"
        if whose:
            yield whose if each == real else f"{'behind' if is_link else 'below'} {each}, which is {whose}"


def open_to(status: os.stat_result, place: Path) -> str:
    """Whom a place is open to where ``others_may_write``, in words."""
    if status.st_mode & stat.S_IWOTH:
        with suppress(OSError):
            if not place.stat().st_mode & stat.S_IWOTH:
                return "everybody's to write to, by a group of its ACL"
        return "everybody's to write to"
    import grp

    group = f"{status.st_gid}"
    with suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return f"its group's ({group}) to write to, who may be anybody"


def user_of(whose: str) -> str:
    """The id of the user whose ``exchangeable_by`` says a place is; empty where that may be anybody."""
    user = re.search(r"user (\d+)'s( link)?\Z", whose)
    return user[1] if user else ""


def _name_of(user: int) -> str:
    import pwd

    with suppress(KeyError, OverflowError):
        return pwd.getpwuid(user).pw_name
    return "that user, or it is you"


def way_out(directory: Path, whose: str, *, put: bool = False) -> str:
    """The end of a fix where ``exchangeable_by`` says this of a directory; ``put``: what others put there counts, too,
    which the sticky bit lets them.
    """
    if whose.startswith("not there") or whose.endswith(_LEFT):
        return "make it yourself, first"
    if user := user_of(whose):
        return f"RUNNER_TRUST={user}, if you trust {_name_of(int(user))}"
    above = re.match(r"(?:below|behind) (/.*), which is ", whose)
    place = shlex.quote(above[1] if above else str(directory))
    if group := re.search(r"its group's \((.*?)\) to write to, who may be anybody( \(no sticky bit\))?\Z", whose):
        return f"chmod g-w {place}, if it is yours; RUNNER_TRUST={shlex.quote(f'@{group[1]}')} trusts them"
    if above is None and (put or directory.is_file()):
        is_roots = directory.is_dir() and directory.stat().st_uid == 0 != os.geteuid()
        if not is_roots:
            return f"or its owner closes it: chmod go-w {place}"
    is_left_open = whose.endswith("(no sticky bit)")
    return f"or its owner closes it: chmod +t {place}" if is_left_open else "a directory in it will do"


def of_others(directory: Path, what: str) -> tuple[str, str]:
    """``what`` programs run there, and the fix, where all may write; else empty."""
    why = f"{what}, where all may write: modules of others would run as you"
    return (why, closing(directory)) if is_open(directory) else ("", "")


def closing(directory: Path) -> str:
    """The fix where programs would run what is in a directory that all may write to: what they left runs later, too."""
    place, whose = shlex.quote(str(directory)), ""
    with suppress(OSError):
        whose = open_to(status_of(directory), directory)
    look = f"then look at what others have left in it: find {place} ! -user $USER"
    return f"use a directory of your own; {way_out(directory, whose, put=True)}; {look}"


def of_file(path: Path, *, new: bool = False) -> tuple[str, str]:
    """Whose place a file is in, for the end of a message, and the end of a fix, where it ``may_be_strangers``."""
    with suppress(OSError, RuntimeError):
        if whose := exchangeable_by(path, new=new, used=True):
            return f": it is {whose}", way_out(path, whose)
    return "", TRUSTS


def is_first_come(directory: Path, *, new: bool = False) -> bool:
    """Whether a stranger has put the directory there, one above it, or a link on the way, as all may write to that
    place, or those of the login's group; also where that cannot be looked at, and is not ``new``.
    """
    with suppress(OSError, RuntimeError):
        real = directory.resolve()
        places = [_looked_at(each) for each in (real, *real.parents, *_way(directory))]
        return any(not new if each is None else is_put_by_stranger(*each) for each in places)
    return True


def may_be_strangers(path: Path) -> bool:
    """Whether a stranger has put what is there (``is_first_come``), or could: as it is not there yet, or what is there
    can be moved away (no sticky bit), or is a file that others may write to.
    """
    with suppress(OSError, RuntimeError):
        real = path.resolve()
        return any(map(_may_be_strangers, (real, *real.parents, *_way(path))))
    return True


def _may_be_strangers(place: Path) -> bool:
    """The same of one place, which is looked at once: it may come and go. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        above = status_of(place.parent)
        try:
            status = status_of(place, follow=False)
        except FileNotFoundError:
            return others_may_write(above)
        moved = others_may_write(above) and not above.st_mode & stat.S_ISVTX
        return moved or is_put_by_stranger(status, above) or (stat.S_ISREG(status.st_mode) and others_may_write(status))
    return False


def is_put_by_stranger(status: os.stat_result, above: os.stat_result) -> bool:
    """Of something and the directory above it, to which all may write, or those of the login's group."""
    return not is_trusted(owner_of(status)) and (owner_of(status) != status.st_uid or _all_may_write(above))


def own_and_others(top: Path, names: Iterable[str], *, kernels: bool = False) -> tuple[list[str], list[str]]:
    """Files below a directory without, and only, what other users have put into directories that all may write to; for
    ``kernels``, which import what lies beside a notebook, also into their own. A copy of it would be this user's. None
    of those that have left. Raises OSError.
    """
    about = cache(partial(status_of, follow=False))  # of each directory once

    def is_others(path: Path) -> bool:
        place = about(path), about(path.parent)
        return is_put_by_stranger(*place) or (kernels and is_strangers(*place, by_place=True))

    @cache
    def of_directory(name: str) -> tuple[bool, bool]:
        """Whether all in it is others', and whether what is in it is looked at: of 300,000 files not each."""
        places = [top / each for each in (Path(name), *Path(name).parents) if name and each.name]
        status = about(top / name)
        is_closed = not kernels and owner_of(status) == status.st_uid and not _all_may_write(status)
        return any(map(is_others, places)), not is_closed

    own, others = list[str](), list[str]()
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError):  # since they were listed
            are_others, is_looked_at = of_directory(name.rpartition("/")[0])
            if is_looked_at or os.path.lexists(f"{top}/{name}"):
                (others if are_others or (is_looked_at and is_others(top / name)) else own).append(name)
    return own, others


def is_kept_in(path: Path) -> bool:
    """Whether a directory of this user's, above what has this real path, lets no other user in."""
    with suppress(OSError):
        above = (status_of(each) for each in path.resolve().parents)
        return any(owner_of(each) == os.geteuid() and not each.st_mode & 0o011 for each in above)
    return False


def is_strangers_link(path: Path) -> bool:
    """Whether it is a link of a user who is not trusted, and so leads where that user likes."""
    with suppress(OSError):
        return path.is_symlink() and not is_trusted(owner_of(status_of(path, follow=False)))
    return True


def left_by(path: Path) -> str:
    """Whose it is, in words, where another user has put it into a directory of this one, and could not now: that was
    open to all then. Else empty, as where it may be root's, in a container of an ordinary user.
    """
    import pwd

    login = os.getegid()
    with suppress(KeyError):
        login = pwd.getpwuid(os.geteuid()).pw_gid
    with suppress(OSError, RuntimeError, ValueError):
        if looked_at := _looked_at(path.parent.resolve() / path.name):
            status, above = looked_at
            is_shared = above.st_mode & stat.S_IWGRP and (above.st_gid != login or login in _trusted()[2])
            is_own = owner_of(above) == os.geteuid() and not is_shared
            if is_own and not is_trusted(user := owner_of(status)) and user != unmapped_user():
                return f"user {user}'s" if user != _NO_USER else _LEFT
    return ""


def is_open(path: Path) -> bool:
    """Whether it is a directory that all may write to."""
    with suppress(OSError):
        status = status_of(path)
        return stat.S_ISDIR(status.st_mode) and others_may_write(status)
    return False


def status_of(place: Path | int, *, follow: bool = True) -> os.stat_result:
    """What it is, by a path or a handle, as ``owner_of`` takes it. All may write to it by its mode, too, where an ACL
    (acl(5)) lets a group that may be anybody's. Raises OSError.
    """
    status = os.fstat(place) if isinstance(place, int) else place.stat(follow_symlinks=follow)
    with suppress(OSError, ValueError, IndexError):
        _look_at_mount(place, status)
    # Of an ACL the mode's group has the mask: what anybody it names may do at most.
    if status.st_mode & stat.S_IWGRP and not stat.S_ISLNK(status.st_mode):
        with suppress(OSError):
            entries = [*struct.iter_unpack("<HHI", os.getxattr(place, "system.posix_acl_access")[4:])]
            if not any(tag == _OWNING_GROUP and may & 0o2 for tag, may, _ in entries):
                status = os.stat_result((status.st_mode & ~stat.S_IWGRP, *status[1:]))
            if any(tag == _GROUP and may & 0o2 and _is_of_others(group, status) for tag, may, group in entries):
                return os.stat_result((status.st_mode | stat.S_IWOTH, *status[1:]))
    return status


def others_may_write(status: os.stat_result) -> bool:
    """Whether all may write to it, or those of a group that may be anybody's."""
    mode = status.st_mode
    return bool(mode & stat.S_IWOTH) or bool(mode & stat.S_IWGRP and _is_of_others(status.st_gid, status))


def _is_of_others(group: int, status: os.stat_result) -> bool:
    """Whether it may be anybody's: the login's; where it writes to this user's (root chooses groups), also one that he
    is not in, which comes from the directory above. Without a user's name no group of his is known.
    """
    if owner_of(status) != os.geteuid():
        return _all_may_have(group)
    import pwd

    with suppress(KeyError):
        (first, _, groups), login = _trusted(), pwd.getpwuid(os.geteuid()).pw_gid
        is_foreign = group >= first and group not in {login, *groups} and unmapped_user() is None
        return _all_may_have(group) or (is_foreign and os.geteuid() != 0)
    return False


def _all_may_write(status: os.stat_result) -> bool:
    mode = status.st_mode
    return bool(mode & stat.S_IWOTH) or bool(mode & stat.S_IWGRP and _all_may_have(status.st_gid))


def _all_may_have(group: int) -> bool:
    """Whether it is the login's group, or Debian's ``users``, in which or not this user may be; not one that is this
    user's alone: it has the same name (useradd(8)).
    """
    import grp
    import pwd

    of_login = {os.getegid(), *os.getgroups()}
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid())
        of_login = {user.pw_gid}  # also where newgrp(1) took it away
        name = grp.getgrgid(group).gr_name
        if name == user.pw_name:
            return False
        if name == "users":
            of_login.add(group)
    return group in of_login - _trusted()[2]


def _looked_at(place: Path) -> tuple[os.stat_result, os.stat_result] | None:
    """What it is, no link followed, and what the directory above it is; None where it is not there. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return status_of(place, follow=False), status_of(place.parent, follow=False)
    return None


def is_trusted(user: int) -> bool:
    """Whether it is this user, root, an account of the system, or one that RUNNER_TRUST names."""
    if user in (0, os.geteuid()):
        return True
    system, named, _ = _trusted()
    return user < system or user in named


def owner_of(status: os.stat_result) -> int:
    """Whose it is (``status_of``); of a stranger's FUSE file system he who mounted it, as that says what he likes of
    owners; no user's if it has left since then.
    """
    if os.major(status.st_dev) or status.st_dev in _believed:
        return status.st_uid
    with suppress(OSError, ValueError, IndexError):  # without /proc, nothing is known
        kinds = _mounts(2, b"0:%d" % os.minor(status.st_dev))
        if not kinds and status.st_dev != os.lstat("/").st_dev:  # chroot(2) takes its own from the list
            return _NO_USER
        for kind in kinds:
            if kind.startswith(b"fuse"):
                # Of the last field, the kernel's own: what is before it, he who mounts names.
                mounter = int(kind.rpartition(b" ")[2].partition(b"user_id=")[2].split(b",")[0])
                if not is_trusted(mounter) and mounter != _outside(os.geteuid()):
                    return mounter
    _believed.add(status.st_dev)
    return status.st_uid


def _look_at_mount(place: Path | int, status: os.stat_result) -> None:
    """Believe a device that is no mount's, as of btrfs and overlayfs, where it is in one that is no FUSE file system's.
    Raises OSError, ValueError, IndexError.
    """
    device = status.st_dev
    if os.major(device) or device in _believed or _mounts(2, b"0:%d" % os.minor(device)):
        return
    no_link = os.O_NOFOLLOW if stat.S_ISLNK(status.st_mode) else 0
    handle = os.dup(place) if isinstance(place, int) else os.open(place, os.O_PATH | os.O_CLOEXEC | no_link)
    try:  # while it is held, neither device nor mount is another one's
        mount = Path(f"/proc/self/fdinfo/{handle}").read_bytes().partition(b"mnt_id:")[2].split()[:1]
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
    return ctypes.CDLL(None).fstatfs(handle, buffer) != 0 or buffer.raw[:4] == b"FUse"


def _mounts(field: int, value: bytes) -> list[bytes]:
    """Type and options of the mounts that have it in a field: 0, their number; 2, their device (proc(5)). Raises
    OSError.
    """
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [line.partition(b" - ")[2] for line in lines if line.split()[field] == value]


def _outside(user: int) -> int:
    """The id that a user has outside this user namespace; its own where there is none. Raises OSError, ValueError."""
    return next((outer + user - first for first, outer, count in _ranges() if first <= user < first + count), user)


def _ranges() -> list[tuple[int, ...]]:
    """Of ids in this user namespace: the first here, and outside, and how many (user_namespaces(7))."""
    return [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_bytes().splitlines()]


def is_strangers(status: os.stat_result, above: os.stat_result, *, by_place: bool) -> bool:
    """Whether it is of a user who is not trusted; with ``by_place``, nor for its group."""
    if is_trusted(owner_of(status)):
        return False
    # In a container of an ordinary user, root and strangers look the same.
    is_closed = not status.st_mode & stat.S_IWOTH and not _all_may_write(above)
    first, _, mine = _trusted()
    groups = {status.st_gid, *((above.st_gid,) if above.st_mode & stat.S_IWGRP else ())}  # who could have put it there
    # Of another group's directory: one of theirs may have moved it there from where all get the group. Who has a group
    # of the system is trusted with what is put into its directories.
    is_others = above.st_gid not in mine and above.st_gid >= first and above.st_uid != os.geteuid()
    is_given = above.st_mode & stat.S_IWGRP and is_others
    of_project = is_closed and not is_given and not groups.isdisjoint(mine)
    return not (by_place and owner_of(status) == status.st_uid and (status.st_uid == unmapped_user() or of_project))


def is_private(directory: Path) -> bool:
    """Whether it is a directory and no link, belongs to this user, is closed to all others, who cannot exchange it."""
    with suppress(OSError):
        status = status_of(directory, follow=False)
        ours = stat.S_ISDIR(status.st_mode) and owner_of(status) == os.geteuid()
        return ours and stat.S_IMODE(status.st_mode) & 0o777 == 0o700 and not exchangeable_by(directory)
    return False


def real_path(path: Path) -> Path:
    """Where a path leads, to be used in its stead. Each link on the way is looked at and read at once: where another
    user holds a name, it may be one only for this moment. Raises OSError: one is of a user who is not trusted, as its
    ``filename`` is; or they lead in circles.
    """
    users: dict[Path, int] = {}

    def read(at: Path) -> Path:
        handle = os.open(at, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            target = os.readlink("", dir_fd=handle)
            users[at] = owner_of(status_of(handle))
        finally:
            os.close(handle)
        return Path(target)

    way = _way(path, read)
    for at, user in users.items():
        # Root is unmapped in a container of an ordinary user, and so are strangers.
        if not is_trusted(user) and (user != unmapped_user() or is_open(at.parent)):
            raise StrangersLinkError(errno.EACCES, "this is another user's link", str(at))
    if len(way) == _MOST_ON_THE_WAY:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return way[-1] if way else Path("/")


def _way(path: Path, read: Callable[[Path], Path] = Path.readlink) -> list[Path]:
    """The directories and links by which a path is found, each by its real name; what is not there, by its own."""
    found: list[Path] = []
    at, left = Path("/"), list(reversed(path.absolute().parts[1:]))
    while left and len(found) < _MOST_ON_THE_WAY:
        part = left.pop()
        at = at.parent if part == ".." else at / part
        try:
            target = read(at)
        except (OSError, ValueError):
            target = None  # it is no link, or not there
        found.append(at)
        if target is not None:
            at = Path("/") if target.is_absolute() else at.parent
            left += reversed(target.parts[target.is_absolute() :])
    return found


def links_to(path: Path) -> list[Path]:
    """The links by which a path is found, each by its real name."""
    return [each for each in _way(path) if os.path.islink(each)]  # noqa: PTH114  # is_symlink raises in a closed one


def _trusted() -> tuple[int, frozenset[int], frozenset[int]]:
    """The first id that is no system account's (login.defs(5)), the users that RUNNER_TRUST names, and the groups that
    this user was put into, none where the login's own is not known, or that it names as ``@GROUP``. A group of the
    system is no project's: all may be in it.
    """
    import grp
    import pwd  # few have another owner above

    first, groups, named = 1000, frozenset[int](), set()
    with suppress(OSError, ValueError, StopIteration):
        lines = map(str.split, Path("/etc/login.defs").read_text("utf-8", "replace").splitlines())
        first = int(next(line[1] for line in lines if line[:1] == ["UID_MIN"] and line[1:]))
    with suppress(KeyError):
        mine = frozenset(each for each in (os.getegid(), *os.getgroups()) if each >= first)
        groups = mine - {pwd.getpwuid(os.geteuid()).pw_gid}
    for name in filter(None, os.environ.get("RUNNER_TRUST", "").split(",")):
        with suppress(KeyError):
            if name.startswith("@"):
                groups |= {int(name[1:]) if name[1:].isdecimal() else grp.getgrnam(name[1:]).gr_gid}
            else:
                named.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
    return first, frozenset(named), groups


def unmapped_user() -> int | None:
    """The id that all users have whom this user namespace does not know (user_namespaces(7)); None where it knows all,
    or this is not known.
    """
    with suppress(OSError, ValueError):
        unknown = int(Path("/proc/sys/kernel/overflowuid").read_bytes())
        if not any(first <= unknown < first + count for first, _, count in _ranges()):
            return unknown
    return None


def whole_parts(value: str) -> str:
    """A list of directories as in PATH, whole: a relative or empty part means the working directory, and counts only
    where no other user could put, or exchange, something there.
    """
    return ":".join(filter(None, map(_whole_part, value.split(":")))) if value else ""


def _whole_part(part: str) -> str:
    with suppress(OSError):  # the working directory is gone
        whole = part if part.startswith("/") else str(Path(part).absolute())
        if whole == part or not (is_open(Path(whole)) or exchangeable_by(Path(whole))):
            return whole
    return ""
