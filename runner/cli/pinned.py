"""The image that a job will use, in the form that its runtime takes: pinned where it can be, or why it cannot be used.

Reaches no engine and no registry: the store and the file system only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from runner.model.image import ImageFacts, facts_of
from runner.model.names import ImageForm
from runner.model.plan import PlannedImage


def pinned(reference: str, form: ImageForm) -> tuple[PlannedImage, str, str]:
    """The pinned image, or what it would be called, with the problem and its mend."""
    if form == "none":
        return PlannedImage(reference="", digest="", path=""), "", ""
    if form == "registry":
        return _registry_image(reference)
    if form == "sif":
        return _sif(reference)
    from runner.images import integrity, store

    found = store.lookup(reference)
    if found is None:
        path = reference if reference.startswith(("/", "./")) else _not_converted(reference, "sqsh")
        return (
            PlannedImage(reference=reference, digest="", path=path),
            f"no squashfs of {reference} is in the store ({store.directory()})",
            f"python -m runner convert {reference}",
        )
    about = facts_of(found.about)
    planned = PlannedImage(
        reference=reference,
        digest=found.origin or found.digest,
        path=str(found.path),
        size_bytes=found.size_bytes,
        sha256=found.sha256,
        about=about,
        mpi=_mpi(about),
    )
    why = integrity.problem(found)
    if not why:
        return planned, "", ""
    again = f"; `python -m runner convert {found.reference}` makes it anew" if found.sha256 else ""
    return (
        planned,
        f"the image {found.path} is not whole: {why}",
        f"`python -m runner images verify {found.path}` checks all of it{again}",
    )


def _mpi(about: ImageFacts | None) -> Literal["openmpi", "mpich", "none", ""]:
    """The MPI that Horovod in the image was built with, as far as the image tells."""
    if about is None:
        return ""
    if "mpi" not in about.horovod.controllers:
        return "none"
    return cast(Literal["openmpi", "mpich"], about.mpi.flavour) if about.mpi.flavour in ("openmpi", "mpich") else ""


def _not_converted(reference: str, suffix: str) -> str:
    """What stands in a script for an image that there is not yet."""
    from runner.images import store

    name = "".join(character if character.isalnum() or character in "._-" else "_" for character in reference)
    return str(store.directory() / f"NOT-CONVERTED-{name}.{suffix}")


def _registry_image(reference: str) -> tuple[PlannedImage, str, str]:
    """An image that the runtime itself fetches, or has fetched: it cannot be looked at from here."""
    from runner.images import reference as references

    image = PlannedImage(reference=reference, digest="", path="")
    if references.is_path(reference) or references.parse(reference).registry:
        return image, "", ""  # a file is refused by the runtime, which says why
    where = "this runtime takes images of a registry"
    mend = "push it to a registry that the site can reach, and name it in full: --image REGISTRY/NAME:TAG"
    return image, f"{reference} names no registry, and {where}", mend


def _sif(reference: str) -> tuple[PlannedImage, str, str]:
    """A SIF file by its path, or the newest that was made of a reference."""
    from runner.images import reference as references
    from runner.images import sif

    if references.is_path(reference):
        path = str(Path(reference).expanduser().absolute())
        image = PlannedImage(reference=reference, digest="", path=path)
        if not reference.endswith(".sif"):
            return image, f"this runtime takes a SIF file, and {reference} is none", "name one that ends in .sif"
        return image, "" if _is_file(path) else f"there is no {path}", "correct the path"
    made = sif.lookup(reference)
    if made is not None:
        return PlannedImage(reference=reference, digest="", path=str(made)), "", ""
    image = PlannedImage(reference=reference, digest="", path=_not_converted(reference, "sif"))
    mend = f"`python -m runner convert --format sif {reference}` where there is an engine, or --image FILE.sif"
    return image, f"no SIF of {reference} is in the store", mend


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # too long, or behind a door that is closed
        return False
