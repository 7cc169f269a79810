"""Layers of images and the tar archives that they are, merged into one root as the packer does it."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO

from runner.images.packing import merged_layers
from runner.images.packing.merged_layers import Layer

Entry = tuple[str, bytes, Mapping[str, object]]  # name, content, attributes of tarfile


def tar_of(*entries: Entry, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive of these."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content, attributes in entries:
            made = tarfile.TarInfo(name)
            made.size = len(content)
            for key, value in attributes.items():
                setattr(made, key, value)
            tar.addfile(made, io.BytesIO(content))
    return out.getvalue()


def header(
    kind: bytes, size: int = 0, *, name: bytes = b"f", raw_size: bytes = b"", mode: bytes = b"0000755\0"
) -> bytes:
    """The header block of a member, with whatever its fields are to hold."""
    made = bytearray(tarfile.BLOCKSIZE)
    made[: len(name)], made[100:108], made[156:157], made[257:265] = name, mode, kind, b"ustar\x0000"
    made[124:136] = raw_size or b"%011o\0" % size
    made[136:148] = b"%011o\0" % 7
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def merge(stack: Sequence[bytes], made: Sequence[str] = ()) -> bytes:
    """The tar archive of the root that these archives make, the lowest first; ``made``: directories that it has."""

    def layer(number: int, raw: bytes) -> Layer:
        def opened() -> AbstractContextManager[IO[bytes]]:
            return nullcontext(io.BytesIO(raw))

        return Layer(f"layer {number}", opened)

    layers = [layer(*each) for each in enumerate(stack)]
    root = merged_layers.Root(((layer.name, merged_layers.indexed(layer)) for layer in layers), made)
    return b"".join(merged_layers.merged(layers, root, root.files(), mtime=7))
