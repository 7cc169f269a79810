"""A stored image changed by hand: unpacked into a writable copy, a command run in it, the result stored as a new image.

The image itself is only read: jobs that use it are not disturbed.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from runner.core import paths, process, process_identity
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError, RunnerError, UsageError
from runner.core.files import open_named, sha256
from runner.core.hide import hidden_command
from runner.core.progress import Progress
from runner.images import reference as references
from runner.images import writable_root
from runner.images.conversion import assembly, sif
from runner.images.conversion.publishing import Conversion, publish
from runner.images.conversion.sif import sif_maker
from runner.images.conversion.squashfs import ASSEMBLED, CONVERTER, convert_source
from runner.images.packing import rootfs, tree_listing
from runner.images.packing.mksquashfs import PackJob, packed_stream
from runner.images.packing.squashfs_tables import UnfitError
from runner.images.store import integrity
from runner.images.store.stored_image import Edit, StoredImage, form_of
from runner.images.writable_root import Copy, Tool, tree_image, work_directory
from runner.model.image import labels_taken_over

_SUFFIX = "-edited"
_TICK_S = 0.02  # times of what changes are later then: a file system's clock may tick every 10 ms
# What the conversion has put in and a command may have changed since: kept as it was left.
_KEPT = frozenset(("etc/rc", "etc/rc.local", "etc/environment", "etc/fstab"))
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)")


def new_name(image: StoredImage, wanted: str | None, *, of_stranger: bool = False) -> str:
    """The name of the result: the wanted one, else the image's with ``-edited`` behind its tag; ``of_stranger``: who
    could have chosen any.
    """
    if wanted is not None:
        return str(references.parse(wanted))
    if of_stranger or references.is_path(image.reference) or image.reference.startswith("sha256:"):
        what = "the image has no name" + " of yours" * of_stranger
        raise UsageError(what, where=image.reference, fix="name the result: --name NAME:TAG")
    parsed = references.parse(image.reference)
    tag = parsed.tag or "latest"
    return str(replace(parsed, tag=tag if tag.endswith(_SUFFIX) else tag[: 128 - len(_SUFFIX)] + _SUFFIX, digest=""))


def check(image: StoredImage, tool: Tool, target: Path) -> None:
    """Refuse before any work what cannot succeed: a SIF without Apptainer, no unsquashfs, image or store not usable."""
    if form_of(image.path) == "sif" and tool.name != writable_root.APPTAINER:
        raise RefusedError(
            "a SIF is written by Apptainer alone", where=str(image.path), fix="edit it on a machine with apptainer"
        )
    if process.find("unsquashfs") is None:
        raise RefusedError("unsquashfs is not installed", where="PATH", fix="install the package squashfs-tools")
    if why := integrity.problem(image):
        raise InfrastructureError(f"the image is damaged: {why}", where=str(image.path), fix="convert it again")
    paths.ensure_directory(target)
    if not os.access(target, os.W_OK):
        raise InfrastructureError("the store may not be written to", where=str(target), fix="use --store DIR")


@contextmanager
def writable_copy(image: StoredImage, progress: Progress, *, assemble: bool = False) -> Iterator[Copy]:
    """The image's root, unpacked for the length of the block; nothing of it is left then. ``assemble``: what is stored
    is to be assembled from the image's file.
    """
    with work_directory() as work:
        progress.step(f"unpacking {image.reference} into {work}")
        root = work / writable_root.ROOT
        writable_root.unpack(image.path, root)
        is_squashfs, before = form_of(image.path) == "squashfs", {}
        if assemble and is_squashfs:
            before = writable_root.states(root)
            time.sleep(_TICK_S)
        yield Copy(work, image.workdir or "/", dict(image.environment) if is_squashfs else {}, before)


def run(tool: Tool, copy: Copy, words: Sequence[str], *, to_stderr: bool = False) -> int:
    """Run the command in the copy, with our own input and output; its status, less than 0 for a signal. ``to_stderr``:
    what it writes to standard output goes to standard error. What it has left running is ended.
    """
    argv, env = writable_root.tool_call(tool, copy, words)
    with process.nothing_left():
        return process.foreground(argv, env=env, to_stderr=to_stderr)


def failed(words: Sequence[str], status: int) -> ProgramFailedError:
    """The command ended with this status."""
    how = f"was ended by signal {-status}" if status < 0 else f"failed with exit code {status}"
    return ProgramFailedError(
        f"the command {how}; nothing is stored",
        where=shlex.join(words),
        fix="its last lines are above; the image is as it was",
    )


def stored(
    image: StoredImage, copy: Copy, tool: Tool, words: Sequence[str], name: str, target: Path, progress: Progress
) -> Conversion:
    """The changed root as an image of the store, under a digest of its own; nothing is stored of a failure."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    parent = image.digest
    if not parent:
        with open_named(image.path) as file:
            parent = f"sha256:{sha256(file)}"
    command = hidden_command(words)
    history = (*image.history, Edit(parent, command, f"{tool.program} {tool.version}".strip(), now))
    form = form_of(image.path)
    config = rootfs.Config(
        environment=dict(image.environment) if form == "sif" else _environment(copy.root, image),
        workdir=image.workdir,
        entrypoint=image.entrypoint,
        command=image.command,
        labels=labels_taken_over(image.labels),
    )
    # The mark: two edits at once are two images, whatever they did.
    digest = f"sha256:{sha256(msgspec.json.encode([parent, history, process_identity.unique()]))}"
    tree = tree_image(copy.root, name, digest, now, config, writable_root.LEFT_OUT, image.architecture)

    def packed(job: PackJob) -> rootfs.Passed:
        """Start-up files that are in the tree stay."""
        there = {name for name in _KEPT if writable_root.own_file(copy.root, name) is not None}
        files = tuple(file for file in job.added.files if file.name not in there)
        job = replace(job, added=replace(job.added, files=files))
        if assemble:
            try:
                return _assembled(image, copy, job)
            except (UnfitError, RunnerError, OSError) as reason:
                progress.line(f"not assembled: {reason}")
        return tree.packed(job)

    source, assemble = replace(tree, packed=packed), bool(copy.before)
    writable_root.make_readable(copy.root)
    if form == "sif":
        where = f"edit of {image.reference}"

        def write(out: Path) -> None:
            options = [] if os.geteuid() == 0 else ["--fakeroot"]
            sif.apptainer_build([*options, str(out), str(copy.root)], progress.line, where=where)

        return publish(sif_maker(source, write), progress, store_dir=target, history=history)
    return convert_source(source, progress, store_dir=target, history=history, assemble=assemble)


def _assembled(image: StoredImage, copy: Copy, job: PackJob) -> rootfs.Passed:
    """What has changed in the copy, packed over the image's file. Raises as ``assembly.assembled``."""
    if (image.converter, image.options) not in ((each, job.packing.options()) for each in (CONVERTER, ASSEMBLED)):
        raise UnfitError("the image was packed in another way")
    now = writable_root.states(copy.root)
    if not any(changed_ns % 10**9 for _, changed_ns in now.values()):
        raise UnfitError("this file system keeps times in whole seconds")
    changed = {name for name in {*copy.before, *now} if copy.before.get(name) != now.get(name)}

    def pack(names: Mapping[str, bool], job: PackJob) -> rootfs.Passed:
        inodes = {now[name][0] for name in names if name in now}
        linked = rootfs.with_parents(name for name, (inode, _) in now.items() if inode in inodes)  # by hard links
        return packed_stream(writable_root.archived(copy.root, writable_root.LEFT_OUT, linked), job)

    def tree() -> tree_listing.Tree:
        all_ = tree_listing.of_directory(copy.root)
        return {name: each for name, each in all_.items() if name.split("/")[0] not in writable_root.LEFT_OUT}

    return assembly.assembled(dict.fromkeys(changed, False), pack, image, job, tree)


def shell(root: Path) -> str:
    """The shell that an image has."""
    return "/bin/bash" if os.path.lexists(root / "bin/bash") else "/bin/sh"


def _environment(root: Path, image: StoredImage) -> Mapping[str, str]:
    """The image's variables as /etc/environment has them now, and those that such a file cannot hold."""
    unchanged = {name: value for name, value in image.environment.items() if name in image.omitted}
    path = writable_root.own_file(root, "etc/environment")
    try:
        lines = path.read_text("utf-8", "surrogateescape").split("\n") if path else None
    except OSError:  # not even its owner may read it
        lines = None
    if lines is None:
        return dict(image.environment)
    return {**{match[1]: match[2] for line in lines if (match := _VARIABLE.fullmatch(line))}, **unchanged}
