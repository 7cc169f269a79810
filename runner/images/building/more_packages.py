"""Further packages of an image, as ``build --requirement`` and ``--requirements`` name them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.core import paths
from runner.core.errors import UsageError
from runner.core.files import files_below, key_of, temporary_directory, tree_hash
from runner.core.progress import Progress
from runner.images.building import engine_build
from runner.images.building.build import BuiltImage, described, made_once
from runner.images.building.engine_build import EngineBase
from runner.model.image import INPUTS_LABEL

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

_FOLDER = "packages"  # of containers
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9._,\- ]+\])?[ \t]*==[ \t]*"
    r"(?P<version>[0-9][A-Za-z0-9.!+_-]*)[ \t]*(?:;\s*(?P<marker>(?:(?![;#\\])[ -~])+))?"
)


def requirement(text: str, where: str) -> str:
    """``NAME==VERSION``, as pip takes it, perhaps with extras and a marker. UsageError: it is something else; ``where``
    says which option, or which line of which file.
    """
    match = _LINE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text.strip()!r} is no package with its version",
            where=where,
            fix="NAME==VERSION, such as einops==0.8.1; options of pip, paths and addresses are not taken",
        )
    marker = f" ; {match['marker'].strip()}" if match["marker"] else ""
    return f"{match['name']}{(match['extras'] or '').replace(' ', '')}=={match['version']}{marker}"


def requirements_of_file(text: str, path: str) -> list[str]:
    """The requirements of a file: one a line, with comments. UsageError: a line is something else."""
    lines = ((number, re.sub(r"(^|\s)#.*", "", line).strip()) for number, line in enumerate(text.splitlines(), 1))
    return [requirement(line, f"{path}:{number}") for number, line in lines if line]


def together(lines: Iterable[str]) -> tuple[str, ...]:
    """All of them, sorted, each once. UsageError: a package is asked for in two versions."""
    chosen: dict[str, str] = {}
    for line in sorted(set(lines)):
        name, _, marker = line.partition(";")
        key = re.sub(r"[-_.]+", "-", re.split(r"[\[=]", name)[0]).lower() + marker
        if key in chosen:
            raise UsageError(
                f"{chosen[key]} and {line} are both asked for", where="--requirement", fix="leave out one of them"
            )
        chosen[key] = line
    return tuple(chosen.values())


def add(
    built: BuiltImage,
    framework: str,
    lines: Sequence[str],
    client: docker.DockerClient,
    progress: Progress,
    *,
    nccl: str = "auto",
    platform: str | None = None,
) -> BuiltImage:
    """The image with these packages, as ``together`` gives them; it is skipped where one with the same inputs exists.
    ProgramFailedError: pip refused, a package cannot be imported, or Horovod no longer passes its proof.
    """
    started = time.monotonic()
    folder = [(f"containers/{_FOLDER}/{name}", path) for name, path in files_below(paths.share("containers") / _FOLDER)]
    inputs = key_of(built.labels[INPUTS_LABEL], built.digest, tree_hash(folder), nccl, *lines)
    target = f"{built.reference}-with-{key_of(*lines)[:8]}"

    def make() -> Image:
        base = EngineBase(_FOLDER, built.reference, built.digest, {"NCCL": nccl}, platform)
        labels = {INPUTS_LABEL: inputs, "gpu-runner.packages": " ".join(lines)}
        with temporary_directory() as place:
            (place / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
            files = [*folder, (f"containers/{_FOLDER}/requirements.txt", place / "requirements.txt")]
            args = {"FRAMEWORK": framework}
            return engine_build.run(client, base, progress, files=files, tag=target, args=args, labels=labels)

    made, up_to_date = made_once(client, target, inputs, progress, make)
    seconds = built.seconds + time.monotonic() - started
    return replace(built, reference=target, up_to_date=up_to_date, seconds=seconds, **described(client, made))
