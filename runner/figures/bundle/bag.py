"""The files that make a directory a bag (BagIt, RFC 8493): declaration, manifests of its payload and of its tag files.

All of them follow from the payload alone, so that a bag can be compared with what it must be, byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.core.errors import NotProvenError
from runner.core.files import sha256

DATA, INFO = "data/", "bag-info.txt"
MANIFEST, TAG_MANIFEST = "manifest-sha256.txt", "tagmanifest-sha256.txt"
SIGNATURE = f"{TAG_MANIFEST}.sig"
_DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"


def tag_files(payload: Mapping[str, str], size: int) -> dict[str, bytes]:
    """The tag files of a bag.

    Args:
        payload: name below ``data/`` -> SHA-256, hex. size: of all of them, bytes.
    """
    about = f"External-Description: gpu-runner bundle\nPayload-Oxum: {size}.{len(payload)}\n"
    tags = {
        "bagit.txt": _DECLARATION,
        INFO: about.encode("ascii"),
        MANIFEST: _manifest({f"{DATA}{name}": digest for name, digest in payload.items()}),
    }
    return tags | {TAG_MANIFEST: _manifest({name: sha256(content) for name, content in tags.items()})}


def check(payload: Mapping[str, str], size: int, tags: Mapping[str, bytes]) -> None:
    """Compare a bag's tag files with what they must be.

    Raises:
        NotProvenError: they are not; names the file that was altered, added or removed, where the manifest says which.
    """
    expected = tag_files(payload, size)
    for name in sorted({*tags, *expected}, key=lambda name: (name != MANIFEST, name)):
        if name == SIGNATURE or tags.get(name) == expected.get(name):
            continue
        where = name
        if name == MANIFEST and name in tags:
            where = _first_difference(_lines(tags[name]), _lines(expected[name])) or name
        how = "is missing" if name not in tags else "does not belong in a bundle" if name not in expected else ""
        raise NotProvenError(f"the bundle was altered: {where} {how or 'is not what its hash says'}", where=where)


def _manifest(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode("ascii")


def _lines(manifest: bytes) -> dict[str, str]:
    pairs = (line.partition("  ") for line in manifest.decode("ascii", "replace").splitlines())
    return {name: digest for digest, _, name in pairs}


def _first_difference(given: Mapping[str, str], expected: Mapping[str, str]) -> str:
    return next((name for name in sorted({*given, *expected}) if given.get(name) != expected.get(name)), "")
