"""Squashfs files for the store: which source an image is taken from, its root packed, and the result verified."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.core import paths, process
from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.core.files import key_of, sha256
from runner.core.hide import hidden
from runner.core.progress import Progress
from runner.core.text import first_of
from runner.images import reference as references
from runner.images.conversion import assembly
from runner.images.conversion.engine_source import Method, engine_image
from runner.images.conversion.publishing import ABOUT, Contents, Conversion, Maker, about_of, publish
from runner.images.packing import mksquashfs, rootfs, tarstream
from runner.images.packing.mksquashfs import Packing, PackJob, Source
from runner.images.store import image_files, integrity, store
from runner.images.store.stored_image import Edit, StoredImage
from runner.model.plan import RESULTS

if TYPE_CHECKING:
    import docker

CONVERTER = "runner-sqsh 5"  # the version goes into the key: raise it with every change of what is written
ASSEMBLED = f"{CONVERTER}.2, assembled"  # the same root; which bytes, depends on what the store held
_DATA_ORDERS = ("walk", "layers")
# A read-only root takes binds only where the directory exists: ours, and the usual ones of data.
_DIRECTORIES = (RESULTS.strip("/"), "data", "scratch", "ch")
SourceKind = Literal["auto", "engine", "registry"]
_FILE_SCHEMES = ("docker-archive:", "oci-archive:", "oci:")


@dataclass(frozen=True)
class ImageName:
    """What the text that names an image says of its source: "engine", "registry", a file's scheme without its colon, or
    "any" where it leaves that open; and the rest: a reference, or a path with or without a name.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Options:
    """How an image is converted.

    Attributes:
        source: where a plain reference is taken from; "auto" means an engine if one answers, else its registry.
        platform: ``OS/ARCHITECTURE``; None means this machine's, and for an engine whatever it has.
        engine: URL of the engine; None finds one. method: see ``convert_engine_image``.
        store: None means the default. assemble: see ``convert_engine_image``.
    """

    source: SourceKind = "auto"
    platform: str | None = None
    engine: str | None = None
    method: Method = "auto"
    packing: Packing = field(default_factory=Packing)
    store: Path | None = None
    assemble: bool = False


def convert_engine_image(
    image: str,
    client: docker.DockerClient,
    progress: Progress,
    *,
    store_dir: Path | None = None,
    packing: Packing | None = None,
    method: Method = "auto",
    assemble: bool = False,
) -> Conversion:
    """The stored squashfs of an engine's ``image`` (a reference or an id), made unless the store holds it. ``method``:
    as ``engine_image``; assemble: from a stored relative where that is possible; the rest as ``convert_source``.
    """
    options, target = (packing or Packing()).options(), store_dir or store.directory()
    source = engine_image(image, client, method, _relatives(target, options, "walk") if assemble else ())
    return convert_source(source, progress, store_dir=store_dir, packing=packing, assemble=assemble)


def convert_source(
    source: Source,
    progress: Progress,
    *,
    store_dir: Path | None = None,
    packing: Packing | None = None,
    history: tuple[Edit, ...] = (),
    assemble: bool = False,
) -> Conversion:
    """The stored squashfs of any source, made unless the store holds it. ``history``: changes by hand that led to it.
    ``assemble``: the bytes may depend on what the store held, which the image's converter says.

    Raises:
        RefusedError: squashfs-tools are absent, or the source refuses.
        InfrastructureError: source, mksquashfs or the disk failed; nothing is left behind.
    """
    packed_as = packing or Packing()
    options = packed_as.options()

    def make(out: Path, progress: Progress) -> Contents:
        for program in ("mksquashfs", "unsquashfs"):
            if process.find(program) is None:
                raise RefusedError(f"{program} is not installed", fix="install the package squashfs-tools")
        config = source.config
        added = rootfs.additions(config, _DIRECTORIES, created_at(source.created))
        job = PackJob(added, out, packed_as, progress, (ABOUT,))
        relatives = (
            _relatives(store_dir or store.directory(), options, source.data_order) if assemble and source.layers else ()
        )
        try:
            passed = assembly.from_archives(source, relatives, job) or source.packed(job)
        except mksquashfs.CrashError as error:  # once more in another way and on one processor: the same bytes
            progress.step(f"{error.what}: trying once more, on one processor")
            passed = (source.otherwise or source.packed)(replace(job, packing=replace(packed_as, processors=1)))
        if passed.devices:
            progress.step(
                f"left out, as only root could unpack them: device files {first_of(sorted(passed.devices), 4)}"
            )
        progress.step("verifying")
        with ThreadPoolExecutor(1) as pool:
            checksum = pool.submit(lambda: passed.sha256 or sha256(out))
            if not passed.sha256:  # else it was compared with more than its names
                image_files.check_listing(out, passed.names)
        about, omitted = about_of(passed.captured.get(ABOUT)), rootfs.omitted(config.environment)
        of_its_own = (ASSEMBLED, assembled) if passed.sha256 else ()
        return Contents(passed.entries(), about, omitted, checksum.result(), *of_its_own)

    # One for each order of the data: whatever it is, the root is the same.
    keys = tuple(_key(source.digest, options, order) for order in dict.fromkeys((source.data_order, *_DATA_ORDERS)))
    assembled = key_of(keys[0], ASSEMBLED)
    maker = Maker(source, "squashfs", CONVERTER, options, (*keys, assembled) if assemble else keys, make)
    return publish(maker, progress, store_dir=store_dir, history=history)


def _relatives(target: Path, options: tuple[str, ...], order: str) -> list[StoredImage]:
    """Images of the store that came the same way: what layers' archives give may differ from what an engine gives,
    where one leads through a link of another.
    """

    def keys(digest: str) -> tuple[str, str]:
        key = _key(digest, options, order)
        return key, key_of(key, ASSEMBLED)

    return assembly.relatives(target, keys)


def _key(digest: str, options: tuple[str, ...], order: str) -> str:
    return key_of(digest, CONVERTER, *options, *_DIRECTORIES, *([] if order == "walk" else [order]))


def created_at(created: str) -> int:
    """When the image was made, seconds since the epoch: the squashfs carries this time and no later one. 0: unknown."""
    try:
        made = datetime.strptime(created[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return 0
    # Year 1 is how Go writes an unknown time.
    return int(made.timestamp()) if 0 <= made.timestamp() <= tarstream.LAST_S else 0


def parse_name(text: str, source: SourceKind) -> ImageName:
    """The image's name, read as Enroot, Podman and Skopeo write it; ``docker://`` is a registry, as there. UsageError:
    it contradicts ``source``.
    """
    for scheme in _FILE_SCHEMES:
        if text.startswith(scheme):
            name = ImageName(scheme.removesuffix(":"), text.removeprefix(scheme))
            break
    else:
        kind = "registry" if text.startswith("docker://") else "any" if source == "auto" else source
        of_engine = text.startswith(("dockerd://", "podman://", "docker-daemon://"))
        name = ImageName("engine" if of_engine else kind, text)
    if source not in ("auto", name.kind):
        raise UsageError(f"{text} is not taken from a{'n' * (source == 'engine')} {source}", where="--from")
    return name


def convert(text: str, options: Options, progress: Progress) -> Conversion:
    """The stored squashfs of the image that the text names, made unless the store holds it. UsageError, RefusedError,
    InfrastructureError: as the source and the conversion do.
    """
    name = parse_name(text, options.source)
    if name.kind in ("engine", "registry", "any") and references.is_path(name.text):
        raise references.path_without_format(name.text, exists=Path(name.text).exists())
    if (kept := _kept_by_digest(name, options)) is not None:
        return Conversion(kept, made=False, seconds=0.0)
    if name.kind in ("engine", "any"):
        from runner.images.engine import connect

        try:
            client = connect(options.engine)
        except RefusedError as error:
            if name.kind == "engine":
                raise
            if not references.names_registry(name.text):
                raise no_registry(name.text, error.what) from error
            progress.line(f"{error.what}: taking {hidden(text)} from its registry")
        else:
            if options.platform is not None:
                raise UsageError(
                    "an engine has its images for a single platform",
                    where="--platform",
                    fix="leave it out, or take the image from a registry with --from registry",
                )
            return convert_engine_image(
                name.text, client, progress, store_dir=options.store, packing=options.packing, method=options.method,
                assemble=options.assemble,
            )  # fmt: skip
    if options.method == "layers":
        raise UsageError(
            f"{text} is not an image of an engine: there are no layers to mount",
            where="--way layers",
            fix="leave it out: what comes from a registry or an archive is packed as a stream",
        )
    source = _layered(name, options, progress)
    return convert_source(source, progress, store_dir=options.store, packing=options.packing, assemble=options.assemble)


def _kept_by_digest(name: ImageName, options: Options) -> StoredImage | None:
    """The stored image of a reference with a digest, which never changes: no source is consulted. That of an index
    stands for images of several platforms, of which this machine's is meant.
    """
    if name.kind not in ("engine", "registry", "any") or options.platform is not None or paths.caches_ignored():
        return None
    if "@sha256:" not in name.text:
        return None
    from runner.images.sources import manifests

    with suppress(InfrastructureError):  # a sidecar that cannot be read: the image is made anew
        kept = store.lookup(name.text, options.store)
        if kept is None or kept.architecture not in ("", manifests.platform(None).architecture):
            return None
        converters = (CONVERTER, ASSEMBLED)[: 1 + options.assemble]
        if kept.converter in converters and kept.options == options.packing.options():
            return None if integrity.problem(kept) else kept
    return None


def _layered(name: ImageName, options: Options, progress: Progress) -> Source:
    from runner.images.sources import archives, layered, manifests

    wanted = manifests.platform(options.platform)
    if name.kind not in ("registry", "any"):
        return archives.from_file(name.kind, name.text, wanted)[1]
    named = references.parse(name.text)
    if not references.names_registry(name.text):
        raise no_registry(name.text)
    return layered.from_registry(named, wanted, progress)


def no_registry(text: str, why: str = "") -> RefusedError:
    """The refusal of a name that says no registry: whoever owns that name at Docker's hub would supply the image."""
    reference = references.parse(text)
    hub = reference if "/" in reference.repository else f"library/{reference}"
    ours = reference.repository.startswith(references.OURS)
    return RefusedError(
        f"{why + ', and ' if why else ''}{reference} names no registry to take it from",
        where=text,
        fix="build it on a machine with an engine, then convert it there, or push it to a registry of yours and name"
        " that: REGISTRY/NAME:TAG"
        if ours
        else f"name the registry: nvcr.io/NAME:TAG, or docker.io/{hub} if you mean Docker's hub",
    )
