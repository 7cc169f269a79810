"""Runs ``apptainer build`` (or SingularityCE's) through spython.

spython's converter of Dockerfiles is not used: it drops stages and keeps ``SHELL`` and ``--mount`` as shell text
(0.3.14). Its ``Client.build(stream=True)`` reads one of two pipes and stands still when the other is full;
``stream_command(output_type="both")`` joins them, and every line of an error is seen.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core import process
from runner.core.errors import InfrastructureError, RefusedError
from runner.core.files import key_of, temporary_directory
from runner.core.loopback import ensure_own_port, is_loopback
from runner.core.progress import Progress
from runner.images.conversion.engine_source import engine_image
from runner.images.conversion.publishing import ABOUT, Contents, Conversion, Maker, about_of, publish
from runner.images.packing.mksquashfs import Source
from runner.images.reference import Reference
from runner.images.sources import layered, manifests
from runner.images.store import image_files

if TYPE_CHECKING:
    import docker

_CONVERTER = "runner-sif 2"
_MKSQUASHFS_OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")


def apptainer_program() -> str:
    """``apptainer``, or ``singularity`` where only that is found; RefusedError: neither is here. Debian's package
    ``singularity`` is a game, which does not count.
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
    """``apptainer build`` with these further arguments, to its end; ``say`` receives its lines, and an error has all.
    where: for messages. variables: over the inherited ones.
    """
    from spython.utils import stream_command  # type: ignore[import-untyped]

    name = apptainer_program()
    options = ["--force", "--mksquashfs-args", " ".join(_MKSQUASHFS_OPTIONS)]
    output: list[str] = []
    lines = stream_command([name, "build", *options, *arguments], output_type="both")
    try:
        with _environment(variables or {}):
            for line in lines:
                output.append(line.rstrip())
                say(line.rstrip())
    except process.CalledProcessError as error:
        text = "\n".join(output)
        full = "free space in the store and in APPTAINER_TMPDIR (default /tmp), where the builder unpacks the image"
        raise InfrastructureError(
            f"{name} failed with exit code {error.returncode}:\n{text}",
            where=where,
            fix=full if "no space left" in text.lower() else "",
        ) from error
    except BaseException:
        with suppress(process.CalledProcessError):  # Ctrl-C reached the builder, too: it tidies up before it ends
            for _line in lines:
                pass
        raise


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Of programs that start in the block. In arguments all users would see them, and one may have a login."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
            os.environ.update({name: before[name]} if name in before else {})


def sif_maker(source: Source, write: Callable[[Path], None]) -> Maker:
    """Makes the SIF of an image, whose files are not read: ``write`` writes it at the path that it is given."""

    def make(out: Path, progress: Progress) -> Contents:
        progress.step(f"building a SIF of {source.name}")
        if out.parent.is_symlink():  # in a store of others (``store.partial``), where a builder may not follow
            with temporary_directory() as private:
                write(private / "image")
                shutil.copyfile(private / "image", out)
        else:
            write(out)
        progress.step("verifying")
        about = about_of(image_files.content(out, ABOUT, "sif"))
        return Contents(sum(image_files.entries(out, "sif").values()), about)

    key = key_of(source.digest, _CONVERTER, *_MKSQUASHFS_OPTIONS)
    return Maker(source, "sif", _CONVERTER, _MKSQUASHFS_OPTIONS, (key,), make)


def convert(
    image: str, client: docker.DockerClient, engine_url: str, progress: Progress, *, store_dir: Path | None = None
) -> Conversion:
    """The stored SIF file of an engine's ``image``, made unless the store holds it. engine_url: as in DOCKER_HOST."""
    source = engine_image(image, client)
    built_from = f"docker-daemon:{source.digest}"

    def write(out: Path) -> None:
        apptainer_build([str(out), built_from], progress.line, where=built_from, variables={"DOCKER_HOST": engine_url})

    return publish(sif_maker(source, write), progress, store_dir=store_dir)


def without_tls(reference: Reference) -> list[str]:
    """The builder's options for a registry of this machine. RefusedError: a stranger could listen there."""
    if not is_loopback(reference.registry):
        return []
    ensure_own_port(reference.registry, by_name=True)
    return ["--no-https"]


def pull(reference: Reference, progress: Progress, *, store_dir: Path | None = None) -> Conversion:
    """The stored SIF of an image that the builder itself pulls from its registry, by its digest there now."""
    source = layered.from_registry(reference, manifests.platform(None), progress)
    image = f"docker://{'/'.join(filter(None, (reference.registry, reference.repository)))}@{source.origin}"

    def write(out: Path) -> None:
        apptainer_build([*without_tls(reference), str(out), image], progress.line, where=image)

    return publish(sif_maker(source, write), progress, store_dir=store_dir)
