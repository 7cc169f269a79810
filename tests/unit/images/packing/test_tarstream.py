"""Tar archives as streams: wrong or hostile headers are refused, and sparse files are what GNU tar itself extracts."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError
from runner.images.packing import tarstream
from runner.images.packing.tarstream import BLOCK, END, TarStream
from tests.support.layers import header, merge

FORMATS = {
    "old": ("--format=gnu",),
    "0.0": ("--format=posix", "--sparse-version=0.0"),
    "0.1": ("--format=posix", "--sparse-version=0.1"),
    "1.0": ("--format=posix", "--sparse-version=1.0"),
}
LONG = "ü" * 60 + "/" + "n" * 120  # more than a header's name field holds


def record(text: bytes) -> bytes:
    length = len(text) + 2
    while len(b"%d %s\n" % (length, text)) != length:
        length = len(b"%d %s\n" % (length, text))
    return b"%d %s\n" % (length, text)


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
    ("raw", "says"),
    [
        *((extended(b"x", body) + header(b"0") + END, "the layer has a header that makes no sense") for body in (
            b"0 path=abc\n", b"-5 path=abc\n", b"zz path=abc\n", b"8path=ab", b"99 path=abc\n", b"12 size=abc\n",
            b"12 size=-99\n", b" 12 path=abc",
        )),
        *((header(b"0", raw_size=size) + END, "the layer has a header that makes no sense") for size in (
            b"zzzzzzzzzzz\0", b"-0000000005\0", b"\xff" * 12, b"00000000009\0",
        )),
        (header(b"x", raw_size=b"\x80" + b"\0" * 4 + b"\x7f" * 7), "more than 1048576 bytes"),
        (extended(b"x", b"12 path=abc\n") * 2000, "more than 1048576 bytes"),
        (header(b"L", size=1 << 30), "more than 1048576 bytes"),
        *((header(kind) + END, f"'f' is of the type {kind.decode()!r}, which no engine") for kind in (b"V", b"Z")),
        *((extended(b"x", record(b"path=" + name)) + header(b"0") + END, "has a path that no file system takes")
          for name in (b"a\0b", b"d/" * 2049 + b"f", b"n" * 256)),
        # Following 200 kB of path took 20 s, and a megabyte hours.
        *((extended(b"x", record(b"linkpath=" + b"a/" * 2049)) + header(kind) + END,
           "has a link that no file system takes: 'f'") for kind in (b"1", b"2")),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_headers_that_no_engine_could_unpack_or_that_fill_the_memory_are_refused(raw: bytes, says: str) -> None:
    with pytest.raises(InfrastructureError, match=says):
        read(raw)


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
        return
    (member,) = read(got + END)
    assert member.path == "ü"
    with tarfile.open(fileobj=io.BytesIO(got + END)) as archive:
        assert [one.mtime for one in archive] == [kept]


def test_what_cannot_be_written_anew_is_refused() -> None:
    """A directory whose mode is none, times that are no numbers, and a device's number larger than its field."""
    (member,) = read(header(b"5", mode=b"zzzz755\0") + END)
    with pytest.raises(InfrastructureError, match="makes no sense"):
        tarstream.retimed(member, 7)
    for time in ("inf", "-inf", "nan", "1e400"):
        made = tarfile.TarInfo("f")
        made.pax_headers = {"mtime": time}
        head = made.tobuf(tarfile.PAX_FORMAT)
        with pytest.raises(InfrastructureError, match=r"makes no sense \(a time of -?(inf|nan)\)"):
            tarstream.timely(head)
        with pytest.raises(InfrastructureError, match=r"makes no sense \(a time of -?(inf|nan)\)"):
            tarstream.exported(head, b"0", "", 0, "another name")
    made = tarfile.TarInfo("dev")
    made.type = tarfile.CHRTYPE
    raw = bytearray(made.tobuf(tarfile.USTAR_FORMAT))
    raw[329:337], raw[148:156] = b"77777777", b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    with pytest.raises(InfrastructureError, match=r"'other' makes no sense \(overflow"):
        tarstream.exported(bytes(raw), tarfile.CHRTYPE, "", 0, "other")


def holey(path: Path, size: int, data: dict[int, bytes]) -> None:
    """A file of that size with holes but for ``data``: bytes by their offset."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for offset, content in data.items():
            file.seek(offset)
            file.write(content)
        file.truncate(size)


def archive(root: Path, form: str, *more: str) -> bytes:
    words = ["tar", "-C", str(root), "--sort=name", "--sparse", *FORMATS[form], *more, "-cf", "-", "."]
    return subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout


def extracted(raw: bytes, place: Path) -> dict[str, tuple[int, int, bytes]]:
    """What GNU tar extracts: mode, time in seconds and content of each file."""
    place.mkdir()
    subprocess.run(["tar", "-C", place, "-xpf", "-"], input=raw, check=True)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {
        path.relative_to(place).as_posix(): (path.stat().st_mode, int(path.stat().st_mtime), path.read_bytes())
        for path in files
    }


def sample(root: Path) -> None:
    holey(root / "begin", 100_000, {50_000: b"x" * 777})
    holey(root / "end", 3_000_000, {0: b"start", 81920: b"y" * 5000})
    holey(root / "nothing but a hole", 1_000_000, {})
    holey(root / "many", 2_000_000, {number * 3 * 4096: b"%d" % number for number in range(100)})
    holey(root / LONG, 70_001, {65_536: b"the end"})
    holey(root / "data at its end", 3 * 4096 + 5, {4096: b"first" * 1000, 3 * 4096: b"right"})
    (root / "plain").write_bytes(b"no hole")
    (root / "empty").touch()
    (root / "many").chmod(0o4711)


@pytest.mark.parametrize("form", FORMATS)
def test_sparse_files_of_each_format_are_what_tar_extracts(form: str, tmp_path: Path) -> None:
    sample(tmp_path / "in")
    made = archive(tmp_path / "in", form)
    assert len(made) < 700_000, "tar has written holes as such"
    ours, theirs = extracted(merge([made]), tmp_path / "ours"), extracted(made, tmp_path / "theirs")
    assert ours == theirs
    assert len(ours) == 8
    # Of one that is hidden, a link's name may be all that is left.
    (tmp_path / "in/zlink").hardlink_to(tmp_path / "in/many")
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper/.wh.many").touch()
    stack = [archive(tmp_path / "in", form), archive(tmp_path / "upper", "old")]
    ours = extracted(merge(stack), tmp_path / "out")
    assert ours["zlink"][2] == (tmp_path / "in/many").read_bytes()
    assert "many" not in ours


@pytest.mark.parametrize("form", FORMATS)
def test_a_sparse_file_larger_than_a_header_can_say(form: str, tmp_path: Path) -> None:
    holey(tmp_path / "in/huge", (9 << 30) + 5, {8 << 30: b"far"})
    seen = {member.path: member for member in read(archive(tmp_path / "in", form))}
    assert seen["huge"].size == (9 << 30) + 5
    with tarfile.open(fileobj=io.BytesIO(seen["huge"].head + bytes(1024))) as read_again:
        huge = read_again.next()
        assert huge is not None
        assert (huge.name, huge.size, huge.isreg(), huge.issparse()) == ("./huge", (9 << 30) + 5, True, False)


def with_records(records: list[bytes], data: bytes) -> bytes:
    """An archive of one file with these pax records."""
    file = header(b"0", len(data)) + data + b"\0" * (-len(data) % BLOCK)
    return extended(b"x", b"".join(map(record, records))) + file + END


V1 = [b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=10"]
V0 = [b"GNU.sparse.size=10", b"GNU.sparse.numblocks=1"]


@pytest.mark.parametrize(
    ("records", "data", "says"),
    [
        ([b"GNU.sparse.major=2", b"GNU.sparse.minor=0"], b"", "unknown format 2.0"),
        (
            [*V1[:2], b"GNU.sparse.realsize=%d" % (10**19 - 1)],
            b"0\n".ljust(512, b"\0"),
            "'f' brings the sparse files to 9+ bytes with",
        ),
        ([*V1[:2], b"GNU.sparse.realsize=%d" % (1 << 35)], b"0\n".ljust(512, b"\0"), "to 103079215104 bytes with"),
        (V1, b"x\n0\n1\n".ljust(512, b"\0"), "is no number"),
        (V1, b"1\n8\n4\n".ljust(512, b"\0") + b"data", "beyond its 10 bytes"),
        (V1, b"2\n4\n2\n0\n2\n".ljust(512, b"\0") + b"data", "parts overlap"),
        (V1, b"1\n0\n4\n".ljust(512, b"\0") + b"data and more", "a map of 4 bytes, and 13 bytes of data"),
        (V1, b"9" * (2 << 20), "a map of more than 1048576 bytes"),
        ([*V0, b"GNU.sparse.map=0,1,2"], b"a", "odd number"),
        ([*V0, b"GNU.sparse.map=0,-1"], b"a", "is no number"),
        ([b"GNU.sparse.map=0,1"], b"a", "is no number"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_maps_that_make_no_sense_are_refused(records: list[bytes], data: bytes, says: str) -> None:
    with pytest.raises(InfrastructureError, match=says):
        merge([with_records(records, data).removesuffix(END) * 3])


def test_global_records_do_not_count_in_their_layer_nor_in_another(tmp_path: Path) -> None:
    """Engines ignore them; where they are passed on, mksquashfs would give them to all that follows."""
    for name in ("low", "high"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    words = ("--pax-option=mtime=1000000", "--mtime=2020-01-01 00:00Z")
    low = archive(tmp_path / "low", "1.0", *words)
    assert b"mtime=1000000" in low
    raw = merge([low, archive(tmp_path / "high", "1.0", "--mtime=2021-01-01 00:00Z")])
    assert b"mtime=1000000" not in raw
    ours = extracted(raw, tmp_path / "out")
    assert {name: time for name, (_, time, _) in ours.items()} == {"low.txt": 1577836800, "high.txt": 1609459200}
