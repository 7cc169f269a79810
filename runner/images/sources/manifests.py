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

from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.core.files import sha256
from runner.images.packing import rootfs
from runner.model.image import labels_taken_over

MEDIA_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
# The OCI distribution specification lets a registry refuse manifests above 4 MiB.
LARGEST_DOCUMENT = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Any other digest of the OCI image specification (descriptor.md): its grammar, and sha512's own length.
_OTHER_DIGEST = re.compile(
    r"sha512:[0-9a-f]{128}|(?!sha256:|sha512:)[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[a-zA-Z0-9=_-]{32,512}"
)
_PLATFORM = re.compile(r"(?P<os>[a-z0-9]+)/(?P<architecture>[a-z0-9_]+)(?:/(?P<variant>[a-z0-9.]+))?")
# Architecture as `uname -m` prints it -> Go's name (GOARCH), which images use.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
# Architecture -> the variant that an empty one means, as containerd has it (platforms, database.go: normalizeArch).
_FIRST_VARIANTS = {"amd64": "v1", "arm64": "v8", "arm": "v7"}
_VARIANT = re.compile(r"v?([0-9]{1,3})(?:\.([0-9]{1,3}))?")
# Bytes. Linux starts no program with a longer string (execve(2)), nor with more than some 2 MB of strings and pointers:
# half is left to the job.
_LARGEST_VARIABLE, _MOST_VARIABLES = 128 << 10, 1 << 20
_ATTESTATION = "vnd.docker.reference.type"  # BuildKit's annotation of what describes an image and is none


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, in Go's terms; an empty variant is the architecture's first one."""

    os: str = ""
    architecture: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    @property
    def is_image(self) -> bool:
        """Whether it names one at all: attestations of BuildKit call themselves unknown/unknown."""
        return "unknown" not in (self.os, self.architecture)

    def rank(self, wanted: Platform) -> tuple[int, int] | None:
        """How well an image of this platform suits the wanted one: a later variant better; None where it does not. A
        processor runs images of its own variant and of earlier ones.
        """
        if (self.os, self.architecture) != (wanted.os, wanted.architecture):
            return None
        mine, theirs = self._level(), wanted._level()
        if mine is None or theirs is None:
            return (0, 0) if self.variant in ("", wanted.variant) else None
        return mine if mine <= theirs else None

    def _level(self) -> tuple[int, int] | None:
        match = _VARIANT.fullmatch(self.variant or _FIRST_VARIANTS.get(self.architecture, ""))
        return (int(match[1]), int(match[2] or 0)) if match else None


class Descriptor(msgspec.Struct, frozen=True):
    """A reference to a blob by its digest. size: bytes as stored, compressed."""

    digest: str
    size: int = 0
    platform: Platform | None = None
    annotations: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.size < 0 or not (self.is_checkable or _OTHER_DIGEST.fullmatch(self.digest)):
            raise ValueError(f"{self.digest[:80]!r} of {self.size} bytes is no digest with its size")

    @property
    def is_checkable(self) -> bool:
        """Whether its digest is of the algorithm that we check."""
        return is_digest(self.digest)

    @property
    def is_image(self) -> bool:
        """Whether an index means an image by it, and not what describes another one."""
        described = _ATTESTATION in (self.annotations or {})
        return not described and (self.platform is None or self.platform.is_image)


class Manifest(msgspec.Struct, frozen=True):
    """One image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class Index(msgspec.Struct, frozen=True):
    """Manifests of the same image for several platforms, or of several images, whose digests can be checked; what
    describes an image (attestations) is left out. others: platforms of images whose digests cannot; None for any.
    """

    manifests: tuple[Descriptor, ...]
    others: tuple[Platform | None, ...] = ()


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

    def of_container(self, where: str) -> rootfs.Config:
        """The same as the store keeps it; labels and volumes in the order in which an engine gives them. RefusedError:
        no program starts with variables of that size.
        """
        sizes = [len(line.encode("utf-8", "surrogatepass")) + 1 for line in self.env or ()]
        if max(sizes, default=0) > _LARGEST_VARIABLE or sum(sizes) + 8 * len(sizes) > _MOST_VARIABLES:
            raise RefusedError(
                f"the image has {len(sizes)} variables of {sum(sizes)} bytes, the largest of {max(sizes)}: no program"
                f" starts with more than {_LARGEST_VARIABLE} bytes in one, or about {_MOST_VARIABLES} in all",
                where=where,
                fix="set fewer or shorter variables (ENV) in the image; what is long belongs in a file",
            )
        return rootfs.Config(
            environment=dict(line.partition("=")[::2] for line in self.env or ()),
            workdir=self.working_dir or "",
            entrypoint=self.entrypoint or (),
            command=self.cmd or (),
            labels=dict(sorted(labels_taken_over(self.labels).items())),
            volumes=tuple(sorted(self.volumes or {})),
        )


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
    """A manifest or an index, distinguished by content: media types are missing or wrong too often."""
    document: _Document = _decoded(raw, _Document, where)
    if document.manifests is not None:
        images = [one for one in document.manifests if one.is_image]
        others = (one.platform for one in images if not one.is_checkable)
        return Index(tuple(one for one in images if one.is_checkable), tuple(others))
    if document.config is not None and document.layers is not None:
        for one in (document.config, *document.layers):
            if not one.is_checkable:
                raise _unchecked(one.digest.partition(":")[0], where)
        return Manifest(document.config, document.layers)
    if document.schema_version == 1:
        raise RefusedError(
            "the image has only a manifest of Docker's schema 1",
            where=where,
            fix="pull and push it again with a current engine",
        )
    raise InfrastructureError("this is not an image manifest", where=where)


def configuration(raw: bytes, layers: int, wanted: Platform, where: str) -> Configuration:
    """The configuration of an image of that many layers; RefusedError: it is that of no container image, or of one that
    is not made for the platform.
    """
    decoded: Configuration = _decoded(raw, Configuration, where)
    diff_ids = decoded.rootfs.diff_ids
    if len(diff_ids) != layers or not all(map(is_digest, diff_ids)):
        raise RefusedError(
            f"this is no container image: its configuration names {len(diff_ids)} layers of a root file system, its"
            f" manifest {layers}",
            where=where,
            fix="name an image that an engine can run",
        )
    if "rootfs" not in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]):  # it may be a manifest, with its digest
        what = "this is no container image: its configuration names no root file system"
        raise RefusedError(what, where=where, fix="name an image that an engine can run")
    if decoded.architecture and decoded.platform.rank(wanted) is None:
        raise _missing_platform([decoded.platform], wanted, where)
    return decoded


def platform(text: str | None) -> Platform:
    """``OS/ARCHITECTURE[/VARIANT]``; None means this machine's, of its architecture's first variant. UsageError: the
    text is no platform, or not one of Linux.
    """
    if text is None:
        return Platform("linux", _ARCHITECTURES.get(machine.machine(), machine.machine()))
    match = _PLATFORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a platform", where="--platform", fix="write it as linux/amd64")
    if match["os"] != "linux":
        what = f"images for {match['os']} cannot be converted: jobs run on Linux"
        raise UsageError(what, where="--platform", fix=f"--platform linux/{match['architecture']}")
    return Platform(match["os"], match["architecture"], match["variant"] or "")


def choose(index: Index, wanted: Platform, where: str) -> Descriptor:
    """The manifest that suits the platform best, the first of equals; an entry without platform is an image of any.
    RefusedError: there is none; the message lists the others.
    """
    ranked = [(one.platform.rank(wanted) if one.platform else (-1, 0), one) for one in index.manifests]
    suitable = [(rank, one) for rank, one in ranked if rank is not None]
    if suitable:
        return max(suitable, key=lambda pair: pair[0])[1]
    if any(one is None or one.rank(wanted) is not None for one in index.others):
        raise _unchecked("another algorithm", where)
    others = [one.platform for one in index.manifests if one.platform is not None]
    raise _missing_platform(others, wanted, where)


def _missing_platform(others: Sequence[Platform], wanted: Platform, where: str) -> RefusedError:
    """The refusal of an image that is not made for the platform."""
    images = [one for one in others if one.is_image]
    names = sorted({str(one) for one in images})
    of_linux = sorted({str(one) for one in images if one.os == "linux"})
    if names and not of_linux and all(one.os == "windows" for one in images):
        return RefusedError(
            "this is an image for Windows, and jobs run on Linux",
            where=where,
            fix="name the image's Linux tag, or build it for Linux",
        )
    return RefusedError(
        f"the image is not made for {wanted}, only for {', '.join(names) or 'platforms that it does not name'}",
        where=where,
        fix=f"name one of these: --platform {of_linux[0]}" if of_linux else "name another image",
    )


def _unchecked(algorithm: str, where: str) -> RefusedError:
    return RefusedError(
        f"the image's digests are of {algorithm}; only sha256 can be checked here",
        where=where,
        fix="push or save it again with sha256 digests, as engines do",
    )


def _decoded(raw: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InfrastructureError(f"this is not a valid image document: {error}", where=where) from error
