"""Enroot: the steps run in writable roots of the base, which is fetched and kept as a squashfs by this project.

``enroot create`` unpacks the base for each stage, ``enroot start --root --rw`` runs the stage's script in it. What is
left is packed for the store as any image is: ``enroot export`` would use Enroot's squashfs options, which are
slow (docs/conversion.md), and check nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from runner.core.errors import InfrastructureError
from runner.core.progress import Progress
from runner.images import reference as references
from runner.images.building import wheels
from runner.images.building.without_engine import script
from runner.images.building.without_engine.build_spec import (
    ARCHIVES,
    BuildSpec,
    ResolvedBase,
    work_directory,
    write_context,
)
from runner.images.building.without_engine.following import followed
from runner.images.building.without_engine.steps import Stage, environment
from runner.images.conversion import source_selection
from runner.images.conversion.squashfs import convert_source
from runner.images.packing import rootfs
from runner.images.store import store
from runner.images.store.stored_image import Form

PROGRAMS = ("enroot",)
FORM: Form = "squashfs"
INSTALL = "`module load enroot` on a cluster; elsewhere see https://github.com/NVIDIA/enroot"
_IMAGE = "image"  # the name of the last stage's root
# The command itself, not the image's entry point: a banner has no place in a build.
_RC = 'exec "$@"\n'


def base(reference: str, progress: Progress) -> ResolvedBase:
    """The base as a squashfs of the store, fetched from its registry with no engine, or read from its archive.

    Raises:
        RefusedError: no such image, or its registry wants a login. InfrastructureError: registry or disk failed.
    """
    kind: source_selection.SourceKind = "auto" if reference.startswith(ARCHIVES) else "registry"
    if kind == "registry" and not references.names_registry(reference):  # as FROM has it: Docker's hub
        reference = f"docker.io/{references.parse(reference)}"
    found = source_selection.convert(reference, source_selection.Options(kind), progress).image
    return ResolvedBase(reference, found.origin or found.digest, found.path)


def stored(spec: BuildSpec, progress: Progress) -> Path:
    """Build the image into the store.

    Raises:
        ProgramFailedError: a step failed. InfrastructureError: the disk is full, or the base is gone.
    """
    assert spec.base.path is not None
    known = store.lookup(str(spec.base.path))
    if known is None:
        raise InfrastructureError("the base has gone from the store", where=str(spec.base.path), fix="build again")
    with work_directory() as work:
        write_context(spec.files, work / "context")
        (work / "rc").write_text(_RC)
        for stage in spec.stages:
            name = stage.name or _IMAGE
            (work / "context" / f"{name}.sh").write_text(script.rendered(stage, spec.is_directory), "utf-8")
            for command in commands(stage, spec.base.path, work):
                followed(command, progress, what=f"enroot {command[1]}", room=str(work), env=_environment(work))
            if name != _IMAGE:
                wheels.keep_built(spec.base.digest, work / "data" / name / "opt/wheel")
        config = rootfs.Config(
            environment={**known.environment, **environment(spec.stages[-1])},
            workdir=known.workdir,
            entrypoint=known.entrypoint,
            command=known.command,
            labels={**known.labels, **spec.labels},
        )
        tree = spec.tree(work / "data" / _IMAGE, config, frozenset((script.MOUNTED_AT,)))
        return convert_source(tree, progress).image.path


def commands(stage: Stage, base_file: Path, work: Path) -> tuple[tuple[str, ...], ...]:
    """What makes and fills the root of a stage; ``work`` holds scripts, context, and the roots below ``data``."""
    name = stage.name or _IMAGE
    mounts = [(work / "context", script.CONTEXT)]
    mounts += [(work / "data" / origin, f"{script.STAGES}/{origin}") for origin in script.source_stages(stage)]
    mount_options = [word for source, to in mounts for word in ("--mount", f"{source}:{to}:none:x-create=dir,rbind,ro")]
    # NVIDIA's images ask for GPUs, and Enroot's hook fails where there is no nvidia-container-cli: a login node.
    more = ("--env", "NVIDIA_VISIBLE_DEVICES=void", "--rc", str(work / "rc"))
    run = ("/bin/sh", f"{script.CONTEXT}/{name}.sh")
    return (
        ("enroot", "create", "--force", "--name", name, str(base_file)),
        ("enroot", "start", "--root", "--rw", *more, *mount_options, name, *run),
    )


def _environment(work: Path) -> Mapping[str, str]:
    return {**os.environ, "ENROOT_DATA_PATH": str(work / "data"), "ENROOT_MOUNT_HOME": "n"}
