"""Singularity images (SIF) in the store, built by Apptainer or SingularityCE from an engine's image, through spython.

    DIR/NAME-DIGEST-KEY.sif     the image; a name stands for one image of the engine for ever
    DIR/NAME.sif                link to the newest of that reference, for ``submit --image REFERENCE``

An image is converted, never a recipe: spython's converter of Dockerfiles drops stages and keeps ``SHELL`` and
``--mount`` as shell text (0.3.14). Its ``Client.build(stream=True)`` reads one of two pipes and stands still when the
other is full; ``stream_command(output_type="both")`` joins them, and every line of an error is seen.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner import paths, process
from runner.errors import InfrastructureError, RefusedError
from runner.images import reference as references
from runner.images import store
from runner.images.claims import claimed
from runner.images.keys import cold, key_of
from runner.images.progress import Progress

if TYPE_CHECKING:
    import docker

CONVERTER = "runner-sif 1"
OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")
_MAGIC = b"SIF_MAGIC"  # at byte 32, after the launch script: SIF specification 1.0
_CHECK_S = 600.0


@dataclass(frozen=True)
class Sif:
    """A SIF file of the store: whether it was made now, and in how many seconds."""

    path: Path
    made: bool
    seconds: float


def lookup(reference: str) -> Path | None:
    """The newest SIF file of that reference in the store; None where there is none."""
    link = _link(_name(reference), store.directory())
    return link.resolve() if link.exists() else None


def convert(
    image: str, client: docker.DockerClient, engine_url: str, progress: Progress, *, store_dir: Path | None = None
) -> Sif:
    """The SIF file of the engine's ``image``, made unless the store has it.

    Args:
        engine_url: where the engine answers, as in DOCKER_HOST.

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image, or no builder is here.
        InfrastructureError: the builder or the disk failed; nothing is left behind.
    """
    from runner.images.convert import found_in_engine

    started = time.monotonic()
    name = _name(image)
    digest = str(found_in_engine(image, client).id)
    target = paths.made(store_dir or store.directory())
    key = key_of(digest, CONVERTER, *OPTIONS)
    final = target / store.file_name(name, digest, key).replace(".sqsh", ".sif")
    made = cold() or not final.is_file()
    if made:
        with claimed(store.claim_path(key, target), progress.step):
            store.sweep(key, target)
            made = cold() or not final.is_file()
            if made:
                _make(digest, engine_url, final, store.partial_path(key, target), progress)
    _point(_link(name, target), final)
    return Sif(final, made, time.monotonic() - started)


def _make(digest: str, engine_url: str, final: Path, partial: Path, progress: Progress) -> None:
    progress.step(f"building {final.name}")
    try:
        build(digest, engine_url, partial, progress.line)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(final)
    finally:
        partial.unlink(missing_ok=True)


def _name(text: str) -> str:
    return text if text.startswith("sha256:") else str(references.parse(text))


def _link(name: str, target: Path) -> Path:
    return target / (re.sub(r"[^A-Za-z0-9._-]", "+", name) + ".sif")


def _point(link: Path, final: Path) -> None:
    """Let the link stand for this file from now on, at once."""
    if link.is_symlink() and link.resolve() == final:
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(final.name)
    fresh.rename(link)


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
        mend="`module load apptainer` (or singularity) on a cluster; elsewhere see https://apptainer.org/docs",
    )


def build(image_id: str, engine_url: str, out: Path, say: Callable[[str], None]) -> None:
    """Build ``out`` from the engine's image ``image_id`` (``sha256:...``); ``say`` gets the builder's lines.

    Args:
        engine_url: where the engine answers, as in DOCKER_HOST.

    Raises:
        RefusedError: no builder is here.
        InfrastructureError: it failed; its own words, whole.
    """
    from spython.utils import stream_command  # type: ignore[import-untyped]

    squash = ("--mksquashfs-args", " ".join(OPTIONS))
    words = [program(), "build", "--force", *squash, str(out), f"docker-daemon:{image_id}"]
    heard: list[str] = []
    lines = stream_command(["env", f"DOCKER_HOST={engine_url}", *words], output_type="both")
    try:
        for line in lines:
            heard.append(line.rstrip())
            say(line.rstrip())
    except process.CalledProcessError as error:
        raise InfrastructureError(
            f"{words[0]} failed with exit code {error.returncode}:\n" + "\n".join(heard),
            where=f"docker-daemon:{image_id}",
            mend=_mend("\n".join(heard)),
        ) from error
    except BaseException:
        with suppress(process.CalledProcessError):  # Ctrl-C reached the builder, too: it tidies up before it ends
            for _line in lines:
                pass
        raise
    check(out)


def check(path: Path) -> None:
    """That ``path`` is a SIF file whose system partition is a whole squashfs.

    Raises:
        InfrastructureError: it is not.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if head[32 : 32 + len(_MAGIC)] != _MAGIC:
        raise InfrastructureError("this is no SIF file", where=str(path), mend="convert the image again")
    listed = process.run((program(), "sif", "list", path), timeout_s=_CHECK_S).out
    found = re.search(r"\|(\d+)-\d+\s+\|FS \(Squashfs/\*System", listed)
    if found is None:
        raise InfrastructureError(f"no system partition in it:\n{listed}", where=str(path))
    process.run(("unsquashfs", "-o", found[1], "-s", path), timeout_s=_CHECK_S)


def _mend(said: str) -> str:
    if "no space left" in said.lower():
        return "free space in the store and in APPTAINER_TMPDIR (default /tmp), where the builder unpacks the image"
    return ""
