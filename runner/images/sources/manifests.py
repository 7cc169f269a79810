"""Documents that describe an image in registries and image files: manifests, indexes and configurations.

Two families of one shape: Docker's image manifest v2 schema 2 and the OCI image specification 1.1. All of it comes
from outside: digests become file names, so their form is checked before anything else looks at them.
"""

from __future__ import annotations

import platform as machine
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from runner.errors import InfrastructureError, RefusedError, UsageError
from runner.files.hashes import sha256

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# The OCI distribution specification lets a registry refuse manifests above 4 MiB.
LARGEST_DOCUMENT = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PLATFORM = re.compile(r"(?P<os>[a-z0-9]+)/(?P<architecture>[a-z0-9_]+)(?:/(?P<variant>[a-z0-9.]+))?")
# Architecture as `uname -m` prints it -> Go's name (GOARCH), which images use.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, in Go's terms; an empty variant stands for any."""

    os: str = ""
    architecture: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    def serves(self, wanted: Platform) -> bool:
        """Whether an image of this platform serves the wanted one."""
        variants = {self.variant, wanted.variant} - {""}
        return (self.os, self.architecture) == (wanted.os, wanted.architecture) and len(variants) < 2


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to a blob by its digest. size: bytes as stored, compressed."""

    digest: str
    size: int = 0
    platform: Platform | None = None
    annotations: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest) or self.size < 0:
            raise ValueError(f"{self.digest!r} of {self.size} bytes is no sha256 digest with its size")


class Manifest(msgspec.Struct, frozen=True):
    """One image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class Index(msgspec.Struct, frozen=True):
    """Manifests of the same image for several platforms, or of several images."""

    manifests: tuple[Descriptor, ...]


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    schema_version: int = 2
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] | None = None
    manifests: tuple[Descriptor, ...] | None = None


class StartUp(msgspec.Struct, frozen=True, rename="pascal"):
    """How a container of the image starts."""

    env: tuple[str, ...] | None = None
    working_dir: str | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    labels: Mapping[str, str] | None = None
    volumes: Mapping[str, Any] | None = None


class RootFs(msgspec.Struct, frozen=True):
    """diff_ids: digests of the layers as plain tar archives, lowest first."""

    diff_ids: tuple[str, ...] = ()


class Configuration(msgspec.Struct, frozen=True):
    """An image's configuration; its digest is what an engine calls the image's id."""

    os: str = "linux"
    architecture: str = ""
    variant: str = ""
    created: str | None = None
    config: StartUp | None = None
    rootfs: RootFs = RootFs()

    @property
    def platform(self) -> Platform:
        """What the image runs on."""
        return Platform(self.os, self.architecture, self.variant)


def digest_of(content: bytes) -> str:
    """``sha256:...`` of these bytes."""
    return f"sha256:{sha256(content)}"


def is_digest(text: str) -> bool:
    """Whether the text is ``sha256:`` with 64 digits."""
    return _DIGEST.fullmatch(text) is not None


def parse(raw: bytes, where: str) -> Manifest | Index:
    """A manifest or an index, distinguished by content: media types are missing or wrong too often.

    Raises:
        RefusedError: Docker's schema 1, which is obsolete. InfrastructureError: neither.
    """
    document: _Document = _decoded(raw, _Document, where)
    if document.manifests is not None:
        return Index(document.manifests)
    if document.config is not None and document.layers is not None:
        return Manifest(document.config, document.layers)
    if document.schema_version == 1:
        raise RefusedError(
            "the image has only a manifest of Docker's schema 1",
            where=where,
            fix="pull and push it again with a current engine",
        )
    raise InfrastructureError("this is not an image manifest", where=where)


def configuration(raw: bytes, layers: int, where: str) -> Configuration:
    """The configuration of an image of that many layers.

    Raises:
        RefusedError: not the configuration of a container image. InfrastructureError: malformed.
    """
    found: Configuration = _decoded(raw, Configuration, where)
    if len(found.rootfs.diff_ids) != layers or not all(map(is_digest, found.rootfs.diff_ids)):
        raise RefusedError(
            f"this is no container image: its configuration names {len(found.rootfs.diff_ids)} layers of a root file"
            f" system, its manifest {layers}",
            where=where,
            fix="name an image that an engine can run",
        )
    return found


def platform(text: str | None) -> Platform:
    """``OS/ARCHITECTURE[/VARIANT]``; None means this machine's.

    Raises:
        UsageError: the text is no platform.
    """
    if text is None:
        return Platform("linux", _ARCHITECTURES.get(machine.machine(), machine.machine()))
    found = _PLATFORM.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a platform", where="--platform", fix="write it as linux/amd64")
    return Platform(found["os"], found["architecture"], found["variant"] or "")


def choose(index: Index, wanted: Platform, where: str) -> Descriptor:
    """The first manifest for the platform; an entry without one is an image of any.

    Raises:
        RefusedError: there is none; the message lists the others.
    """
    for descriptor in index.manifests:
        if descriptor.platform is None or descriptor.platform.serves(wanted):
            return descriptor
    # Attestations of BuildKit call themselves unknown/unknown.
    others = [one.platform for one in index.manifests if one.platform is not None and one.platform.os != "unknown"]
    raise missing_platform(others, wanted, where)


def missing_platform(others: Sequence[Platform], wanted: Platform, where: str) -> RefusedError:
    """The refusal of an image that is not made for the platform."""
    names = sorted({str(one) for one in others})
    return RefusedError(
        f"the image is not made for {wanted}, only for {', '.join(names) or 'platforms that it does not name'}",
        where=where,
        fix=f"name one of these: --platform {names[0]}" if names else "name another image",
    )


def _decoded(raw: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InfrastructureError(f"this is not a valid image document: {error}", where=where) from error
