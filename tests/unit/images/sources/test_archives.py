"""Archives from outside that were made to harm."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from runner.core.errors import RefusedError
from runner.images.sources.archives import in_archive


@pytest.mark.parametrize("size", [-512, -1024, -1])
def test_a_negative_size_is_refused_and_not_followed_back_for_ever(tmp_path: Path, size: int) -> None:
    made = bytearray(tarfile.TarInfo("layer.tar").tobuf(tarfile.GNU_FORMAT))
    made[124:136], made[148:156] = (256**12 + size).to_bytes(12, "big"), b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    place = tmp_path / "saved.tar"
    place.write_bytes(tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT) + made + bytes(1024))
    # Newer releases of tarfile refuse the header themselves, and end there in silence.
    told = rf"no plain tar archive: (layer.tar has a size of {size} bytes|the header at byte 512 is damaged)"
    with pytest.raises(RefusedError, match=told):
        in_archive(place)


def test_an_archive_that_goes_on_behind_a_damaged_header_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "saved.tar"
    header = tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT)
    place.write_bytes(header + b"\x01" * 512 + header + bytes(1024))
    with pytest.raises(RefusedError, match="the header at byte 512 is damaged"):
        in_archive(place)


@pytest.mark.parametrize("end", [b"", bytes(512), bytes(10240)])
def test_an_archive_may_end_without_its_two_empty_blocks(tmp_path: Path, end: bytes) -> None:
    place = tmp_path / "saved.tar"
    place.write_bytes(tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT) + end)
    in_archive(place)("first")
