"""Singularity images (SIF), built by Apptainer or SingularityCE from an engine's image, through spython.

An image is converted, never a recipe: spython's converter of Dockerfiles drops stages and keeps ``SHELL`` and
``--mount`` as shell text (0.3.14). Its ``Client.build(stream=True)`` reads one of two pipes and stands still when the
other is full; ``stream_command(output_type="both")`` joins them, and every line of an error is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner import process
from runner.errors import InfrastructureError, RefusedError

CONVERTER = "runner-sif 1"
OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")
_MAGIC = b"SIF_MAGIC"  # at byte 32, after the launch script: SIF specification 1.0
_CHECK_S = 600.0


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
