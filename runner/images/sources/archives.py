"""Images in files: ``docker save``'s archives, and OCI image layouts as directories or archives.

They are read in place: a layer inside an archive is a part of that file, and nothing is unpacked.
"""

from __future__ import annotations

import io
import posixpath
import shlex
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, cast

import msgspec

from runner.core import paths
from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.core.files import open_named
from runner.core.ownership import exchangeable_by
from runner.core.progress import Progress
from runner.core.text import instead
from runner.images import reference as references
from runner.images.packing.mksquashfs import Source
from runner.images.packing.tarstream import LARGEST_HEAD, ChunkReader
from runner.images.sources import manifests
from runner.images.sources.layered import Opened, checked_digest, for_platform, layered_source
from runner.images.sources.manifests import Descriptor, Index, Manifest, Platform

# OCI image layout 1.1, and what containerd and Docker 25 write beside it: the whole reference.
_TAG = "org.opencontainers.image.ref.name"
_WHOLE_NAME = "io.containerd.image.name"
_CHUNK = 1 << 20


class _Saved(msgspec.Struct, frozen=True, rename="pascal"):
    """One image of ``docker save``'s manifest.json."""

    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


Files = Callable[[str], Opened]
"""Opens a file of an archive or a layout by its name; InfrastructureError: it is not there."""


def _in_directory(place: Path) -> Files:
    def opened(name: str) -> Opened:
        path = place / name
        if not path.is_file():
            raise _absent(name, place)
        return partial(open_named, path)

    return opened


def in_archive(place: Path) -> Files:
    """Files inside a tar archive, found by one pass over its headers. RefusedError: it is compressed, no tar archive,
    or holds sparse files. UsageError: another user's link leads to it.
    """
    parts: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    try:
        with open_named(place) as file:
            heads = _Heads(file.fileno(), closefd=False)
            with tarfile.open(fileobj=cast("IO[bytes]", heads), mode="r:") as archive:
                for member in archive:
                    heads.left = LARGEST_HEAD
                    name = posixpath.normpath(member.name)
                    if member.size < 0:  # it would lead back to a header that was read, for ever
                        raise tarfile.ReadError(f"{name} has a size of {member.size} bytes")
                    if member.issparse():
                        what = f"the archive holds {name} as a sparse file"
                        raise RefusedError(what, where=str(place), fix="write the archive again without tar's --sparse")
                    if member.isreg():
                        parts[name] = (member.offset_data, member.size)
                    elif member.issym():  # older `docker save`: a layer that two images share
                        links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                    elif member.islnk():
                        links[name] = posixpath.normpath(member.linkname)
            # A damaged header looks like the end to tarfile; only blocks of zeros are one.
            file.seek(archive.offset)
            if any(file.read(tarfile.BLOCKSIZE)):
                raise tarfile.ReadError(f"the header at byte {archive.offset} is damaged")
    except (tarfile.TarError, ValueError, RecursionError) as error:
        fix = "if it is compressed, unpack that first"
        raise RefusedError(f"this is no plain tar archive: {error}", where=str(place), fix=fix) from error

    def opened(name: str) -> Opened:
        part = parts.get(links.get(name, name))
        if part is None:
            raise _absent(name, place)
        return lambda: _part(place, *part)

    return opened


class _Heads(io.FileIO):
    """A file of which tarfile reads headers alone; ``left``: bytes that those of one member may still have."""

    left = LARGEST_HEAD

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= size or 0
        if self.left < 0:
            raise tarfile.ReadError(f"a header of more than {LARGEST_HEAD} bytes")
        return super().read(size) or b""


def _part(path: Path, offset: int, size: int) -> IO[bytes]:
    """Bytes of a file from an offset on."""

    def blocks() -> Iterator[bytes]:
        left = size
        with open_named(path) as file:
            file.seek(offset)
            while left and (block := file.read(min(left, _CHUNK))):
                left -= len(block)
                yield block

    return cast("IO[bytes]", io.BufferedReader(ChunkReader(blocks()), _CHUNK))


def from_file(kind: str, text: str, platform: Platform) -> tuple[Path, Source]:
    """The file or directory of ``PATH[:NAME]``, and its image of that name, or the only one. kind: ``docker-archive``,
    ``oci-archive`` or ``oci``. UsageError: it is not there, of another kind, or behind another user's link.
    RefusedError: no such image or platform. InfrastructureError: it is malformed.
    """
    place, name = _located(kind, text)
    return place, (_from_docker_archive if kind == "docker-archive" else _from_oci)(place, name, platform)


def _from_docker_archive(place: Path, wanted: str, platform: Platform) -> Source:
    files = in_archive(place)
    try:
        saved = msgspec.json.decode(_read(files, "manifest.json", place), type=tuple[_Saved, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = f"manifest.json is not what docker save writes: {error}"
        raise InfrastructureError(what, where=str(place)) from error
    by_name = {str(references.parse(tag)): one for one in saved for tag in one.repo_tags or ()}
    name = str(references.parse(wanted)) if wanted else ""
    if not name and len(saved) == 1:
        name = next(iter(by_name), "")
        image = saved[0]
        if name and (whose := exchangeable_by(place)):
            what, fix = f"this archive is {whose}, and calls itself {name}", "if you take it as that, name the image"
            raise UsageError(what, where=str(place), fix=f"{fix}: docker-archive:{place}:{name}")
    elif name in by_name:
        image = by_name[name]
    else:
        raise _no_such_image(name, by_name, f"docker-archive:{place}")
    raw = _read(files, image.config, place)
    configuration = manifests.configuration(raw, len(image.layers), platform, str(place))
    digest = manifests.digest_of(raw)
    opened = tuple(files(posixpath.normpath(layer)) for layer in image.layers)
    return layered_source(name or digest, digest, configuration, lambda _, places: tuple(opened[at] for at in places))


def _from_oci(place: Path, wanted: str, platform: Platform) -> Source:
    files = _in_directory(place) if place.is_dir() else in_archive(place)
    parsed = manifests.parse(_read(files, "index.json", place), f"{place}/index.json")
    if not isinstance(parsed, Index):
        raise InfrastructureError("index.json is no index of images", where=str(place))
    chosen = _tagged(parsed, wanted, platform, f"oci:{place}")

    def blob(descriptor: Descriptor) -> str:
        return f"blobs/{descriptor.digest.replace(':', '/')}"

    def document(descriptor: Descriptor) -> bytes:
        return checked_digest(_read(files, blob(descriptor), place), descriptor, str(place))

    def fetch(manifest: Manifest, _: Progress, places: Sequence[int]) -> tuple[Opened, ...]:
        return tuple(files(blob(manifest.layers[at])) for at in places)

    return for_platform(
        _name(chosen, place), document(chosen), platform, manifest=document, document=document, fetch=fetch
    )


def _tagged(index: Index, wanted: str, platform: Platform, where: str) -> Descriptor:
    """What the tag names; entries of one tag, or of none, may be the same image for several platforms."""
    meant = [one for one in index.manifests if not wanted or wanted in _tags(one)]
    if len({one.digest for one in meant}) > 1:
        if len({_tags(one) for one in meant}) == 1 and all(one.platform for one in meant):
            return manifests.choose(Index(tuple(meant)), platform, where)
        meant = meant[-1:] if wanted else []
    if not meant and index.others and not index.manifests:
        return manifests.choose(index, platform, where)
    if not meant:
        raise _no_such_image(wanted, {tag for one in index.manifests for tag in _tags(one)}, where)
    return meant[0]


def _located(kind: str, text: str) -> tuple[Path, str]:
    place, name = _split(text)
    of_directory = kind == "oci"
    noun = "directory" if of_directory else "file"
    if text and (place.is_dir() if of_directory else place.is_file()):
        return place, name
    what = f"there is no {noun} {place}"
    if not text:
        what = f"{kind}: names no {noun}"
    elif place.exists():
        what = f"{place} is no {noun}"
    shown = {
        "docker-archive": "docker-archive:FILE[:NAME], a file from `docker save`",
        "oci-archive": "oci-archive:FILE[:TAG], the tar archive of an OCI layout",
        "oci": "oci:DIR[:TAG], the directory of an OCI layout",
    }
    others = [other for other in shown if (other == "oci") == place.is_dir()] if text and place.exists() else [kind]
    raise UsageError(what, where=f"{kind}:{text}", fix="; or ".join(shown[other] for other in others))


def _split(text: str) -> tuple[Path, str]:
    """``PATH[:NAME]``, split at the first colon before which a file exists; one that others have put beside, with a
    colon in its name, comes after one's own.
    """
    cuts = [len(text), *(at for at, character in enumerate(text) if character == ":")]
    parts = [(paths.expanded(text[:cut]), text[cut + 1 :]) for cut in cuts]
    there = [(path, name) for path, name in parts if path.exists()]
    return next((each for each in there if not exchangeable_by(each[0])), next(iter(there), parts[0]))


def _tags(descriptor: Descriptor) -> tuple[str, ...]:
    annotations = descriptor.annotations or {}
    return tuple(annotations[key] for key in (_TAG, _WHOLE_NAME) if key in annotations)


def _name(descriptor: Descriptor, place: Path) -> str:
    """The full reference in the layout; else its directory's name with the tag; else, and of a stranger, its digest."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in place.stem.lower()).strip("-")
    tags = _tags(descriptor)
    texts = (*reversed(tags), *(f"{slug}:{tag}" for tag in tags if "/" not in tag))
    for text in () if exchangeable_by(place) else texts:
        try:
            parsed = references.parse(text)
        except UsageError:
            continue
        if "/" in text or ":" in text:
            return str(parsed)
    return descriptor.digest


def _read(files: Files, name: str, place: Path) -> bytes:
    with files(name)() as source:
        raw = source.read(manifests.LARGEST_DOCUMENT + 1)
    if len(raw) > manifests.LARGEST_DOCUMENT:
        raise InfrastructureError(f"{name} has more than {manifests.LARGEST_DOCUMENT} bytes", where=str(place))
    return raw


def _no_such_image(wanted: str, named: Collection[str], where: str) -> RefusedError:
    names = sorted(named)
    listed = ", ".join(shlex.quote(f"{where}:{name}") for name in names)
    fix = f"name one of these: {listed}" if names else "save it again with a tag"
    if not wanted:
        return RefusedError("several images are in it, or none", where=where, fix=fix)
    return RefusedError(f"no image {wanted!r} is in it", where=where, fix=instead(wanted, names, fix))


def _absent(name: str, place: Path) -> InfrastructureError:
    fix = "check that the scheme names its format"
    return InfrastructureError(f"there is no {name} in it", where=str(place), fix=fix)
