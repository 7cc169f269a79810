"""``images``: list, show, edit, verify and prune the stored images."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.importer import command as importer
from runner.cli.options import age_s, by_shell, size_bytes
from runner.core.errors import Exit
from runner.core.invocation import PROGRAM
from runner.core.text import counted

if TYPE_CHECKING:
    from runner.images.store.stored_image import BrokenSidecar, StoredImage
    from runner.jobs.image_usage import ListedImage

STORE = click.option(
    "--store",
    "store_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Image store. [default: $RUNNER_STORE, else in the cache directory]",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")


@click.group()
def command() -> None:
    """List, show, edit, verify and prune the stored images."""


@command.command("list")
@STORE
@JSON
def list_images(store_dir: Path | None, as_json: bool) -> int:
    """List the images of the store, with your runs that used them."""
    from runner.jobs import image_usage

    target = _directory(store_dir)
    rows = [_row(listed) for listed in image_usage.list_images(target)]
    if as_json:
        from runner.cli import json_output

        return json_output.show(rows)
    for row in rows:
        click.echo(_line(row))
    if not rows:
        click.echo(f"no images in {target}; `{PROGRAM} convert IMAGE` makes one")
    return Exit.GOOD


@command.command("show")
@click.argument("image", shell_complete=by_shell("images"))
@STORE
@JSON
def show(image: str, store_dir: Path | None, as_json: bool) -> int:
    """Show all facts about IMAGE (a reference, a digest or a file), and whether it looks intact."""
    import msgspec

    from runner.cli.build import horovod_summary
    from runner.images.store import integrity
    from runner.model.image import facts_of

    found = _stored(image, store_dir)[0]
    facts: dict[str, Any] = {**msgspec.to_builtins(found, enc_hook=str), "problem": integrity.problem(found)}
    if as_json:
        from runner.cli import json_output

        return json_output.show(facts)
    for name, value in facts.items():
        if value in ("", (), [], {}, 0):
            continue
        if name == "history":
            click.echo(f"{name}:")
            for edit in found.history:
                click.echo(f"  {edit.at[:19]} of {edit.of}, by {edit.tool}: {shlex.join(edit.command)}")
        elif isinstance(value, dict):
            click.echo(f"{name}:")
            for key, entry in value.items():
                click.echo(f"  {key}: {entry if isinstance(entry, str) else json.dumps(entry)}")
        else:
            click.echo(f"{name}: {' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")
    about = facts_of(found.about)
    if about is not None and about.framework:
        click.echo(f"Horovod: {horovod_summary(about.horovod)}")
    return Exit.GOOD


@command.command("edit")
@click.argument("image", shell_complete=by_shell("images"))
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
@click.option("--shell", is_flag=True, help="Run a shell of the image; its end is the end of the edit.")
@click.option("--name", metavar="NAME:TAG", help="Name of the result. [default: IMAGE with -edited behind its tag]")
@click.option(
    "--with",
    "tool_name",
    type=click.Choice(["enroot", "apptainer", "ch-run"]),
    help="What runs the command. [default: the first of these that is here]",
)
@STORE
@JSON
def edit(
    image: str,
    words: tuple[str, ...],
    shell: bool,
    name: str | None,
    tool_name: str | None,
    store_dir: Path | None,
    as_json: bool,
) -> int:
    """Run COMMAND as root in a writable copy of IMAGE, and store the result as a new image. No engine is needed.

    Nothing is stored if COMMAND fails. IMAGE stays as it is, and jobs that use it are not disturbed.
    """
    import sys

    from runner.cli.progress import display
    from runner.images import editing, writable_root
    from runner.images.store import store

    if shell == bool(words):
        raise click.UsageError("write the command behind --, or --shell")
    target = _directory(store_dir)
    found = _stored(image, store_dir)[0]
    if whose := store.stranger(found):
        click.echo(f"warning: {whose} put this image into the store, and alone vouches for what it holds", err=True)
    tool = writable_root.find_tool(tool_name)
    result = editing.new_name(found, name)
    editing.check(found, tool, target)
    with ExitStack() as stack:
        with display(quiet=as_json) as progress:
            copy = stack.enter_context(editing.writable_copy(found, progress))
        words = (editing.shell(copy.root),) if shell else words
        # A shell ends with the status of its last command, whatever that was.
        status = editing.run(tool, copy, words, to_stderr=as_json)
        if status != 0 and not (shell and sys.stdin.isatty()):
            raise editing.failed(words, status)
        if shell and sys.stdin.isatty():
            click.confirm(f"store the result as {result}?", default=True, abort=True, err=True)
        with display(quiet=as_json) as progress:
            made = editing.stored(found, copy, tool, words, result, target, progress).image
    if as_json:
        from runner.cli import json_output

        return json_output.show({"reference": made.reference, "path": str(made.path), "digest": made.digest})
    click.echo(f"{made.reference}: stored, {made.size_bytes / 1e6:.0f} MB\n  {made.path}\n  {made.digest}")
    return Exit.GOOD


@command.command("verify")
@click.argument("image", required=False, shell_complete=by_shell("images"))
@STORE
@JSON
def verify(image: str | None, store_dir: Path | None, as_json: bool) -> int:
    """Check every byte of IMAGE, or of all images. A broken image is recorded: submit refuses it, convert makes it
    again.
    """
    from runner.images.store import store

    candidates = _stored(image, store_dir) if image else store.everything(_directory(store_dir))
    rows = []
    for found in candidates:
        why, name = _full_check(found)
        if why and not os.path.lexists(found.path):
            continue  # pruned meanwhile
        rows.append({"reference": name, "path": str(found.path), "broken": why})
        if not as_json:
            click.echo(f"BROKEN {found.path}: {why}" if why else f"good   {found.path}")
    broken = [row for row in rows if row["broken"]]
    code = Exit.INFRASTRUCTURE if broken else Exit.GOOD
    what, fix = f"{len(broken)} of {len(rows)} images are damaged", f"`{PROGRAM} convert IMAGE` rebuilds one"
    if as_json:
        from runner.cli import json_output
        from runner.model.output import Problem

        error = Problem("image-damaged", what, broken[0]["path"], fix, "user") if broken else None
        return json_output.show(rows, exit_code=code, error=error)
    if broken:
        click.echo(f"{what}; {fix}", err=True)
    return code


@command.command("prune")
@click.option("--older-than", "older_than_s", callback=age_s, metavar="30d", help="Only images older than this.")
@click.option("--unused", is_flag=True, help="Only images that none of your runs used.")
@click.option(
    "--max-size",
    "max_bytes",
    callback=size_bytes,
    metavar="500G",
    help="Remove the longest unused images until the rest is smaller.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@STORE
@JSON
def prune(
    older_than_s: int | None, unused: bool, max_bytes: int | None, dry_run: bool, store_dir: Path | None, as_json: bool
) -> int:
    """Remove the images that match all options, and what killed conversions left behind.

    An image that a queued or running job of yours needs, or may need, is kept. Jobs of other users are unknown: agree
    with them before you prune a shared store.
    """
    from runner.images.store.store import Limits
    from runner.jobs.image_usage import prune_images

    if older_than_s is None and max_bytes is None and not unused:
        raise click.UsageError("choose images: --older-than AGE, --max-size SIZE or --unused")
    pruned = prune_images(_directory(store_dir), Limits(older_than_s, unused, max_bytes), dry_run=dry_run)
    if as_json:
        from runner.cli import json_output

        facts = {
            "removed": [str(candidate.path) for candidate in pruned.removed],
            "bytes": sum(candidate.size_bytes for candidate in pruned.removed),
            "needed": [str(path) for path in pruned.needed],
            "dry_run": dry_run,
        }
        return json_output.show(facts)
    for candidate in pruned.removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {candidate.path} ({candidate.size_bytes / 1e6:.0f} MB)")
    for path in pruned.needed:
        click.echo(f"kept {path}: a run needs it, or may need it")
    if not pruned.removed:
        click.echo("nothing to remove")
    return Exit.GOOD


command.add_command(importer, "importer")


def _directory(store_dir: Path | None) -> Path:
    from runner.images.store import store

    return store_dir.absolute() if store_dir else store.directory()


def _stored(image: str, store_dir: Path | None) -> tuple[StoredImage, ...]:
    """The stored forms of an image: a squashfs, a SIF, or both in this order; for a file, that file.

    Raises:
        RefusedError: nothing of that name is stored.
    """
    from runner.core.errors import RefusedError
    from runner.images import reference
    from runner.images.store import store
    from runner.images.store.stored_image import SUFFIXES

    target = _directory(store_dir)
    forms = tuple(SUFFIXES)[: 1 if reference.is_path(image) else None]
    found = tuple(filter(None, (store.lookup(image, target, form) for form in forms)))
    if not found:
        raise RefusedError(
            f"no image {image} is in the store",
            where=str(target),
            fix=f"`{PROGRAM} images list` shows what is there; `{PROGRAM} convert {image}` makes it",
        )
    return found


def _full_check(image: StoredImage | BrokenSidecar) -> tuple[str, str]:
    """The result of a full check, and the image's name. What cannot be read now is reported, not recorded."""
    from runner.images.store import integrity
    from runner.images.store.stored_image import BrokenSidecar

    if isinstance(image, BrokenSidecar):
        return image.why, image.path.name
    try:
        return integrity.verified(image).broken, image.reference
    except OSError as error:
        return f"it cannot be read: {error.strerror}", image.reference


def _row(listed: ListedImage) -> dict[str, Any]:
    from runner.images.store.stored_image import BrokenSidecar

    image = listed.image
    if isinstance(image, BrokenSidecar):
        size = _size(image.path)
        nothing: dict[str, Any] = {"reference": "", "digest": "", "format": "", "age_s": None, "runs": []}
        return {"path": str(image.path), "problem": image.why, "size_bytes": size} | nothing
    return {
        "reference": image.reference,
        "path": str(image.path),
        "digest": image.digest,
        "size_bytes": image.size_bytes,
        "format": _format(image.path),
        "age_s": round(listed.age_s),
        "problem": listed.problem,
        "runs": list(listed.runs),
    }


def _format(path: Path) -> str:
    from runner.images.store import image_files
    from runner.images.store.stored_image import form_of

    try:
        if form_of(path) == "sif":
            return "SIF" if image_files.sif_root(path) else "no SIF"
        head = image_files.superblock(path)
    except OSError:
        return "unreadable"
    return f"squashfs {head.compressor}" if head else "no squashfs"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _line(row: dict[str, Any]) -> str:
    size = f"{row['size_bytes'] / 1e6:8.0f} MB"
    if row["age_s"] is None:
        return f"{row['path']}\n  {size}  UNKNOWN: {row['problem']}"
    age = max(0, row["age_s"])
    old = f"{age // 86400} d" if age >= 86400 else f"{age // 3600} h" if age >= 3600 else f"{age // 60} min"
    digest = row["digest"].removeprefix("sha256:")[:12] or "-"
    runs = row["runs"]
    used = f"{counted(len(runs), 'run')}, last {runs[0]}" if runs else "no runs"
    state = f"  NOT WHOLE: {row['problem']}" if row["problem"] else ""
    return f"{row['reference']}\n  {size}  {row['format']}  {digest}  {old} old  {used}{state}\n  {row['path']}"
