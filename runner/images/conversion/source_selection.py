"""Where an image is taken from: what the text that names it says, and what answers on this machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner import paths
from runner.errors import InfrastructureError, RefusedError, UsageError
from runner.images import reference as references
from runner.images.conversion.convert import CONVERTER, Conversion, Way, convert, convert_source
from runner.images.packing.mksquashfs import Packing
from runner.images.store import integrity, store
from runner.images.store.store import StoredImage
from runner.progress import Progress

if TYPE_CHECKING:
    from runner.images.sources.layered import LayeredImage

Origin = Literal["auto", "engine", "registry"]
_ENGINE_SCHEMES = ("dockerd://", "podman://", "docker-daemon://")
_REGISTRY_SCHEMES = ("docker://",)
_FILE_SCHEMES = ("docker-archive:", "oci-archive:", "oci:")


@dataclass(frozen=True)
class Named:
    """What a text names.

    Attributes:
        kind: "engine", "registry", a file's scheme without its colon, or "any" where the text leaves it open.
        text: the rest: a reference, or a path with or without a name.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class How:
    """How an image is converted.

    Attributes:
        origin: where a plain reference is taken from; "auto" means an engine if one answers, else its registry.
        platform: ``OS/ARCHITECTURE``; None means this machine's, and for an engine whatever it has.
        engine: URL of the engine; None finds one. way, packing: see ``convert``. store: None means the default.
    """

    origin: Origin = "auto"
    platform: str | None = None
    engine: str | None = None
    way: Way = "auto"
    packing: Packing = field(default_factory=Packing)
    store: Path | None = None


def named(text: str, origin: Origin) -> Named:
    """What the text names, read as Enroot, Podman and Skopeo write it; ``docker://`` is a registry, as there.

    Raises:
        UsageError: it contradicts ``origin``.
    """
    for scheme in _FILE_SCHEMES:
        if text.startswith(scheme):
            found = Named(scheme.removesuffix(":"), text.removeprefix(scheme))
            break
    else:
        said = "registry" if text.startswith(_REGISTRY_SCHEMES) else "any" if origin == "auto" else origin
        found = Named("engine" if text.startswith(_ENGINE_SCHEMES) else said, text)
    if origin not in ("auto", found.kind):
        raise UsageError(f"{text} is not taken from a{'n' * (origin == 'engine')} {origin}", where="--from")
    return found


def convert_named(text: str, how: How, progress: Progress) -> Conversion:
    """Convert whatever image the text names.

    Raises:
        UsageError, RefusedError, InfrastructureError: as the source and the conversion do.
    """
    found = named(text, how.origin)
    if (kept := _kept_by_digest(found, how)) is not None:
        return Conversion(kept, made=False, seconds=0.0)
    if found.kind in ("engine", "any"):
        from runner.images.engine import connect

        try:
            client = connect(how.engine)
        except RefusedError as error:
            if found.kind == "engine":
                raise
            progress.line(f"{error.what}: taking {text} from its registry")
        else:
            if how.platform is not None:
                raise UsageError(
                    "an engine has its images for one platform only",
                    where="--platform",
                    fix="leave it out, or take the image from a registry with --from registry",
                )
            return convert(found.text, client, progress, store_dir=how.store, packing=how.packing, way=how.way)
    if how.way == "layers":
        raise UsageError(
            f"{text} is not of an engine: its layers lie nowhere that they could be mounted from",
            where="--way layers",
            fix="leave it out: what comes from a registry or an archive is packed as a stream",
        )
    return convert_source(_layered(found, how, progress), progress, store_dir=how.store, packing=how.packing)


def _kept_by_digest(found: Named, how: How) -> StoredImage | None:
    """The stored image of a reference with a digest, which can stand for nothing else: no source is asked."""
    if found.kind not in ("engine", "registry", "any") or how.platform is not None or paths.caches_ignored():
        return None
    if references.is_path(found.text) or "@sha256:" not in found.text:
        return None
    with suppress(InfrastructureError):  # a sidecar that cannot be read: the image is made anew
        kept = store.lookup(found.text, how.store)
        if kept is not None and (kept.converter, kept.options) == (CONVERTER, how.packing.options()):
            return None if integrity.problem(kept) else kept
    return None


def _layered(found: Named, how: How, progress: Progress) -> LayeredImage:
    from runner.images.sources import archives, layered, manifests

    wanted = manifests.platform(how.platform)
    if found.kind not in ("registry", "any"):
        place, name = archives.split(found.text)
        if found.kind == "docker-archive":
            return archives.from_docker_archive(place, name, wanted)
        files = archives.Directory(place) if found.kind == "oci" else archives.Archive(place)
        return archives.from_oci(files, name, wanted)
    if references.is_path(found.text):
        raise UsageError(
            f"{found.text} is a file, and its format is not said",
            where=found.text,
            fix="write docker-archive:FILE, oci-archive:FILE or oci:DIR; a squashfs needs no conversion",
        )
    return layered.from_registry(references.parse(found.text), wanted, progress)
