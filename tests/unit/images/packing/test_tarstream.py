"""Tar archives whose headers are wrong or hostile are refused, without hanging."""

from __future__ import annotations

import io
import tarfile

import pytest

from runner.core.errors import InfrastructureError
from runner.images.packing import tarstream
from runner.images.packing.tarstream import BLOCK, END, TarStream


def header(kind: bytes, size: int = 0, *, raw_size: bytes = b"", mode: bytes = b"0000755\0") -> bytes:
    made = bytearray(BLOCK)
    made[0:1], made[100:108], made[156:157], made[257:265] = b"f", mode, kind, b"ustar\x0000"
    made[124:136] = raw_size or b"%011o\0" % size
    made[136:148] = b"%011o\0" % 7
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def extended(kind: bytes, body: bytes) -> bytes:
    return header(kind, len(body)) + body + b"\0" * (-len(body) % BLOCK)


def read(raw: bytes) -> list[tarstream.Member]:
    stream = TarStream(io.BytesIO(raw), "the layer")
    members = []
    for member in stream:
        stream.skip(member)
        members.append(member)
    return members


@pytest.mark.parametrize(
    "body",
    [b"0 path=abc\n", b"-5 path=abc\n", b"zz path=abc\n", b"8path=ab", b"99 path=abc\n", b"12 size=abc\n",
     b"12 size=-99\n", b" 12 path=abc"],
)  # fmt: skip
def test_extended_records_that_make_no_sense_are_refused(body: bytes) -> None:
    with pytest.raises(InfrastructureError, match="the layer has a header that makes no sense"):
        read(extended(b"x", body) + header(b"0") + END)


@pytest.mark.parametrize("size", [b"zzzzzzzzzzz\0", b"-0000000005\0", b"\xff" * 12, b"00000000009\0"])
def test_malformed_sizes_are_refused(size: bytes) -> None:
    with pytest.raises(InfrastructureError, match="makes no sense"):
        read(header(b"0", raw_size=size) + END)


@pytest.mark.parametrize(
    "raw",
    [
        header(b"x", raw_size=b"\x80" + b"\0" * 4 + b"\x7f" * 7),
        extended(b"x", b"12 path=abc\n") * 2000,
        header(b"L", size=1 << 30),
    ],
)
def test_headers_do_not_fill_the_memory(raw: bytes) -> None:
    with pytest.raises(InfrastructureError, match="more than 1048576 bytes"):
        read(raw)


@pytest.mark.parametrize("name", [b"a\0b", b"d/" * 2049 + b"f", b"n" * 256])
def test_paths_that_no_engine_could_unpack_are_refused(name: bytes) -> None:
    record = b" path=" + name + b"\n"
    length = len(record) + len(str(len(record) + 4))
    with pytest.raises(InfrastructureError, match="a path that no file system takes"):
        read(extended(b"x", b"%d" % length + record) + header(b"0") + END)


def test_a_directory_whose_mode_is_none_cannot_be_given_another_time() -> None:
    (member,) = read(header(b"5", mode=b"zzzz755\0") + END)
    with pytest.raises(InfrastructureError, match="makes no sense"):
        tarstream.retimed(member, 7)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize(
    ("time", "kept"), [(-5000, 0), (2**33 + 5, 2**32 - 1), (2**40, 2**32 - 1), (1.5, None), (1_800_000_000.5, None)]
)
def test_times_that_no_squashfs_holds_become_the_nearest(form: int, time: float, kept: int | None) -> None:
    made = tarfile.TarInfo("ü")
    made.mtime = time
    head = made.tobuf(form, "utf-8")  # type: ignore[arg-type]
    got = tarstream.timely(head)
    if kept is None:
        assert got == head
    else:
        (member,) = read(got + END)
        assert member.path == "ü"
        with tarfile.open(fileobj=io.BytesIO(got + END)) as archive:
            assert [one.mtime for one in archive] == [kept]


@pytest.mark.parametrize("time", ["inf", "-inf", "nan", "1e400"])
def test_times_that_are_no_numbers_are_refused(time: str) -> None:
    made = tarfile.TarInfo("f")
    made.pax_headers = {"mtime": time}
    head = made.tobuf(tarfile.PAX_FORMAT)
    with pytest.raises(InfrastructureError, match=r"makes no sense \(a time of -?(inf|nan)\)"):
        tarstream.timely(head)
    with pytest.raises(InfrastructureError, match=r"makes no sense \(a time of -?(inf|nan)\)"):
        tarstream.exported(head, "f", "another name")


def test_a_devices_number_that_its_field_cannot_hold_is_refused() -> None:
    made = tarfile.TarInfo("dev")
    made.type = tarfile.CHRTYPE
    raw = bytearray(made.tobuf(tarfile.USTAR_FORMAT))
    raw[329:337], raw[148:156] = b"77777777", b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    with pytest.raises(InfrastructureError, match=r"'other' makes no sense \(overflow"):
        tarstream.exported(bytes(raw), "dev", "other")


@pytest.mark.parametrize("kind", [b"1", b"2"])
def test_a_link_that_no_file_system_takes_is_refused(kind: bytes) -> None:
    """Following 200 kB of path took 20 s, and a megabyte hours."""
    record = b" linkpath=" + b"a/" * 2049 + b"\n"
    length = len(record) + len(str(len(record) + 4))
    with pytest.raises(InfrastructureError, match="a link that no file system takes: 'f'"):
        read(extended(b"x", b"%d" % length + record) + header(kind) + END)
