"""Charliecloud's ``ch-image``: builds from a Dockerfile with no privilege at all (read in 0.31's lib and bin)."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.core import files as atomic
from runner.core import process
from runner.core.errors import ProgramFailedError, RefusedError
from runner.core.files import sha256
from runner.core.progress import Progress
from runner.images import reference as references
from runner.images.building import wheels
from runner.images.building.without_engine import dockerfile
from runner.images.building.without_engine.build_spec import (
    ARCHIVES,
    BuildSpec,
    ResolvedBase,
    work_directory,
    write_context,
)
from runner.images.building.without_engine.following import followed
from runner.images.building.without_engine.tree import TreeImage
from runner.images.conversion.squashfs import convert_source
from runner.images.packing import rootfs, unpacked
from runner.images.sources.registry import Registry
from runner.images.store.stored_image import Form

PROGRAMS = ("ch-image", "ch-run")
FORM: Form = "squashfs"
INSTALL = "`module load charliecloud` on a cluster; Debian: apt install charliecloud-builders charliecloud-runtime"
_TAG = "gpu-runner-build"  # of unfinished images; none of them outlives the build
# Files that ch-image keeps in a root, among them its mark of such a root.
_NOTE = "ch/gpu-runner-digest"  # ours: ch-image keeps no digest of what it has pulled
_OWN = frozenset(("WEIRD_AL_YANKOVIC", "ch/metadata.json", "ch/config.pulled.json", _NOTE))
_BEGINS = re.compile(r"\s*[0-9]+[.*]? ((?:ARG|COPY|ENV|FROM|RUN)(?:\.[A-Z]+)? .*)")  # with its line number
_QUERY_S = 120.0
_DELETE_S = 1800.0


def base(reference: str, progress: Progress) -> ResolvedBase:
    """The base in ch-image's storage, pulled there by its digest where it is absent.

    Raises:
        RefusedError: no such image, or its registry wants a login. ProgramFailedError: the pull failed.
    """
    if reference.startswith(ARCHIVES):
        raise RefusedError(
            "ch-image does not read the archives of engines",
            where=reference,
            fix="unpack the image and `ch-image import` it under a name; then --base NAME",
        )
    root = _root(reference)
    if root.is_dir():
        return ResolvedBase(reference, noted(root) or f"sha256:{_identity(root)}", root)
    parsed = references.parse(reference)
    digest = parsed.digest or Registry(parsed, progress.line).resolve(parsed.tag)
    pinned = f"{reference.partition('@')[0].removesuffix(f':{parsed.tag}')}@{digest}"
    progress.step(f"pulling {pinned}")
    try:
        _ch_image(["pull", pinned, reference], progress, "ch-image pull")
    except ProgramFailedError as error:
        raise ProgramFailedError(
            error.what, where=reference, fix=f"where a login is wanted: ch-image pull --auth {reference}"
        ) from error
    note(root, digest)
    return ResolvedBase(reference, digest, root)


def stored(spec: BuildSpec, progress: Progress) -> Path:
    """Build the image into the store.

    Raises:
        ProgramFailedError: a step failed. InfrastructureError: the disk is full.
    """
    _delete()
    try:
        with work_directory() as work:
            write_context(spec.files, work)
            (work / "Dockerfile").write_text(dockerfile.rendered(spec.stages), "utf-8")
            arguments = ["build", "--file", str(work / "Dockerfile"), "--tag", _TAG, str(work)]
            _ch_image(arguments, progress, "ch-image build")
        if len(spec.stages) > 1:
            wheels.keep_built(spec.base.digest, _root(f"{_TAG}_stage0") / "opt/wheel")
        return convert_source(_tree(spec, _root(_TAG)), progress).image.path
    finally:
        _delete()


def _tree(spec: BuildSpec, root: Path) -> TreeImage:
    known = _document(root, "ch/metadata.json")
    pulled = _document(root, "ch/config.pulled.json").get("config") or {}  # of the base, as its registry has it
    config = rootfs.Config(
        environment=known.get("env") or {},
        workdir=known.get("cwd") or "",
        entrypoint=tuple(pulled.get("Entrypoint") or ()),
        command=tuple(pulled.get("Cmd") or ()),
        labels={**(known.get("labels") or {}), **spec.labels},
        volumes=tuple(known.get("volumes") or ()),
    )
    return spec.tree(root, config, _OWN)


def _document(root: Path, name: str) -> dict[str, Any]:
    path = unpacked.own_file(root, name)
    found = json.loads(path.read_text("utf-8")) if path else {}
    return found if isinstance(found, dict) else {}


def note(root: Path, digest: str) -> None:
    """Keep the digest by which an image was pulled, in the image: in a file of its own, whatever it has there.

    With it goes the time at which its root changed last, in ns, which no image can know: it may come with such a file.
    """
    if unpacked.has_own_directory(root, "ch"):
        atomic.write(root / _NOTE, f"{digest} {root.stat().st_ctime_ns}\n".encode())


def noted(root: Path) -> str:
    """The digest by which we pulled an image; empty where it was put into the storage otherwise."""
    path = unpacked.own_file(root, _NOTE)
    digest, _, changed = path.read_text("utf-8", "replace").strip().partition(" ") if path else ("", "", "")
    return digest if changed == str(root.stat().st_ctime_ns) else ""


def _identity(root: Path) -> str:
    """Hash of an image that was put into the storage by hand: of its metadata, and of when it was put there."""
    files = (unpacked.own_file(root, f"ch/{path.name}") for path in sorted((root / "ch").glob("*.json")))
    parts = [path.read_bytes() for path in files if path]
    return sha256(b"\0".join([*parts, str(root.stat().st_ctime_ns).encode()]))


def _root(reference: str) -> Path:
    """Where ch-image unpacks an image (lib/image.py, ref_to_pathstr)."""
    storage = process.run(["ch-image", "gestalt", "storage-path"], timeout_s=_QUERY_S, env=_environment()).out.strip()
    return Path(storage) / "img" / reference.replace("/", "%").replace(":", "+")


def _delete() -> None:
    """Remove unfinished images, also those of a killed build. The caller holds the lock of builds."""
    for name in (_TAG, f"{_TAG}_stage*"):
        process.run(["ch-image", "delete", name], timeout_s=_DELETE_S, check=False, env=_environment())


def _ch_image(arguments: Sequence[str], progress: Progress, what: str) -> None:
    # Its cache would put every base into a git repository; the wheel, which is what takes long, is kept by us.
    room = os.environ.get("CH_IMAGE_STORAGE", "ch-image's storage (CH_IMAGE_STORAGE)")
    followed(["ch-image", "--no-cache", *arguments], progress, what=what, room=room, env=_environment(), begins=_BEGINS)


def _environment() -> Mapping[str, str]:
    """Ours, with the user's name, and without our own virtual environment: ch-image wants its packages' Python."""
    ours = {str(Path(sys.prefix) / "bin")} if sys.prefix != sys.base_prefix else set()
    path = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part not in ours]
    return {**os.environ, "PATH": os.pathsep.join(path), "USER": os.environ.get("USER") or getpass.getuser()}
