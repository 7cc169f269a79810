"""Verifies a bundle: every byte by its hash, every figure and verdict by its records, and who signed it.

It needs this package and Python, no run directory, scheduler or network. Nothing is written outside a temporary
directory of its own, and only under names that a bundle may have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from runner.core.errors import NotProvenError, UsageError
from runner.core.files import UnusableFileError, open_regular, sha256, temporary_directory
from runner.core.hide import REDACTED
from runner.figures.bundle import bag, signature
from runner.figures.bundle.bag import LEAST_FILES, is_member
from runner.figures.bundle.making import ABOUT, SCHEMA, TOP
from runner.figures.bundle.proof import (
    LOG,
    RUNS,
    STUDY,
    Figures,
    beside_study,
    check_different,
    difference,
    proven_run,
    proven_study,
)
from runner.model.figure import OfStudy
from runner.model.output import Bundle, BundledRun, VerifiedBundle

_LATER = ("figure", "doubts", "scaling", "why", "log", "demonstration")
_MOST_BYTES = 1 << 33


def verify(file: Path, allowed: Path | None = None, figures: Figures | None = None) -> VerifiedBundle:
    """What a bundle proves.

    Args:
        figures: what makes the table of a study; without it a bundle of a study is refused.
        allowed: file of allowed signers (ssh-keygen(1)); the bundle must then be signed by one of them.

    Raises:
        NotProvenError: it is no bundle, or was altered, or does not give what it says.
        UsageError: it cannot be read, or ``allowed`` not be used.
    """
    try:
        with open_regular(file) as opened, temporary_directory() as data:
            digests, tags = _hashed(opened)
            state, signer = signature.verify(tags[bag.TAG_MANIFEST], tags.get(bag.SIGNATURE), allowed)
            opened.seek(0)
            for name, content in _members(opened):
                if name.startswith(bag.DATA):
                    if digests.get(name.removeprefix(bag.DATA)) != sha256(content):
                        raise NotProvenError("the bundle was altered while it was read", where=name)
                    path = data / name.removeprefix(bag.DATA)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            about, said = _about(data)
            runs = _runs(data, digests, {run.run: run for run in about.runs})
            study, of_figures = None, OfStudy()
            if about.study is not None or STUDY in digests:
                if figures is None or about.study is None:
                    raise NotProvenError(f"{ABOUT} and {STUDY} do not belong together", where=f"{bag.DATA}{ABOUT}")
                of = about.study
                study, of_figures = proven_study(data, of.runs, figures, of.gaps, of.others)
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(file)) from None
    except UnusableFileError as error:
        raise UsageError(f"it cannot be read: {error.strerror}", where=str(file)) from None
    known, there = msgspec.to_builtins(about), {*_keys(said), *(("study.log",) if LOG in digests else ())}
    expected = _without_later_keys(msgspec.to_builtins(Bundle(SCHEMA, runs, study)), there)
    key = min(there - {*_keys(known)}, default="") or difference(_without_later_keys(known, there), expected)
    if key:
        raise NotProvenError(f"{ABOUT} is not what the records give: {key} differs", where=f"{bag.DATA}{ABOUT}")
    shown = runs if study is None else beside_study(runs, study, of_figures)
    return VerifiedBundle(str(file), sha256(tags[bag.TAG_MANIFEST]), state, signer, shown, study)


def _hashed(opened: BinaryIO) -> tuple[dict[str, str], dict[str, bytes]]:
    """The payload's hashes by name and the tag files, which fit each other. Nothing is written for it."""
    digests: dict[str, str] = {}
    tags: dict[str, bytes] = {}
    size = 0
    for name, content in _members(opened):
        if name.startswith(bag.DATA):
            digests[name.removeprefix(bag.DATA)] = sha256(content)
            size += len(content)
        else:
            tags[name] = content
    bag.check(digests, size, tags)
    for name in digests:
        folder, _, rest = name.partition("/")
        if name not in (ABOUT, STUDY, LOG) and not (folder == RUNS and is_member(rest.partition("/")[2])):
            what = f"the bundle was altered: {name} does not belong in a bundle"
            raise NotProvenError(what, where=f"{bag.DATA}{name}")
    return digests, tags


def _members(opened: BinaryIO) -> Iterator[tuple[str, bytes]]:
    size = os.fstat(opened.fileno()).st_size
    if size > _MOST_BYTES:
        raise NotProvenError(f"it is longer than a bundle may be ({_MOST_BYTES} bytes)")
    for member, content in bag.read(opened, size):
        name = member.removeprefix(f"{TOP}/")
        if name == member:
            raise NotProvenError(f"the bundle was altered: {member} is not below {TOP}", where=member)
        yield name, content


def _about(data: Path) -> tuple[Bundle, Any]:
    """What it says of itself, and the same as it stands there."""
    try:
        said = json.loads((data / ABOUT).read_bytes(), object_pairs_hook=_once)
        return msgspec.convert(said, Bundle, strict=True), said
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        raise NotProvenError(f"{ABOUT} cannot be read", where=f"{bag.DATA}{ABOUT}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a key that is there twice, each program would read another value."""
    if len(made := dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return made


def _keys(value: Any, at: str = "") -> Iterator[str]:
    """The keys of a document, each as often as it is there, with those that it lies below."""
    for name, each in value.items() if isinstance(value, dict) else ():
        yield f"{at}{name}"
        yield from _keys(each, f"{at}{name}.")
    for each in value if isinstance(value, list | tuple) else ():
        yield from _keys(each, at)


def _without_later_keys(value: Any, there: Collection[str], at: str = "") -> Any:
    """A document without the keys that bundles of earlier versions do not have, where none of its kind is ``there``:
    what a bundle does not say need not be what its records give.
    """
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in _LATER or f"{at}{name}" in there}
        return {name: _without_later_keys(each, there, f"{at}{name}.") for name, each in kept.items()}
    if isinstance(value, list | tuple):
        return [_without_later_keys(each, there, at) for each in value]
    return value


def _runs(data: Path, digests: Iterable[str], said: Mapping[str, BundledRun]) -> tuple[BundledRun, ...]:
    files: dict[str, set[str]] = {}
    for folder, _, rest in (name.partition("/") for name in digests):
        if folder == RUNS:
            files.setdefault(rest.partition("/")[0], set()).add(rest.partition("/")[2])
    runs: list[BundledRun] = []
    for run_id in sorted(files):
        root, where = data / RUNS / run_id, f"{bag.DATA}{RUNS}/{run_id}"
        if run_id not in said:
            raise NotProvenError(f"{ABOUT} does not name the run {run_id}", where=where)
        if lacking := LEAST_FILES - files[run_id]:
            raise NotProvenError(f"{run_id} has no {min(lacking)}", where=where)
        redacted = said[run_id].redacted
        for name in redacted:
            if name not in files[run_id] or REDACTED.encode() not in (root / name).read_bytes():
                raise NotProvenError(f"{run_id}: nothing was redacted in {name}", where=f"{bag.DATA}{ABOUT}")
        # Which version made the bundle is for people: it cannot be known from the records.
        runs.append(msgspec.structs.replace(proven_run(root, redacted), version=said[run_id].version))
    if not runs:
        raise NotProvenError("the bundle has no run")
    check_different(data / RUNS / run.run for run in runs)
    return tuple(runs)
