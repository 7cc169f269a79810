"""Whose a place is."""

from __future__ import annotations

import grp
import io
import os
import pwd
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from gpu_runner_inside.launcher import places

from runner.core import ownership

MOUNTS = b"""1 0 0:55 / /scratch/x rw,nosuid master:5 - fuse x rw,user_id=2002,group_id=2002,allow_other
2 0 0:56 / /home rw - fuse.gluster server:/v rw,user_id=0,group_id=0,allow_other
3 0 0:57 / /own rw - fuse.sshfs host:/ rw,user_id=%d,group_id=0
4 0 0:58 / /tmp rw - tmpfs user_id=2002 rw
5 0 0:60 / /scratch/user_id=0 rw - fuse user_id=0 rw,user_id=2002,group_id=2002,allow_other
"""


@pytest.mark.parametrize("owner_of", [ownership.owner_of, places.owner_of])
def test_a_strangers_file_system_is_the_strangers_whatever_it_says(
    owner_of: Callable[[os.stat_result], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``user_allow_other`` in fuse.conf, all see it, and it shows any owner and mode."""
    for module in (ownership, places):
        monkeypatch.setattr(module, "_believed", set())
    mounts, opened, read_bytes = MOUNTS % os.geteuid(), open, Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: mounts if path.name == "mountinfo" else read_bytes(path))
    monkeypatch.setattr(
        places, "open", lambda path, *how: io.BytesIO(mounts) if path.endswith("/mountinfo") else opened(path, *how),
        raising=False,
    )  # fmt: skip

    def owner(minor: int, *, major: int = 0) -> int:
        return owner_of(os.stat_result((0o40700, 2, os.makedev(major, minor), 1, 4711, 4711, 0, 0, 0, 0)))

    assert [owner(minor) for minor in (55, 56, 57, 58, 59)] == [2002, 4711, 4711, 4711, 2**32 - 1], "the last has left"
    assert owner(60) == 2002, "source and place are what he calls them"
    assert owner(55, major=8) == 4711
    monkeypatch.setenv("RUNNER_TRUST", "2002")
    assert owner(55) == 4711


@pytest.mark.parametrize("module", [ownership, places])
def test_a_device_that_is_no_mounts_is_believed_by_its_mount(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of btrfs and overlayfs; a file system that left while it answered is in no list of mounts."""
    monkeypatch.setattr(module, "_believed", set())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        status = os.lstat(place)
        device, mounts = b"0:%d" % os.minor(status.st_dev), module._mounts
        assert mounts(2, device)
        monkeypatch.setattr(module, "_mounts", lambda field, value: [] if value == device else mounts(field, value))
        assert module.owner_of(status) == 2**32 - 1, "it was not looked at there"
        assert module.owner_of(module.status_of(Path(place))) == os.geteuid()
        module._believed.clear()
        handle = os.open(place, os.O_PATH)
        assert module.owner_of(module.status_of(handle)) == os.geteuid()
        os.close(handle)
    # Where the kernel names no such mount, as gVisor and below chroot(2), by its type.
    for is_fuse, owner in ((True, 2**32 - 1), (False, os.geteuid())):
        module._believed.clear()
        monkeypatch.setattr(module, "_is_fuse", lambda _handle, answer=is_fuse: answer)
        left = os.memfd_create("left")
        assert module.owner_of(module.status_of(left)) == owner
        os.close(left)


def test_a_place_that_left_while_it_was_looked_at_is_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = os.memfd_create("left")
    device, status_of = os.fstat(left).st_dev, ownership.status_of

    def looked_at(place: Path, *, follow: bool = True) -> os.stat_result:
        status = status_of(place, follow=follow)
        return status if place != tmp_path else os.stat_result((*status[:2], device, *status[3:]))

    monkeypatch.setattr(ownership, "status_of", looked_at)
    whose = ownership.exchangeable_by(tmp_path)
    assert (whose, ownership.way_out(tmp_path, whose)) == ("not mounted any more", "make it yourself, first")
    assert ownership.led_by(tmp_path, os.geteuid()) == whose and not ownership.is_private(tmp_path)
    os.close(left)


@pytest.mark.parametrize(
    ("user", "group", "mode", "others"),
    [
        (4711, 4712, 0o2775, True),  # of a group that the user is not in, as in a place that gives its group away
        (4711, 4712, 0o2755, False),
        (4711, 4711, 0o775, False),  # the user's alone, by umask 002
        (4711, 4713, 0o2775, False),  # a project's
        (0, 4712, 0o2775, False),  # root chose it
    ],
)
def test_ones_own_is_open_to_a_group_that_one_is_not_in(
    user: int, group: int, mode: int, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getegid", lambda: user)
    monkeypatch.setattr(os, "getgroups", lambda: [user, 4713])
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=user, pw_name="ada"))
    monkeypatch.setattr(grp, "getgrgid", lambda number: SimpleNamespace(gr_name="ada" if number == user else "others"))
    monkeypatch.setattr(os, "getgid", lambda: user)
    for module in (ownership, places):
        monkeypatch.setattr(module, "unmapped_user", lambda: None)
    status = os.stat_result((0o40000 | mode, 2, os.makedev(8, 1), 1, user, group, 0, 0, 0, 0))
    assert ownership.others_may_write(status) == places.all_may_write("/nowhere", status) == others
