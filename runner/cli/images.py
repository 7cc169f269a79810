"""``images``: list, show, edit, verify, serve and prune the stored images."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from runner.cli import json_output, table
from runner.cli.importer import command as importer
from runner.cli.options import JSON, age_s, answer, by_shell, path_option, say, size_bytes
from runner.cli.progress import display
from runner.cli.table import horovod_summary
from runner.core.errors import Exit, RefusedError
from runner.core.invocation import PROGRAM
from runner.core.text import age, counted
from runner.images import reference
from runner.images.store import image_files, integrity, owners, store
from runner.images.store.stored_image import SUFFIXES, BrokenSidecar, StoredImage, form_of
from runner.jobs import image_usage
from runner.model.image import facts_of
from runner.model.output import Problem


def _directory(_context: click.Context, _option: click.Parameter, value: Path | None) -> Path:
    return value.absolute() if value else store.directory()


STORE = path_option(
    "--store", "target", metavar="DIR", file_okay=False, callback=_directory,
    help="Image store. [default: $RUNNER_STORE, else in the cache directory]",
)  # fmt: skip
IMAGE = click.argument("image", shell_complete=by_shell("images"))


@click.group()
def command() -> None:
    """List, show, edit, verify and prune the stored images."""


command.add_command(importer, "importer")


@command.command("list")
@STORE
@JSON
def list_images(target: Path, as_json: bool) -> int:
    """List the images of the store, with your runs that used them."""
    rows = [_row(listed) for listed in image_usage.list_images(target)]
    none = [f"no images in {target}; `{PROGRAM} convert IMAGE` makes one"]
    return answer(rows, chain.from_iterable(map(_lines, rows)) if rows else none, as_json=as_json)


@command.command("show")
@IMAGE
@STORE
@JSON
def show(image: str, target: Path, as_json: bool) -> int:
    """Show all facts about IMAGE. IMAGE is a reference, a digest or a file; says whether it looks intact."""
    stored, whose = _stored_and_strangers(image, target)[0]
    facts: dict[str, Any] = {**msgspec.to_builtins(stored, enc_hook=str), "problem": integrity.problem(stored)}
    facts["owner"] = whose
    return answer(facts, _fact_lines(facts, stored), as_json=as_json)


def _fact_lines(facts: dict[str, Any], stored: StoredImage) -> Iterator[str]:
    for name, value in facts.items():
        if value in ("", (), [], {}, 0):
            continue
        if name == "history":
            yield f"{name}:"
            yield from (
                f"  {each.at[:19]} of {each.of}, by {each.tool}: {shlex.join(each.command)}" for each in stored.history
            )
        elif name == "owner":
            yield f"{name}: {value}, who alone vouches for what it holds"
        elif isinstance(value, dict):
            yield f"{name}:"
            yield from (
                f"  {key}: {entry if isinstance(entry, str) else json.dumps(entry)}" for key, entry in value.items()
            )
        else:
            yield f"{name}: {' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
    about = facts_of(stored.about)
    if about is not None and about.framework:
        yield f"Horovod: {horovod_summary(about.horovod)}"


@command.command("edit")
@IMAGE
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
@click.option("--shell", is_flag=True, help="Run a shell of the image; its end is the end of the edit.")
@click.option("--name", metavar="NAME:TAG", help="Name of the result. [default: IMAGE with -edited behind its tag]")
@click.option(
    "--with", "tool_name", type=click.Choice(["enroot", "apptainer", "ch-run"]),
    help="What runs the command. [default: the first of these that is here]",
)  # fmt: skip
@click.option(
    "--assemble/--from-scratch", default=True, show_default=True,
    help="Copy what did not change from IMAGE's file, and pack the rest; or pack all: the same root in other bytes.",
)  # fmt: skip
@STORE
@JSON
def edit(
    image: str, words: tuple[str, ...], shell: bool, name: str | None, tool_name: str | None, assemble: bool,
    target: Path, as_json: bool,
) -> int:  # fmt: skip
    """Change a copy of IMAGE with COMMAND, and store the result. COMMAND runs as root; no engine is needed.

    Nothing is stored if COMMAND fails. IMAGE stays as it is, and jobs that use it are not disturbed.
    """
    from runner.images import editing, writable_root

    if shell == bool(words):
        raise click.UsageError("write the command behind --, or --shell")
    stored, whose = _stored_and_strangers(image, target)[0]
    if whose:
        say(f"warning: {whose} put this image or its name into the store, and alone vouches for what it holds")
    tool = writable_root.find_tool(tool_name)
    result = editing.new_name(stored, name, of_stranger=bool(whose))
    editing.check(stored, tool, target)
    with ExitStack() as stack:
        with display(quiet=as_json) as progress:
            copy = stack.enter_context(editing.writable_copy(stored, progress, assemble=assemble))
        words = (editing.shell(copy.root),) if shell else words
        # A shell ends with the status of its last command, whatever that was.
        status = editing.run(tool, copy, words, to_stderr=as_json)
        if status != 0 and not (shell and sys.stdin.isatty()):
            raise editing.failed(words, status)
        if shell and sys.stdin.isatty():
            click.confirm(f"store the result as {result}?", default=True, abort=True, err=True)
        with display(quiet=as_json) as progress:
            made = editing.stored(stored, copy, tool, words, result, target, progress).image
    facts = {"reference": made.reference, "path": str(made.path), "digest": made.digest}
    lines = [f"{made.reference}: stored, {made.size_bytes / 1e6:.0f} MB", f"  {made.path}", f"  {made.digest}"]
    return answer(facts, lines, as_json=as_json)


@command.command("verify")
@click.argument("image", required=False, shell_complete=by_shell("images"))
@STORE
@JSON
def verify(image: str | None, target: Path, as_json: bool) -> int:
    """Check every byte of IMAGE, or of all images. A broken image is recorded: submit refuses it, convert makes it
    again.
    """
    rows = []
    everything = ((each, _stranger(each)) for each in ([] if image else store.everything(target)))
    for stored, whose in _stored_and_strangers(image, target) if image else everything:
        why, name = _full_check(stored)
        if why and not os.path.lexists(stored.path):
            continue  # pruned meanwhile
        rows.append({"reference": name, "path": str(stored.path), "broken": why, "owner": whose})
        if not as_json:
            good = f"as {whose} described it, who alone vouches for what it holds: " if whose else "good   "
            table.show([f"BROKEN {stored.path}: {why}" if why else f"{good}{stored.path}"])
    broken = [row for row in rows if row["broken"]]
    code = Exit.INFRASTRUCTURE if broken else Exit.GOOD
    what, fix = f"{len(broken)} of {len(rows)} images are damaged", f"`{PROGRAM} convert IMAGE` rebuilds one"
    if as_json:
        error = Problem("image-damaged", what, broken[0]["path"], fix, "user") if broken else None
        return json_output.show(rows, exit_code=code, error=error)
    if broken:
        say(f"{what}; {fix}")
    return code


@command.command("prune")
@click.option("--older-than", "older_than_s", callback=age_s, metavar="30d", help="Only images older than this.")
@click.option("--unused", is_flag=True, help="Only images that none of your runs used.")
@click.option(
    "--max-size", "max_bytes", callback=size_bytes, metavar="500G",
    help="Remove the longest unused images until the rest is smaller.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@STORE
@JSON
def prune(
    older_than_s: int | None, unused: bool, max_bytes: int | None, dry_run: bool, target: Path, as_json: bool
) -> int:
    """Remove the images that match all options. What killed conversions left behind is removed, too.

    An image that a queued or running job of yours needs, or may need, is kept. Jobs of other users are unknown: agree
    with them before you prune a shared store.
    """
    if older_than_s is None and max_bytes is None and not unused:
        raise click.UsageError("choose images: --older-than AGE, --max-size SIZE or --unused")
    pruned = image_usage.prune_images(target, store.Limits(older_than_s, unused, max_bytes), dry_run=dry_run)
    did = "would remove" if dry_run else "removed"
    lines = [f"{did} {each.path} ({each.size_bytes / 1e6:.0f} MB)" for each in pruned.removed]
    lines += [f"kept {path}: a run needs it, or may need it" for path in pruned.needed]
    lines += [] if pruned.removed else ["nothing to remove"]
    size = sum(each.size_bytes for each in pruned.removed)
    removed, needed = [str(each.path) for each in pruned.removed], list(map(str, pruned.needed))
    return answer({"removed": removed, "bytes": size, "needed": needed, "dry_run": dry_run}, lines, as_json=as_json)


def _stored_and_strangers(image: str, target: Path) -> tuple[tuple[StoredImage, str], ...]:
    """The stored forms of an image: a squashfs, a SIF, or both in this order; for a file, that file; each with the
    stranger who put it or its name there, if one did.

    Raises:
        RefusedError: nothing of that name is stored.
    """
    forms = tuple(SUFFIXES)[: 1 if reference.is_path(image) else None]
    found = (store.lookup_and_stranger(image, target, form) for form in forms)
    stored = tuple((each, whose) for each, whose in found if each is not None)
    if not stored:
        fix = f"`{PROGRAM} images list` shows what is there; `{PROGRAM} convert {image}` makes it"
        raise RefusedError(f"no image {image} is in the store", where=str(target), fix=fix)
    return stored


def _stranger(image: StoredImage | BrokenSidecar) -> str:
    """As ``store.stranger``; it may be anybody's in a store that a stranger could exchange."""
    try:
        if isinstance(image, StoredImage):
            return store.stranger(image)
        return owners.stranger(image.path, image.path.parent)
    except (OSError, RefusedError):
        return "another user"


def _full_check(image: StoredImage | BrokenSidecar) -> tuple[str, str]:
    """The result of a full check, and the image's name. What cannot be read now is reported, not recorded."""
    if isinstance(image, BrokenSidecar):
        return image.why, image.path.name
    try:
        return integrity.verified(image).broken, image.reference
    except OSError as error:
        return f"it cannot be read: {error.strerror}", image.reference


def _row(listed: image_usage.ListedImage) -> dict[str, Any]:
    image = listed.image
    if isinstance(image, BrokenSidecar):
        try:
            size = image.path.stat().st_size
        except OSError:
            size = 0
        facts: dict[str, Any] = {"reference": "", "digest": "", "format": "", "age_s": None, "runs": []}
        facts["owner"] = _stranger(image)
        return facts | {"path": str(image.path), "problem": image.why, "size_bytes": size}
    facts = {"reference": image.reference, "digest": image.digest, "format": _format(image.path)}
    facts |= {"path": str(image.path), "problem": listed.problem, "size_bytes": image.size_bytes}
    return facts | {"age_s": round(listed.age_s), "runs": list(listed.runs), "owner": _stranger(image)}


def _format(path: Path) -> str:
    try:
        head = image_files.head(path, form := form_of(path))
    except OSError:
        return "unreadable"
    name = "SIF" if form == "sif" else "squashfs"
    return f"{name} {head.compressor}".rstrip() if head else f"no {name}"


def _lines(row: dict[str, Any]) -> tuple[str, ...]:
    size = f"{row['size_bytes'] / 1e6:8.0f} MB"
    whose = f"  of {row['owner']}, who alone vouches for what it holds" if row["owner"] else ""
    if row["age_s"] is None:
        return row["path"], f"  {size}  UNKNOWN: {row['problem']}{whose}"
    digest = row["digest"].removeprefix("sha256:")[:12] or "-"
    runs = row["runs"]
    used = f"{counted(len(runs), 'run')}, last {runs[0]}" if runs else "no runs"
    state = f"  NOT WHOLE: {row['problem']}" if row["problem"] else ""
    return (
        row["reference"],
        f"  {size}  {row['format']}  {digest}  {age(row['age_s'])} old  {used}{state}{whose}",
        f"  {row['path']}",
    )
