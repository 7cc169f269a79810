"""Builds by Enroot or Charliecloud: each stage's script runs in a writable copy of the base.

The base is fetched, or read from its archive, by this project, and kept as a squashfs of the store. What a stage brings
lies below ``steps.BROUGHT`` in its root, and no image has it. What is left is packed as any image is: ``enroot export``
would use Enroot's squashfs options, which are slow (docs/conversion.md), and check nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from runner.core.errors import InfrastructureError, ProgramFailedError
from runner.core.progress import Progress
from runner.images import reference as references
from runner.images.building import wheels
from runner.images.building.buildlog import followed
from runner.images.building.without_engine import steps
from runner.images.building.without_engine.build_spec import ARCHIVES, BuildSpec, ResolvedBase, write_context
from runner.images.building.without_engine.steps import Stage
from runner.images.conversion import source_selection
from runner.images.conversion.squashfs import convert_source
from runner.images.packing import rootfs
from runner.images.store import store
from runner.images.writable_root import copies
from runner.images.writable_root.tools import LEFT_OUT, Copy, Tool
from runner.images.writable_root.tree import own_directory

_IMAGE = "image"  # the name of the last stage


def base(reference: str, progress: Progress) -> ResolvedBase:
    """The base as a squashfs of the store.

    Raises:
        RefusedError: no such image, or its registry wants a login. InfrastructureError: registry or disk failed.
    """
    kind: source_selection.SourceKind = "auto" if reference.startswith(ARCHIVES) else "registry"
    if kind == "registry" and not references.names_registry(reference):  # as FROM has it: Docker's hub
        reference = f"docker.io/{references.parse(reference)}"
    found = source_selection.convert(reference, source_selection.Options(kind), progress).image
    return ResolvedBase(reference, found.origin or found.digest, found.path)


def stored(spec: BuildSpec, tool: Tool, progress: Progress) -> Path:
    """Build the image into the store.

    Raises:
        ProgramFailedError: a step failed. InfrastructureError: the disk is full, or the base is gone.
    """
    assert spec.base.path is not None
    known = store.lookup(str(spec.base.path))
    if known is None:
        raise InfrastructureError("the base has gone from the store", where=str(spec.base.path), fix="build again")
    with copies.work_directory() as work:
        work.chmod(0o700)
        roots: dict[str, Path] = {}
        for stage in spec.stages:
            name = stage.name or _IMAGE
            copy = Copy(work / name, environment=known.environment)
            copy.work.mkdir()
            copies.unpack(spec.base.path, copy.root)
            _bring(spec, stage, copy.root, roots)
            argv, env = copies.call(tool, copy, ("/bin/sh", f"/{steps.BROUGHT}/stage.sh"))
            followed(argv, progress, what=f"{tool.name}, stage {name}", room=str(work), env=env)
            roots[name] = copy.root
            if name != _IMAGE and (made := own_directory(copy.root, "opt/wheel")) is not None:
                wheels.keep_built(spec.base.digest, made)
        config = rootfs.Config(
            environment={**known.environment, **steps.environment(spec.stages[-1])},
            workdir=known.workdir,
            entrypoint=known.entrypoint,
            command=known.command,
            labels={**known.labels, **spec.labels},
        )
        copies.make_readable(roots[_IMAGE])
        return convert_source(spec.tree(roots[_IMAGE], config, LEFT_OUT | {steps.BROUGHT}), progress).image.path


def _bring(spec: BuildSpec, stage: Stage, root: Path, roots: Mapping[str, Path]) -> None:
    """The stage's script, the build's context, and what the stage copies from earlier ones."""
    brought = root / steps.BROUGHT
    brought.mkdir()  # no link of the base's is on the way
    write_context(spec.files, brought / "context")
    (brought / "stage.sh").write_text(steps.stage_script(stage, spec.is_directory), "utf-8")
    for origin, directory in steps.brought_directories(stage):
        source = own_directory(roots[origin], directory)
        if source is None:
            raise ProgramFailedError(f"stage {origin} has left no directory /{directory}", where="Dockerfile")
        shutil.copytree(source, brought / "stages" / origin / directory, symlinks=True, dirs_exist_ok=True)
