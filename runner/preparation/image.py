"""The image that a job will use, in the form that its runtime takes: pinned where it can be, or why it cannot be used.

Reaches no engine and no registry: the store and the file system only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from runner import paths
from runner.images import reference as references
from runner.images.store import integrity, store
from runner.model.environment import Environment
from runner.model.image import ImageFacts, facts_of
from runner.model.names import ImageForm
from runner.model.plan import PlannedImage

_CONVERT = {"squashfs": "python -m runner convert", "sif": "python -m runner convert --format sif"}


def pinned(reference: str, form: ImageForm) -> tuple[PlannedImage, str, str]:
    """The pinned image, or what it would be called, with the problem and its fix."""
    if form == "none":
        return PlannedImage(reference="", digest="", path=""), "", ""
    if form == "registry":
        return _registry_image(reference)
    return _stored(reference, form)


def _stored(reference: str, form: store.Form) -> tuple[PlannedImage, str, str]:
    """An image file: of the store by its name, any by its path."""
    is_path = references.is_path(reference)
    path = str(paths.expanded(reference)) if is_path else _not_converted(reference, form)
    absent = PlannedImage(reference=reference, digest="", path=path)
    if is_path and (store.form_of(Path(path)) == "sif") != (form == "sif"):
        wanted, suffix = ("SIF file", ".sif") if form == "sif" else ("squashfs", ".sqsh")
        return absent, f"this runtime takes a {wanted}, and {reference} is none", f"name one that ends in {suffix}"
    try:
        found = store.lookup(reference, form=form)
    except OSError as error:  # a name that is too long, or behind a door that is closed
        return absent, f"{path} cannot be read: {error.strerror}", "correct the path"
    if found is None and is_path:
        return absent, f"there is no {path}", f"correct the path, or make one: {_CONVERT[form]} IMAGE"
    if found is None:
        kind, where = ("SIF", " where there is an engine, or --image FILE.sif") if form == "sif" else ("squashfs", "")
        what = f"no {kind} of {reference} is in the store ({store.directory()})"
        return absent, what, f"`{_CONVERT[form]} {reference}`{where}"
    about = facts_of(found.about)
    planned = PlannedImage(
        reference=reference,
        digest=found.origin or found.digest,
        path=str(found.path),
        size_bytes=found.size_bytes,
        sha256=found.sha256,
        about=about,
        mpi=mpi_of(about),
    )
    why = integrity.problem(found)
    if not why:
        return planned, "", ""
    again = f"; `{_CONVERT[form]} {found.reference}` makes it anew" if found.sha256 else ""
    return (
        planned,
        f"the image {found.path} is not whole: {why}",
        f"`python -m runner images verify {found.path}` checks all of it{again}",
    )


def as_image(environment: Environment) -> PlannedImage:
    """An environment in the place of an image: it says the same of itself."""
    about = environment.about
    return PlannedImage(environment.name, "", environment.directory, mpi=mpi_of(about), about=about)


def mpi_of(about: ImageFacts | None) -> Literal["openmpi", "mpich", "none", ""]:
    """The MPI that Horovod in the image was built with, as far as the image tells."""
    if about is None or not about.horovod.controllers:
        return ""
    if not about.horovod.has_mpi:
        return "none"
    return cast(Literal["openmpi", "mpich"], about.mpi.flavour) if about.mpi.flavour in ("openmpi", "mpich") else ""


def _not_converted(reference: str, form: store.Form) -> str:
    """What stands in a script for an image that there is not yet."""
    name = "".join(character if character.isalnum() or character in "._-" else "_" for character in reference)
    return str(store.directory() / f"NOT-CONVERTED-{name}{store.SUFFIXES[form]}")


def _registry_image(reference: str) -> tuple[PlannedImage, str, str]:
    """An image that the runtime itself fetches, or has fetched: it cannot be looked at from here."""
    image = PlannedImage(reference=reference, digest="", path="")
    if references.is_path(reference) or references.parse(reference).registry:
        return image, "", ""  # a file is refused by the runtime, which says why
    where = "this runtime takes images of a registry"
    fix = "push it to a registry that the site can reach, and name it in full: --image REGISTRY/NAME:TAG"
    return image, f"{reference} names no registry, and {where}", fix
