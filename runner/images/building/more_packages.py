"""An image with further packages: a layer on top of the finished one, which stays as it is."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core import paths
from runner.core.files import files_below, key_of, tree_hash
from runner.core.lock import locked
from runner.core.progress import Progress
from runner.images.building import engine_build
from runner.images.building.build import INPUTS_LABEL, BuiltImage
from runner.images.building.engine_build import EngineBase
from runner.images.conversion.publishing import ABOUT, about_of

if TYPE_CHECKING:
    import docker

PACKAGES_LABEL = "gpu-runner.packages"
_FOLDER = "packages"  # of containers
_KEY_LENGTH = 8


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
    """The image with these packages; it is skipped where one with the same inputs exists.

    Args:
        lines: as ``requirements.together`` gives them. nccl: the build argument of the image.

    Raises:
        ProgramFailedError: pip refused, a package cannot be imported, or Horovod no longer passes its proof.
        InfrastructureError: the engine failed.
    """
    import docker

    started = time.monotonic()
    folder = [(f"containers/{_FOLDER}/{name}", path) for name, path in files_below(paths.share("containers") / _FOLDER)]
    inputs = key_of(built.labels[INPUTS_LABEL], built.digest, tree_hash(folder), nccl, *lines)
    target = f"{built.reference}-with-{key_of(*lines)[:_KEY_LENGTH]}"
    made = before = None
    with suppress(docker.errors.ImageNotFound):
        made = before = client.images.get(target)
    up_to_date = made is not None and made.labels.get(INPUTS_LABEL) == inputs and not paths.caches_ignored()
    if not up_to_date:
        base = EngineBase(_FOLDER, built.reference, built.digest, {"NCCL": nccl}, platform)
        labels = {INPUTS_LABEL: inputs, PACKAGES_LABEL: " ".join(lines)}
        with (
            locked(paths.ensure_directory(paths.cache("locks")) / "build.lock", progress.step),
            tempfile.NamedTemporaryFile("w", suffix=".txt") as file,
        ):
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            files = [*folder, (f"containers/{_FOLDER}/requirements.txt", Path(file.name))]
            args = {"FRAMEWORK": framework}
            engine_build.run(client, base, progress, files=files, tag=target, target=None, args=args, labels=labels)
        made = client.images.get(target)
        if before is not None and before.id != made.id:
            engine_build.remove_image(client, str(before.id))
    assert made is not None
    return replace(
        built,
        reference=target,
        digest=str(made.id),
        labels=dict(made.labels),
        up_to_date=up_to_date,
        seconds=built.seconds + time.monotonic() - started,
        size_bytes=int(made.attrs["Size"]),
        about=about_of(engine_build.content(client, str(made.id), f"/{ABOUT}")),
    )
