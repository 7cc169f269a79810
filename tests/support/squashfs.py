"""The least that is taken for a squashfs image where only its first 96 bytes are read."""

from __future__ import annotations

SUPERBLOCK = b"hsqs" + bytes(24) + b"\4" + bytes(67)  # the magic number, and version 4 of the format
