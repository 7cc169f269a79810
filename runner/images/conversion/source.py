"""What can be converted: an image that is known, wherever its files lie."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from runner.core.progress import Progress
from runner.images.packing import mksquashfs, rootfs


class Source(Protocol):
    """An image as the store is to know it.

    Attributes:
        name: in the store: a reference, or its id. digest: its id.
        origin: digest by which registries know it; empty where none does. names: all such digests of it.
        created: when it was made, ISO 8601, UTC; empty where unknown. architecture: as Go names it.
        config: how a container of it starts.
    """

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def origin(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def created(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def config(self) -> rootfs.Config: ...


class PackableSource(Source, Protocol):
    """An image whose root can be packed into a squashfs.

    Attributes:
        data_order: of the files' data in what is packed: "walk" for that of a sorted walk, or another name.
    """

    @property
    def data_order(self) -> str: ...

    def another_way(self) -> PackableSource:
        """The same image, packed in another way if there is one."""

    def packed(
        self,
        added: rootfs.Additions,
        out: Path,
        packing: mksquashfs.Packing,
        progress: Progress,
        capture: tuple[str, ...],
    ) -> rootfs.Passed:
        """Pack its root with what is put in; returns what that holds."""
