"""Apptainer or SingularityCE: builds a SIF from the definition file; it pulls the base itself, with its own login."""

from __future__ import annotations

import os
from pathlib import Path

from runner.core.progress import Progress
from runner.images import reference as references
from runner.images.building.without_engine import definition
from runner.images.building.without_engine.build_spec import (
    ARCHIVES,
    BuildSpec,
    ResolvedBase,
    work_directory,
    write_context,
)
from runner.images.building.without_engine.steps import environment
from runner.images.conversion import apptainer_build
from runner.images.conversion.publishing import publish
from runner.images.conversion.sif import SifMaker
from runner.images.packing import rootfs
from runner.images.sources import archives, manifests
from runner.images.sources.registry import Registry
from runner.images.sources.token_services import is_loopback
from runner.images.store.stored_image import Form

PROGRAMS: tuple[str, ...] = ()  # which of the two there is, apptainer_build.program tells
INSTALL = ""
FORM: Form = "sif"


def base(reference: str, progress: Progress) -> ResolvedBase:
    """The base's digest; Apptainer fetches it in the build.

    Raises:
        RefusedError: no builder is here, there is no such image, or its registry wants a login.
    """
    apptainer_build.program()
    if reference.startswith("docker-archive:"):
        place, name = archives.located("docker-archive", reference.removeprefix("docker-archive:"))
        found = archives.from_docker_archive(place, name, manifests.platform(None))
        return ResolvedBase(reference, found.digest, place)
    if reference.startswith(ARCHIVES):
        place, name = archives.located("oci-archive", reference.removeprefix("oci-archive:"))
        return ResolvedBase(
            reference, archives.from_oci(archives.Archive(place), name, manifests.platform(None)).digest, place
        )
    parsed = references.parse(reference)
    return ResolvedBase(reference, parsed.digest or Registry(parsed, progress.line).resolve(parsed.tag))


def stored(spec: BuildSpec, progress: Progress) -> Path:
    """Build the image into the store; the variables that it has from its base are known to the SIF alone.

    Raises:
        RefusedError: no builder is here. InfrastructureError: it failed; all of its output is in the message.
    """
    with work_directory() as work:
        write_context(spec.files, work)
        text = definition.rendered(spec.stages, work, spec.is_directory, (f"{spec.name}, from its Dockerfile",))
        file = work / "image.def"
        file.write_text(text, "utf-8")
        options = [] if os.geteuid() == 0 else ["--fakeroot"]
        if spec.base.path is None and is_loopback(references.parse(spec.base.reference).registry):
            options.append("--no-https")
        config = rootfs.Config(environment=environment(spec.stages[-1]), labels=spec.labels)

        def write(out: Path) -> None:
            apptainer_build.build(
                [*options, str(out), str(file)], progress.line, where=f"definition file of {spec.name}"
            )

        return publish(SifMaker(spec.tree(work, config), write), progress).image.path
