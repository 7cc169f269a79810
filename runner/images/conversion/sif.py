"""Singularity images (SIF) for the store, built by Apptainer or SingularityCE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.files import key_of
from runner.core.progress import Progress
from runner.images.conversion import apptainer_build
from runner.images.conversion.engine_source import engine_image
from runner.images.conversion.publishing import ABOUT, Contents, Conversion, about_of, publish
from runner.images.conversion.source import Source
from runner.images.store import sif_file
from runner.images.store.stored_image import Form

if TYPE_CHECKING:
    import docker

CONVERTER = "runner-sif 2"


@dataclass(frozen=True)
class SifMaker:
    """Makes the SIF file of an image. See ``publishing.Maker``.

    Attributes:
        source: the image; its files are not read. write: writes the file at the path that it is given.
    """

    source: Source
    write: Callable[[Path], None]
    form: Form = "sif"
    converter: str = CONVERTER
    options: tuple[str, ...] = apptainer_build.MKSQUASHFS_OPTIONS

    @property
    def keys(self) -> tuple[str, ...]:
        """A single one."""
        return (key_of(self.source.digest, CONVERTER, *self.options),)

    def make(self, out: Path, progress: Progress) -> Contents:
        """Build, then read the file back.

        Raises:
            InfrastructureError: it is no whole SIF; besides, all that ``write`` raises.
        """
        progress.step(f"building a SIF of {self.source.name}")
        self.write(out)
        progress.step("verifying")
        return Contents(sum(sif_file.entries(out).values()), about_of(sif_file.content(out, ABOUT)))


def convert(
    image: str, client: docker.DockerClient, engine_url: str, progress: Progress, *, store_dir: Path | None = None
) -> Conversion:
    """The stored SIF file of an engine's ``image``, made unless the store holds it.

    Args:
        engine_url: where the engine answers, as in DOCKER_HOST.

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image, or no builder is here.
        InfrastructureError: the builder or the disk failed; nothing is left behind.
    """
    source = engine_image(image, client)
    built_from = f"docker-daemon:{source.digest}"

    def write(out: Path) -> None:
        apptainer_build.build(
            [str(out), built_from], progress.line, where=built_from, variables={"DOCKER_HOST": engine_url}
        )

    return publish(SifMaker(source, write), progress, store_dir=store_dir)
