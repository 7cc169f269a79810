"""What layers hold, kept in the cache by their digests: none is read to know that again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from runner.core import paths
from runner.core.errors import RunnerError
from runner.core.files import open_regular
from runner.images.packing.merged_layers import Entry
from runner.images.packing.tarstream import raw_text, text
from runner.images.sources import blobs, manifests

_FORM = "1"  # raise it with every change of what is kept
_MOST = 1 << 30  # bytes, unpacked
_Row = tuple[bytes, bytes, bytes, int, bytes, int, int]


def find(diff_id: str) -> list[Entry] | None:
    """The layer's entries; None where they are not kept, or not by this user: no hash tells whether they are right."""
    import zstandard

    with suppress(OSError, RunnerError, zstandard.ZstdError, msgspec.MsgspecError):
        is_wanted = manifests.is_digest(diff_id) and not paths.caches_ignored()
        if is_wanted and (path := blobs.find(_name(diff_id))) is not None:
            with open_regular(path, owner=os.geteuid()) as file:
                raw = zstandard.ZstdDecompressor().decompress(file.read(), max_output_size=_MOST)
            form, whose, rows = msgspec.msgpack.decode(raw, type=tuple[str, str, list[_Row]])
            if (form, whose) == (_FORM, diff_id):
                return [Entry(text(row[0]), row[1], text(row[2]), *row[3:]) for row in rows]
    return None


def keep(layers: Mapping[str, Sequence[Entry]]) -> None:
    """Keep the entries of layers whose digests were checked; a cache that cannot be written to stays as it is."""
    import zstandard

    with suppress(OSError, RunnerError):
        blobs.sweep()
        for diff_id, entries in layers.items():
            rows = [(raw_text(each.path), each.kind, raw_text(each.link), each.size, each.head, each.mode, each.mtime)
                    for each in entries]  # fmt: skip
            raw = msgspec.msgpack.encode((_FORM, diff_id, rows))
            blobs.keep(_name(diff_id), zstandard.ZstdCompressor(write_checksum=True).compress(raw))


def drop(diff_id: str) -> None:
    """Forget a layer: what is kept of it may be wrong."""
    with suppress(OSError, RunnerError):
        if path := blobs.find(_name(diff_id)):
            path.unlink()


def _name(diff_id: str) -> str:
    return f"{diff_id}.index"
