"""Tar archives as streams: wrong or hostile headers are refused, and sparse files are what GNU tar itself extracts."""

from __future__ import annotations

import io
import subprocess
import tarfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.errors import InfrastructureError
from runner.images.packing import merged_layers, tarstream
from runner.images.packing.merged_layers import Layer
from runner.images.packing.tarstream import BLOCK, END, TarStream

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
    with pytest.raises(InfrastructureError, match="a path that no file system takes"):
        read(extended(b"x", record(b"path=" + name)) + header(b"0") + END)


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
    with pytest.raises(InfrastructureError, match="a link that no file system takes: 'f'"):
        read(extended(b"x", record(b"linkpath=" + b"a/" * 2049)) + header(kind) + END)


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


def merge(*layers: bytes) -> bytes:
    def opener(raw: bytes) -> merged_layers.Opener:
        return lambda: nullcontext(io.BytesIO(raw))

    stack = [Layer(f"layer {number}", opener(raw)) for number, raw in enumerate(layers)]
    return b"".join(merged_layers.merged(stack, [merged_layers.indexed(layer) for layer in stack], mtime=7))


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
    (root / "plain").write_bytes(b"no hole")
    (root / "empty").touch()
    (root / "many").chmod(0o4711)


@pytest.mark.parametrize("form", FORMATS)
def test_sparse_files_of_each_format_are_what_tar_extracts(form: str, tmp_path: Path) -> None:
    sample(tmp_path / "in")
    made = archive(tmp_path / "in", form)
    assert len(made) < 700_000, "tar has written holes as such"
    ours, theirs = extracted(merge(made), tmp_path / "ours"), extracted(made, tmp_path / "theirs")
    assert ours == theirs
    assert len(ours) == 7


@pytest.mark.parametrize("form", FORMATS)
def test_a_sparse_file_may_have_links_whose_name_is_all_that_is_left(form: str, tmp_path: Path) -> None:
    sample(tmp_path / "in")
    (tmp_path / "in/zlink").hardlink_to(tmp_path / "in/many")
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper/.wh.many").touch()
    found = extracted(merge(archive(tmp_path / "in", form), archive(tmp_path / "upper", "old")), tmp_path / "out")
    assert found["zlink"][2] == (tmp_path / "in/many").read_bytes()
    assert "many" not in found


@pytest.mark.parametrize("form", FORMATS)
def test_a_sparse_file_larger_than_a_header_can_say(form: str, tmp_path: Path) -> None:
    holey(tmp_path / "in/huge", (9 << 30) + 5, {8 << 30: b"far"})
    seen = {member.path: member for member in read(archive(tmp_path / "in", form))}
    assert seen["huge"].size == (9 << 30) + 5
    with tarfile.open(fileobj=io.BytesIO(seen["huge"].head + bytes(1024))) as read_again:
        found = read_again.next()
        assert found is not None
        assert (found.name, found.size, found.isreg(), found.issparse()) == ("./huge", (9 << 30) + 5, True, False)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3 * 4096)), max_size=30),
    st.integers(0, 2 * 4096),
)
def test_whatever_the_holes(
    tmp_path_factory: pytest.TempPathFactory, form: str, parts: list[tuple[int, int]], tail: int
) -> None:
    place = tmp_path_factory.mktemp("holes")
    data = {start * 4096: bytes([1 + start]) * count for start, count in parts}
    size = max([0, *(start + len(content) for start, content in data.items())]) + tail
    holey(place / "in/file", size, data)
    holey(place / "in/next", 10, {0: b"behind it"})
    found = extracted(merge(archive(place / "in", form)), place / "out")
    assert {name: content for name, (_, _, content) in found.items()} == {
        "file": (place / "in/file").read_bytes(),
        "next": (place / "in/next").read_bytes(),
    }


def with_records(records: list[bytes], data: bytes) -> bytes:
    """An archive of one file with these pax records."""
    body = b"".join(map(record, records))
    blocks = b""
    for name, kind, content in (("x", tarfile.XHDTYPE, body), ("f", tarfile.REGTYPE, data)):
        made = tarfile.TarInfo(name)
        made.type, made.size = kind, len(content)
        blocks += made.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    return blocks + bytes(1024)


V1 = [b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=10"]
V0 = [b"GNU.sparse.size=10", b"GNU.sparse.numblocks=1"]


@pytest.mark.parametrize(
    ("records", "data", "says"),
    [
        ([b"GNU.sparse.major=2", b"GNU.sparse.minor=0"], b"", "unknown format 2.0"),
        ([*V1[:2], b"GNU.sparse.realsize=%d" % (10**19 - 1)], b"0\n".ljust(512, b"\0"), "more than 2199023255552"),
        (V1, b"x\n0\n1\n".ljust(512, b"\0"), "is no number"),
        (V1, b"1\n8\n4\n".ljust(512, b"\0") + b"data", "beyond its 10 bytes"),
        (V1, b"2\n4\n2\n0\n2\n".ljust(512, b"\0") + b"data", "parts overlap"),
        (V1, b"1\n0\n4\n".ljust(512, b"\0") + b"data and more", "a map of 4 bytes, and 13 bytes of data"),
        (V1, b"9" * (2 << 20), "a map of more than 1048576 bytes"),
        ([*V0, b"GNU.sparse.map=0,1,2"], b"a", "odd number"),
        ([*V0, b"GNU.sparse.map=0,-1"], b"a", "is no number"),
        ([b"GNU.sparse.map=0,1"], b"a", "is no number"),
    ],
)
def test_maps_that_make_no_sense_are_refused(records: list[bytes], data: bytes, says: str) -> None:
    with pytest.raises(InfrastructureError, match=says):
        merge(with_records(records, data))


def test_global_records_do_not_count_in_their_layer_nor_in_another(tmp_path: Path) -> None:
    """Engines ignore them; where they are passed on, mksquashfs would give them to all that follows."""
    for name in ("low", "high"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    words = ("--pax-option=mtime=1000000", "--mtime=2020-01-01 00:00Z")
    low = archive(tmp_path / "low", "1.0", *words)
    assert b"mtime=1000000" in low
    raw = merge(low, archive(tmp_path / "high", "1.0", "--mtime=2021-01-01 00:00Z"))
    assert b"mtime=1000000" not in raw
    found = extracted(raw, tmp_path / "out")
    assert {name: time for name, (_, time, _) in found.items()} == {"low.txt": 1577836800, "high.txt": 1609459200}
