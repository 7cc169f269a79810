"""What happens to an exported root on its way into a squashfs."""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.errors import RefusedError
from runner.core.progress import Silent
from runner.images.packing import rootfs
from runner.images.packing.mksquashfs import Packing, PackJob, packed_stream
from runner.images.packing.rootfs import Additions, Config, Injected, Passed
from runner.images.packing.tarstream import ChunkReader
from tests.support.layers import Entry, tar_of

LONG = "d/" * 60 + "n" * 120
CAPABILITY = {"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00"}


# A root with everything that an image may hold, and what an engine leaves in it.
EVERYTHING: tuple[Entry, ...] = (
    (".dockerenv", b"", {}),
    ("dev/", b"", {"type": tarfile.DIRTYPE, "mode": 0o755}),
    ("dev/null", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
    ("dev/shm/", b"", {"type": tarfile.DIRTYPE}),
    ("devices", b"kept: only dev/ is the engine's", {}),
    ("opt/zero", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}),
    ("opt/zero too", b"", {"type": tarfile.LNKTYPE, "linkname": "opt/zero"}),
    ("etc/", b"", {"type": tarfile.DIRTYPE}),
    ("etc/hosts", b"127.0.0.1 build-host", {}),
    ("etc/environment", b"OLD=1", {}),
    ("bin/su", b"x" * 1000, {"mode": 0o4755, "uid": 0, "gid": 42}),
    ("bin/su2", b"", {"type": tarfile.LNKTYPE, "linkname": "bin/su"}),
    ("bin/sh", b"", {"type": tarfile.SYMTYPE, "linkname": "dash"}),
    ("run/fifo", b"", {"type": tarfile.FIFOTYPE}),
    (LONG, b"long", {"uname": "ü"}),
    ("grüße/\U0001f600", b"unicode", {}),
    ("link-to-long", b"", {"type": tarfile.SYMTYPE, "linkname": LONG}),
    ("bin/ping", b"p" * 512, {"mode": 0o755, "uid": 3_000_000, "pax_headers": CAPABILITY}),
    ("opt/runner/image.json", b'{"schema": 1}', {}),
)


def through(raw: bytes, *files: Injected, directories: tuple[str, ...] = (), chunk: int = 700) -> tuple[bytes, Passed]:
    passed = Passed()
    source = io.BufferedReader(ChunkReader(raw[at : at + chunk] for at in range(0, len(raw), chunk)), 4096)
    timed = frozenset([*directories, ""])
    added = Additions(files, directories, links=(("etc/mtab", "/proc/mounts"),), timed=timed, mtime=7)
    blocks = rootfs.filtered(source, added, passed, capture=("opt/runner/image.json",))
    return b"".join(blocks), passed


def members(raw: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return {member.name: member for member in tar}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("chunk", [1, 512, 700, 1 << 20])
def test_everything_of_the_image_arrives_unchanged(form: int, chunk: int) -> None:
    raw = tar_of(*EVERYTHING, form=form)
    out, passed = through(raw, Injected("etc/environment", b"A=1\n"), directories=("etc", "results"), chunk=chunk)
    before, after = members(raw), members(out)
    dropped = {".dockerenv", "dev/null", "dev/shm", "etc/environment", "opt/zero", "opt/zero too"}
    assert passed.devices == {"opt/zero", "opt/zero too"}
    assert set(after) == set(before) - dropped | {".", "etc/environment", "etc/mtab", "results"}
    for name in set(before) - dropped - {"etc"}:
        assert after[name].get_info() == before[name].get_info()
        assert after[name].pax_headers == before[name].pax_headers
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        files = [name for name, member in after.items() if member.isreg() or member.islnk()]
        content = {name: reader.read() for name in files if (reader := tar.extractfile(name)) is not None}
    assert content[LONG] == b"long"
    assert content["bin/su2"] == b"x" * 1000
    assert content["etc/environment"] == b"A=1\n"
    assert passed.names == set(after) - {"."}
    assert (after["etc"].mode, after["etc"].mtime) == (before["etc"].mode, 7)
    assert passed.captured == {"opt/runner/image.json": b'{"schema": 1}'}
    assert (after["results"].isdir(), after["results"].mtime, after["results"].uid) == (True, 7, 0)


def test_a_large_file_under_the_name_of_our_description_fills_no_memory() -> None:
    """In a layer it may be a hole of terabytes."""
    content = b" " * (rootfs.LARGEST_CAPTURED + 1)
    packed, passed = through(tar_of(("opt/runner/image.json", content, {})))
    assert passed.captured == {}
    assert members(packed)["opt/runner/image.json"].size == len(content)


def test_files_are_put_in_where_a_sorted_walk_meets_them() -> None:
    raw = tar_of(("a", b"", {}), ("etc.d", b"", {}), ("zoo", b"", {}), ("etc", b"", {"type": tarfile.DIRTYPE}))
    files = (Injected("ch/environment", b""), Injected("etc/rc", b""), Injected("zz", b""))
    given, passed = through(raw, *files, directories=("ch", "etc"))
    names = [name for name, member in members(given).items() if member.isreg()]
    assert names == ["a", "ch/environment", "etc/rc", "etc.d", "zoo", "zz"], "etc/rc before etc.d: parts are compared"
    assert {"ch", "etc"} <= passed.names


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("etc", {"type": tarfile.SYMTYPE, "linkname": "usr/etc"}),
        ("etc/rc", {"type": tarfile.DIRTYPE}),
        ("bin/x", {"type": tarfile.LNKTYPE, "linkname": "./etc/rc"}),
    ],
)
def test_an_image_with_something_in_the_way_is_refused(name: str, attributes: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match="in the way"):
        through(tar_of((name, b"", attributes)), Injected("etc/rc", b""))


def test_a_directory_below_a_link_is_left_to_where_the_link_leads() -> None:
    raw = tar_of(("var/run", b"", {"type": tarfile.SYMTYPE, "linkname": "/run"}))
    _, passed = through(raw, directories=("var", "var/run", "var/run/app", "work"))
    assert passed.names == {"var", "var/run", "work", "etc/mtab"}


def test_additions_name_every_parent_once_and_in_order() -> None:
    added = rootfs.additions(Config(workdir="/opt/app/x/", volumes=("/data",)), ["results"], 5)
    assert added.directories == ("ch", "data", "dev", "etc", "opt", "opt/app", "opt/app/x", "proc", "results", "sys")
    assert {"", "etc", "etc/rc", "etc/mtab", "opt/app"} <= added.timed
    assert [file.name for file in added.files] == sorted(file.name for file in added.files)
    outside = rootfs.additions(Config(workdir="/../../w", volumes=("../v", "/a/../b")), (), 7)
    assert outside.directories == ("b", "ch", "dev", "etc", "proc", "sys", "v", "w"), "none leads out of the root"
    assert Passed(names={"a/b/c", "a/d"}).entries() == len({"a", "a/b", "a/b/c", "a/d"})


words = st.text(st.characters(blacklist_characters="\0\r", blacklist_categories=["Cs"]), max_size=12)


@settings(max_examples=30, deadline=None)  # every example starts a shell
@given(st.lists(words, min_size=1, max_size=4), st.lists(words, max_size=3))
def test_rc_runs_exactly_the_arguments_of_the_image(entrypoint: list[str], given_words: list[str]) -> None:
    rc = rootfs.rc_file(Config(entrypoint=("printf", "<%s>", *entrypoint), workdir="/"))
    said = subprocess.run(["sh", "-c", rc, "rc", *given_words], stdout=subprocess.PIPE, check=True).stdout.decode()
    assert said == "".join(f"<{word}>" for word in [*entrypoint, *given_words])


def test_rc_is_what_enroot_writes() -> None:
    config = Config(
        entrypoint=("/opt/nvidia/nvidia_entrypoint.sh",),
        command=("bash", "it's"),
        workdir="/work space/$x",
        labels={"maintainer": "a\nrm -rf /"},
    )
    assert rootfs.rc_file(config) == (
        "# maintainer a rm -rf /\n"
        "\n"
        'mkdir -p "/work space/\\$x" 2> /dev/null\n'
        'cd "/work space/\\$x" && unset OLDPWD || exit 1\n'
        "\n"
        "if [ -s /etc/rc.local ]; then\n"
        "    . /etc/rc.local\n"
        "fi\n"
        "\n"
        "if [ $# -gt 0 ]; then\n"
        "    exec '/opt/nvidia/nvidia_entrypoint.sh' \"$@\"\n"
        "else\n"
        "    exec '/opt/nvidia/nvidia_entrypoint.sh' 'bash' 'it'\\''s'\n"
        "fi\n"
    )
    assert shlex.split(rootfs.rc_file(Config()).splitlines()[-2]) == ["exec", "/bin/sh"]


def test_environment_files_take_values_as_they_are() -> None:
    environment = {"A": 'x y "z" $HOME # no', "B": "'q'", "C": "", "D": "two\nlines", "E": "a=b", "F\nLD_PRELOAD": "/x"}
    assert rootfs.environment_file(environment) == "A=x y \"z\" $HOME # no\nB='q'\nC=\nE=a=b\n"
    assert rootfs.charliecloud_environment(environment) == "A=x y \"z\" $HOME # no\nB=''q''\nC=\nE=a=b\n"
    assert rootfs.omitted(environment) == ("D", "F\nLD_PRELOAD")
    began = time.monotonic()
    assert rootfs.environment_file({f"V{number}": "\n" for number in range(10_000)}) == ""
    assert time.monotonic() - began < 1, "in proportion to their number"


def test_volumes_become_bind_mounts() -> None:
    assert rootfs.fstab_file(["/a\n/etc /mnt none bind"]).count("\n") == 1
    outside = rootfs.fstab_file(["../../x", "/../x", "/", "a/../.."])
    assert outside == "${ENROOT_ROOTFS}/x /x none x-create=dir,bind,rw,nosuid,nodev\n", "none leads out of the root"
    assert rootfs.fstab_file(["/b c", "/a"]) == (
        "${ENROOT_ROOTFS}/a /a none x-create=dir,bind,rw,nosuid,nodev\n"
        "${ENROOT_ROOTFS}/b\\040c /b\\040c none x-create=dir,bind,rw,nosuid,nodev\n"
    )


@pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_link_leads_where_it_did(form: int, tmp_path: Path) -> None:
    """What is long or not ASCII is in a pax record, off which mksquashfs takes what it begins with."""
    targets = ("/a", "/grüße", "./grüße", "../../grüße", "//" + "a/" * 80, "/" + "n" * 99, "/" + "n" * 100, "\udcff/x")
    odd = {"mtime": 2**32 + 7, "uid": 3_000_000_000, "mode": 0o777}
    names = [f"{'d' * 120 * (number % 2)}{number}" for number in range(len(targets))]
    links = [
        (name, b"", {"type": tarfile.SYMTYPE, "linkname": each, **odd})
        for name, each in zip(names, targets, strict=True)
    ]
    job = PackJob(rootfs.additions(Config(workdir=f"/{names[1]}/x"), (), 7), tmp_path / "out", Packing(), Silent())
    packed_stream(iter([tar_of(*links, form=form)]), job)
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "root", job.out], check=True)
    assert [str((tmp_path / "root" / name).readlink()) for name in names] == [str(Path(each)) for each in targets]
