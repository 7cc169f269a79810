"""An image of a few files."""

from __future__ import annotations

import io
import tarfile


def small_root() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    return out.getvalue()
