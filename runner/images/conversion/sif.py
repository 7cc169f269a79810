"""Runs ``apptainer build`` (or SingularityCE's) through spython.

spython's converter of Dockerfiles is not used: it drops stages and keeps ``SHELL`` and ``--mount`` as shell text
(0.3.14). Its ``Client.build(stream=True)`` reads one of two pipes and stands still when the other is full;
``stream_command(output_type="both")`` joins them, and every line of an error is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core import process
from runner.core.errors import InfrastructureError, RefusedError
from runner.core.files import key_of
from runner.core.progress import Progress
from runner.images.conversion.engine_source import engine_image
from runner.images.conversion.publishing import ABOUT, Contents, Conversion, Source, about_of, publish
from runner.images.store import image_files
from runner.images.store.stored_image import Form

if TYPE_CHECKING:
    import docker


MKSQUASHFS_OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")


def apptainer_program() -> str:
    """``apptainer``, or ``singularity`` where only that is found.

    Raises:
        RefusedError: neither is here. Debian's package ``singularity`` is a game, which does not count.
    """
    for name in ("apptainer", "singularity"):
        if process.find(name) is not None:
            version = process.run((name, "--version"), timeout_s=60, check=False)
            if version.code == 0 and re.match(r"(apptainer|singularity)\S* version ", version.out):
                return name
    raise RefusedError(
        "neither apptainer nor singularity was found",
        where="PATH",
        fix="`module load apptainer` (or singularity) on a cluster; elsewhere see https://apptainer.org/docs",
    )


def apptainer_build(
    arguments: Sequence[str], say: Callable[[str], None], *, where: str, variables: Mapping[str, str] | None = None
) -> None:
    """``apptainer build`` with these further arguments, to its end.

    Args:
        say: receives its lines. where: for messages. variables: over the inherited ones.

    Raises:
        RefusedError: no builder is here. InfrastructureError: it failed; all of its output is in the message.
    """
    from spython.utils import stream_command  # type: ignore[import-untyped]

    name = apptainer_program()
    assignments = [f"{variable}={value}" for variable, value in (variables or {}).items()]
    options = ["--force", "--mksquashfs-args", " ".join(MKSQUASHFS_OPTIONS)]
    output: list[str] = []
    lines = stream_command(["env", *assignments, name, "build", *options, *arguments], output_type="both")
    try:
        for line in lines:
            output.append(line.rstrip())
            say(line.rstrip())
    except process.CalledProcessError as error:
        raise InfrastructureError(
            f"{name} failed with exit code {error.returncode}:\n" + "\n".join(output),
            where=where,
            fix=_fix("\n".join(output)),
        ) from error
    except BaseException:
        with suppress(process.CalledProcessError):  # Ctrl-C reached the builder, too: it tidies up before it ends
            for _line in lines:
                pass
        raise


def _fix(output: str) -> str:
    if "no space left" in output.lower():
        return "free space in the store and in APPTAINER_TMPDIR (default /tmp), where the builder unpacks the image"
    return ""


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
    options: tuple[str, ...] = MKSQUASHFS_OPTIONS

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
        return Contents(sum(image_files.sif_entries(out).values()), about_of(image_files.sif_content(out, ABOUT)))


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
        apptainer_build([str(out), built_from], progress.line, where=built_from, variables={"DOCKER_HOST": engine_url})

    return publish(SifMaker(source, write), progress, store_dir=store_dir)
