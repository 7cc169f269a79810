"""Archives from outside that were made to harm."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from runner.errors import RefusedError
from runner.images.sources.archives import Archive


@pytest.mark.parametrize("size", [-512, -1024, -1])
def test_a_negative_size_is_refused_and_not_followed_back_for_ever(tmp_path: Path, size: int) -> None:
    made = bytearray(tarfile.TarInfo("layer.tar").tobuf(tarfile.GNU_FORMAT))
    made[124:136], made[148:156] = (256**12 + size).to_bytes(12, "big"), b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    place = tmp_path / "saved.tar"
    place.write_bytes(tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT) + made + bytes(1024))
    with pytest.raises(RefusedError, match=rf"no plain tar archive: layer.tar has a size of {size} bytes"):
        Archive(place)
