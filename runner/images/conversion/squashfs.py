"""Squashfs files for the store: a source's root, packed and verified by its superblock and its listing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core import process
from runner.core.errors import RefusedError
from runner.core.files import key_of
from runner.core.progress import Progress
from runner.images.conversion.engine_source import Method, engine_image
from runner.images.conversion.publishing import ABOUT, Contents, Conversion, PackableSource, about_of, publish
from runner.images.packing import mksquashfs, rootfs, tarstream
from runner.images.store import squashfs_file
from runner.images.store.stored_image import Edit, Form
from runner.model.plan import RESULTS

if TYPE_CHECKING:
    import docker

CONVERTER = "runner-sqsh 3"  # the version goes into the key: raise it with every change of what is written
_DATA_ORDERS = ("walk", "layers")
# A read-only root takes binds only where the directory exists: ours, and the usual ones of data.
_DIRECTORIES = (RESULTS.strip("/"), "data", "scratch", "ch")


@dataclass(frozen=True)
class SquashfsMaker:
    """Makes the squashfs of an image. See ``publishing.Maker``."""

    source: PackableSource
    packing: mksquashfs.Packing
    form: Form = "squashfs"
    converter: str = CONVERTER

    @property
    def options(self) -> tuple[str, ...]:
        """The options of mksquashfs that decide what is written."""
        return self.packing.options()

    @property
    def keys(self) -> tuple[str, ...]:
        """One for each order of the data: whatever it is, the root is the same."""
        orders = dict.fromkeys((self.source.data_order, *_DATA_ORDERS))
        return tuple(_key(self.source.digest, order, self.packing) for order in orders)

    def make(self, out: Path, progress: Progress) -> Contents:
        """Pack, then compare the listing with the source's.

        Raises:
            RefusedError: squashfs-tools are absent, or the source refuses.
            InfrastructureError: source, mksquashfs or the disk failed.
        """
        for program in ("mksquashfs", "unsquashfs"):
            if process.find(program) is None:
                raise RefusedError(f"{program} is not installed", fix="install the package squashfs-tools")
        config = self.source.config
        added = rootfs.additions(config, _DIRECTORIES, created_at(self.source.created))
        passed = self._packed(added, out, progress)
        progress.step("verifying")
        squashfs_file.check_listing(out, passed.names)
        return Contents(passed.entries(), about_of(passed.captured.get(ABOUT)), rootfs.omitted(config.environment))

    def _packed(self, added: rootfs.Additions, out: Path, progress: Progress) -> rootfs.Passed:
        """Pack; if mksquashfs crashes, once more in another way and on one processor, which gives the same bytes."""
        try:
            return self.source.packed(added, out, self.packing, progress, (ABOUT,))
        except mksquashfs.CrashError as error:
            progress.step(f"{error.what}: trying once more, on one processor")
            other = self.source.another_way()
            return other.packed(added, out, replace(self.packing, processors=1), progress, (ABOUT,))


def convert(
    image: str,
    client: docker.DockerClient,
    progress: Progress,
    *,
    store_dir: Path | None = None,
    packing: mksquashfs.Packing | None = None,
    method: Method = "auto",
) -> Conversion:
    """The stored squashfs of an engine's ``image`` (a reference or an id), made unless the store holds it.

    Args:
        method: "layers" or "stream" uses that one or fails; "auto" the first that this machine allows.

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image, or squashfs-tools are absent.
        InfrastructureError: the engine, mksquashfs or the disk failed; nothing is left behind.
    """
    return convert_source(engine_image(image, client, method), progress, store_dir=store_dir, packing=packing)


def convert_source(
    source: PackableSource,
    progress: Progress,
    *,
    store_dir: Path | None = None,
    packing: mksquashfs.Packing | None = None,
    history: tuple[Edit, ...] = (),
) -> Conversion:
    """The stored squashfs of any source, made unless the store holds it.

    Args:
        history: changes by hand that led to it.

    Raises:
        RefusedError: squashfs-tools are absent, or the source refuses.
        InfrastructureError: source, mksquashfs or the disk failed; nothing is left behind.
    """
    maker = SquashfsMaker(source, packing or mksquashfs.Packing())
    return publish(maker, progress, store_dir=store_dir, history=history)


def created_at(created: str) -> int:
    """When the image was made, seconds since the epoch: the squashfs carries this time and no later one. 0: unknown."""
    try:
        made = datetime.strptime(created[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return 0
    # Year 1 is how Go writes an unknown time.
    return int(made.timestamp()) if 0 <= made.timestamp() <= tarstream.LAST_S else 0


def _key(digest: str, order: str, packing: mksquashfs.Packing) -> str:
    return key_of(digest, CONVERTER, *packing.options(), *_DIRECTORIES, *([] if order == "walk" else [order]))
