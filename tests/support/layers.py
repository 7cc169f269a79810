"""Layers of images merged into one root, as the packer does it."""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO

from runner.images.packing import merged_layers
from runner.images.packing.merged_layers import Layer


def merge(stack: Sequence[bytes], made: Sequence[str] = ()) -> bytes:
    """The tar archive of the root that these archives make, the lowest first; ``made``: directories that it has."""

    def layer(number: int, raw: bytes) -> Layer:
        def opened() -> AbstractContextManager[IO[bytes]]:
            return nullcontext(io.BytesIO(raw))

        return Layer(f"layer {number}", opened)

    layers = [layer(*each) for each in enumerate(stack)]
    indexed = [merged_layers.indexed(layer) for layer in layers]
    return b"".join(merged_layers.merged(layers, indexed, mtime=7, made=made))
