"""Builds an image with no container engine, by the Dockerfile's own steps, straight into the store."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.core import paths, process
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.files import key_of, tree_hash
from runner.core.lock import locked
from runner.core.progress import Progress
from runner.images import reference as references
from runner.images import writable_root
from runner.images.building import apptainer, dockerfile, standin, wheels
from runner.images.building.build import (
    DEFAULT_ARGS,
    BuildResult,
    build_labels,
    context_files,
    image_name,
    source_state,
)
from runner.images.building.buildlog import followed
from runner.images.building.dockerfile import ARCHIVES, BuildSpec, ResolvedBase, Stage, write_context
from runner.images.conversion import squashfs
from runner.images.conversion.squashfs import convert_source
from runner.images.packing import rootfs
from runner.images.store import integrity, store
from runner.images.store.stored_image import Form
from runner.images.writable_root import LEFT_OUT, Copy, Tool, own_directory
from runner.model.image import INPUTS_LABEL

_IMAGE = "image"  # the name of the last stage
TOOLS = (*writable_root.TOOLS, "ch-image")  # what --with takes; ch-image: an old name of ch-run


@dataclass(frozen=True, kw_only=True)
class Built(BuildResult):
    """An image in the store that was built now or before.

    Attributes:
        reference: its name, for ``submit --image``. path: its file. base, base_digest: what it was built on.
        up_to_date: nothing was built. seconds: how long it took. size_bytes: of the file. about: as it says itself.
    """

    path: Path


def build(
    framework: str, base: str | None, tool: str, progress: Progress, *, args: Mapping[str, str] | None = None
) -> Built:
    """Build ``framework``'s image on ``base`` with ``tool`` (of TOOLS) as a file of the store.

    Args:
        base: reference, ``docker-archive:FILE`` or ``oci-archive:FILE``; None for the framework's default.
        args: build arguments over the defaults.
    """
    started = time.monotonic()
    wanted = _base(framework, base)
    builder = writable_root.find_tool(writable_root.CHARLIECLOUD if tool == "ch-image" else tool)
    is_sif = builder.name == writable_root.APPTAINER
    form: Form = "sif" if is_sif else "squashfs"
    with locked(paths.ensure_directory(paths.cache("locks")) / f"build-{builder.name}.lock", progress.step):
        resolved = (apptainer.base if is_sif else _unpacked_base)(wanted, progress)
        spec = _build_spec(framework, builder.name, resolved, {**DEFAULT_ARGS[framework], **(args or {})}, progress)
        existing = _existing(spec, form)
        path = existing or (apptainer.built if is_sif else _built_in_writable_root)(spec, builder, progress)
    stored = store.lookup(str(path), form=form)
    return Built(
        reference=spec.name,
        path=path,
        base=wanted,
        base_digest=resolved.digest,
        up_to_date=existing is not None,
        seconds=time.monotonic() - started,
        size_bytes=path.stat().st_size,
        about=stored.about if stored is not None else {},
    )


def arguments(framework: str, base: str, args: Mapping[str, str], *, base_digest: str = "") -> dict[str, str]:
    """Every argument of the framework's Dockerfile that has a value here."""
    known = {"BASE_DIGEST": base_digest, "SOURCE": source_state()[0]}
    return {"BASE": base, **DEFAULT_ARGS[framework], **args, **{name: value for name, value in known.items() if value}}


def dockerfile_stages(framework: str, values: Mapping[str, str]) -> tuple[dockerfile.Stage, ...]:
    """The stages of the framework's Dockerfile with these values of its arguments."""
    text = (paths.share("containers") / framework / "Dockerfile").read_text("utf-8")
    return dockerfile.parse_stages(text, values)


def _base(framework: str, base: str | None) -> str:
    wanted = base or references.DEFAULT_BASES[framework]
    if standin.find_standin(framework, wanted):
        raise RefusedError(
            f"the stand-in base {wanted} is made in a container engine, and none is used here",
            where="--base",
            fix="name a base of a registry, or one that docker save wrote: --base docker-archive:FILE",
        )
    return wanted


def _build_spec(
    framework: str, tool: str, base: ResolvedBase, args: Mapping[str, str], progress: Progress
) -> BuildSpec:
    files = context_files(framework)
    settings = (f"{name}={value}" for name, value in sorted(args.items()))
    inputs = key_of(tree_hash(files), tool, base.digest, *settings)
    stages = dockerfile_stages(framework, arguments(framework, base.reference, args, base_digest=base.digest))
    labels = dockerfile.labels(stages[-1]) | build_labels(framework, inputs, base.reference, base.digest, tool)
    as_reference = base.reference
    if as_reference.startswith(ARCHIVES):  # made from the file's name
        stem = Path(base.reference.partition(":")[2].partition(":")[0]).stem.lower()
        as_reference = f"archive/{re.sub(r'[^a-z0-9]+', '-', stem).strip('-') or 'base'}:latest"
    name = image_name(framework, as_reference, args)
    return BuildSpec(name, base, stages, (*files, *wheels.offered(base.digest, progress.line)), labels, inputs)


def _existing(spec: BuildSpec, form: Form) -> Path | None:
    """The stored image of these inputs, under its name."""
    if paths.caches_ignored():
        return None
    with suppress(InfrastructureError):  # a sidecar that cannot be read: the image is built anew
        image, whose = store.lookup_and_stranger(spec.name, form=form)
        known = image is not None and image.labels.get(INPUTS_LABEL) == spec.inputs and not integrity.problem(image)
        if image is not None and known and not whose:  # the inputs are no secret
            return image.path
    return None


def definition_file(framework: str, base: str | None, args: Mapping[str, str]) -> str:
    """Apptainer's definition file of the image, with the files of this installation as its context."""
    context = paths.share("containers").parent
    stages = dockerfile_stages(framework, arguments(framework, _base(framework, base), args))
    head = (
        f"containers/{framework}/Dockerfile, by `gpu-runner build {framework} --definition`.",
        "apptainer build --fakeroot IMAGE.sif THIS_FILE",
    )
    return apptainer.definition(stages, context, lambda source: (context / source).is_dir(), head)


def _unpacked_base(reference: str, progress: Progress) -> ResolvedBase:
    """The base as a squashfs of the store."""
    kind: squashfs.SourceKind = "auto" if reference.startswith(ARCHIVES) else "registry"
    if kind == "registry" and not references.names_registry(reference):  # as FROM has it: Docker's hub
        reference = f"docker.io/{references.parse(reference)}"
    image = squashfs.convert(reference, squashfs.Options(kind), progress).image
    return ResolvedBase(reference, image.origin or image.digest, image.path)


def _built_in_writable_root(spec: BuildSpec, tool: Tool, progress: Progress) -> Path:
    """Build the image into the store: each stage's script runs in a writable copy of the base, whose squashfs is there.

    What a stage brings lies below ``dockerfile.BROUGHT``, which no image has. The rest is packed as any image is:
    ``enroot export`` would use Enroot's squashfs options, which take twice as long
    (docs/images.md), and check nothing.
    """
    assert spec.base.path is not None
    known = store.lookup(str(spec.base.path))
    if known is None:
        raise InfrastructureError("the base has gone from the store", where=str(spec.base.path), fix="build again")
    with writable_root.work_directory() as work:
        roots: dict[str, Path] = {}
        for stage in spec.stages:
            name = stage.name or _IMAGE
            copy = Copy(work / name, environment=known.environment)
            copy.work.mkdir()
            writable_root.unpack(spec.base.path, copy.root)
            _bring(spec, stage, copy.root, roots)
            argv, env = writable_root.tool_call(tool, copy, ("/bin/sh", f"/{dockerfile.BROUGHT}/stage.sh"))
            with process.nothing_left():
                followed(argv, progress, what=f"{tool.name}, stage {name}", room=str(work), env=env)
            roots[name] = copy.root
            if name != _IMAGE and (made := own_directory(copy.root, "opt/wheel")) is not None:
                wheels.keep_built(spec.base.digest, made)
        config = rootfs.Config(
            environment={**known.environment, **dockerfile.environment(spec.stages[-1])},
            workdir=known.workdir,
            entrypoint=known.entrypoint,
            command=known.command,
            labels={**known.labels, **spec.labels},
        )
        writable_root.make_readable(roots[_IMAGE])
        return convert_source(spec.tree(roots[_IMAGE], config, LEFT_OUT | {dockerfile.BROUGHT}), progress).image.path


def _bring(spec: BuildSpec, stage: Stage, root: Path, roots: Mapping[str, Path]) -> None:
    """The stage's script, the build's context, and what the stage copies from earlier ones."""
    brought = root / dockerfile.BROUGHT
    brought.mkdir()  # no link of the base's is on the way
    write_context(spec.files, brought / "context")
    (brought / "stage.sh").write_text(dockerfile.stage_script(stage, spec.is_directory), "utf-8")
    for origin, directory in dockerfile.brought_directories(stage):
        source = own_directory(roots[origin], directory)
        if source is None:
            raise ProgramFailedError(f"stage {origin} has left no directory /{directory}", where="Dockerfile")
        shutil.copytree(source, brought / "stages" / origin / directory, symlinks=True, dirs_exist_ok=True)
