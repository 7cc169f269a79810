"""Runs ``apptainer build`` (or SingularityCE's) through spython.

spython's converter of Dockerfiles is not used: it drops stages and keeps ``SHELL`` and ``--mount`` as shell text
(0.3.14). Its ``Client.build(stream=True)`` reads one of two pipes and stands still when the other is full;
``stream_command(output_type="both")`` joins them, and every line of an error is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from runner.core import process
from runner.core.errors import InfrastructureError, RefusedError

MKSQUASHFS_OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M")


def program() -> str:
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


def build(
    arguments: Sequence[str], say: Callable[[str], None], *, where: str, variables: Mapping[str, str] | None = None
) -> None:
    """``apptainer build`` with these further arguments, to its end.

    Args:
        say: receives its lines. where: for messages. variables: over the inherited ones.

    Raises:
        RefusedError: no builder is here. InfrastructureError: it failed; all of its output is in the message.
    """
    from spython.utils import stream_command  # type: ignore[import-untyped]

    name = program()
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
