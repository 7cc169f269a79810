"""Singularity images (SIF) in the store, built by Apptainer or SingularityCE from an engine's image, through spython.

An image is converted, never a recipe: spython's converter of Dockerfiles drops stages and keeps ``SHELL`` and
``--mount`` as shell text (0.3.14). Its ``Client.build(stream=True)`` reads one of two pipes and stands still when the
other is full; ``stream_command(output_type="both")`` joins them, and every line of an error is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner import process
from runner.errors import InfrastructureError, RefusedError
from runner.files.hashes import key_of
from runner.images.conversion.convert import ABOUT, Conversion, Source, about_of, described, engine_source, kept_or_made
from runner.images.store import sif_file, store
from runner.progress import Progress

if TYPE_CHECKING:
    import docker

CONVERTER = "runner-sif 2"
OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")


def convert(
    image: str, client: docker.DockerClient, engine_url: str, progress: Progress, *, store_dir: Path | None = None
) -> Conversion:
    """The SIF file of the engine's ``image``, made unless the store has it.

    Args:
        engine_url: where the engine answers, as in DOCKER_HOST.

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image, or no builder is here.
        InfrastructureError: the builder or the disk failed; nothing is left behind.
    """
    source = engine_source(image, client)
    return kept(source, lambda out: build(source.digest, engine_url, out, progress.line), progress, store_dir=store_dir)


def kept(
    source: Source, write: Callable[[Path], None], progress: Progress, *, store_dir: Path | None = None
) -> Conversion:
    """The store's SIF file of an image; where it has none, ``write`` makes it at the path that it is given.

    Args:
        source: what the image is; its files are not asked for.

    Raises:
        InfrastructureError: what was made is no whole SIF, or the disk failed; and whatever ``write`` raises.
    """
    target = store_dir or store.directory()
    key = key_of(source.digest, CONVERTER, *OPTIONS)

    def make() -> store.StoredImage:
        partial = store.partial_path(key, target)
        try:
            progress.step(f"building a SIF of {source.name}")
            write(partial)
            progress.step("verifying")
            stored = described(
                source, partial, target, key, entries=sum(sif_file.entries(partial).values()),
                about=about_of(sif_file.content(partial, ABOUT)), converter=CONVERTER, options=OPTIONS, form="sif",
            )  # fmt: skip
            return store.publish(partial, stored)
        finally:
            partial.unlink(missing_ok=True)

    return kept_or_made(source, (key,), target, make, progress, "sif")


def program() -> str:
    """``apptainer``, or ``singularity`` where only that is found.

    Raises:
        RefusedError: neither is here. Debian's package ``singularity`` is a game, which does not count.
    """
    for name in ("apptainer", "singularity"):
        if process.find(name) is not None:
            told = process.run((name, "--version"), timeout_s=60, check=False)
            if told.code == 0 and re.match(r"(apptainer|singularity)\S* version ", told.out):
                return name
    raise RefusedError(
        "neither apptainer nor singularity was found",
        where="PATH",
        fix="`module load apptainer` (or singularity) on a cluster; elsewhere see https://apptainer.org/docs",
    )


def build(image_id: str, engine_url: str, out: Path, say: Callable[[str], None]) -> None:
    """Build ``out`` from the engine's image ``image_id`` (``sha256:...``); ``say`` gets the builder's lines.

    Args:
        engine_url: where the engine answers, as in DOCKER_HOST.

    Raises:
        RefusedError: no builder is here.
        InfrastructureError: it failed; its own words, whole.
    """
    words = [str(out), f"docker-daemon:{image_id}"]
    run_builder(words, say, where=f"docker-daemon:{image_id}", variables={"DOCKER_HOST": engine_url})


def run_builder(
    words: Sequence[str], say: Callable[[str], None], *, where: str, variables: Mapping[str, str] | None = None
) -> None:
    """``apptainer build`` with these further words, to its end.

    Args:
        say: gets its lines. where: for messages. variables: over ours.

    Raises:
        RefusedError: no builder is here. InfrastructureError: it failed; its own words, whole.
    """
    from spython.utils import stream_command  # type: ignore[import-untyped]

    name = program()
    given = [f"{variable}={value}" for variable, value in (variables or {}).items()]
    command = ["env", *given, name, "build", "--force", "--mksquashfs-args", " ".join(OPTIONS), *words]
    heard: list[str] = []
    lines = stream_command(command, output_type="both")
    try:
        for line in lines:
            heard.append(line.rstrip())
            say(line.rstrip())
    except process.CalledProcessError as error:
        raise InfrastructureError(
            f"{name} failed with exit code {error.returncode}:\n" + "\n".join(heard),
            where=where,
            fix=_fix("\n".join(heard)),
        ) from error
    except BaseException:
        with suppress(process.CalledProcessError):  # Ctrl-C reached the builder, too: it tidies up before it ends
            for _line in lines:
                pass
        raise


def _fix(said: str) -> str:
    if "no space left" in said.lower():
        return "free space in the store and in APPTAINER_TMPDIR (default /tmp), where the builder unpacks the image"
    return ""
