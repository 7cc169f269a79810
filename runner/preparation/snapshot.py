"""A copy of the user's tracked files (``--snapshot``): what belongs to it, and whether the program can run from it.

Looks at the repository and copies nothing; ``runner.jobs.snapshot_copy`` does, when the job is submitted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from runner.core import ownership
from runner.core.errors import RefusedError, UsageError
from runner.jobs import code_record
from runner.jobs.code_record import GitError, Repository, is_source
from runner.jobs.directory import CODE_FILES, Run
from runner.jobs.snapshot_copy import CopiedFiles, Snapshot
from runner.model.plan import COPY, WORKSPACE
from runner.model.request import Request

_DEPTH = 8  # of submodules in submodules
_WHERE = "--snapshot"
_NOW = "--snapshot copies your code as it is now, --without snapshot runs it where it is"


def snapshot_of(request: Request) -> Snapshot:
    """The tracked files of the repository that holds the working directory, those of its submodules included. Raises
    UsageError: a recipe is run, which is always copied; RefusedError: there is no repository, git cannot read it, or
    the program would not be in the copy.
    """
    directory = request.starts_in
    if directory is None:
        what = "a recipe is copied into the run directory anyway"
        raise UsageError(what, where=_WHERE, fix="leave out --snapshot")
    try:
        repository = code_record.repository_of(Path(directory))
        if repository is None:
            fix = "`git init && git add` what the program needs, submit from its repository, or leave out --snapshot"
            raise RefusedError("the working directory is in no git repository", where=directory, fix=fix)
        names = names_of(repository)
        own, others = ownership.own_and_others(repository.top, names)
    except (GitError, OSError) as error:
        fix = "correct it, or leave out --snapshot"
        raise RefusedError(f"the tracked files cannot be listed: {error}", where=directory, fix=fix) from None
    start = Path(directory).resolve().relative_to(repository.top).as_posix()
    for word in request.program:
        _check_word(word, directory, start, repository, frozenset(names))
    return Snapshot(repository.top, "" if start == "." else start, tuple(own), others=tuple(others))


def copy_again(first: Run, program: Sequence[str]) -> Snapshot:
    """The copy of a run, to be copied and run again.

    Args:
        program: an argument that names a source file is looked for in it.

    Raises RefusedError: it is not there any more, did not record its files, or has not the program.
    """
    found = first.read(CODE_FILES, CopiedFiles)
    top = first.path / COPY
    if found is None or not top.is_dir():
        what = "the code that ran is not available: its copy, or the list of its files, is not there"
        raise RefusedError(what, where=str(top), fix=_NOW)
    names = frozenset(found.contents)
    for word in program:
        name = posixpath.normpath(posixpath.join(found.start, word))
        if is_source(word) and not word.startswith("/") and name not in names:
            raise RefusedError(f"the copy that ran has no {word}", where=str(top), fix=_NOW)
    return Snapshot(top, found.start, tuple(found.contents), first, found.contents)


def names_of(repository: Repository, below: str = "", depth: int = _DEPTH, *, new: bool = False) -> tuple[str, ...]:
    """Tracked files, those of submodules included, relative to the outermost repository. ``new``: with those that are
    neither tracked nor ignored. Raises GitError.
    """
    with code_record.git_reader(repository) as reader:
        names = reader.tracked(new=new)
    found: list[str] = []
    for name in dict.fromkeys(name.rstrip("/") for name in names):
        place = repository.top / name
        if depth and not place.is_symlink() and place.is_dir():
            inner = code_record.repository_of(place)
            if inner is not None and inner.top == place:
                found += names_of(inner, f"{below}{name}/", depth - 1, new=new)
        else:
            found.append(f"{below}{name}")
    return tuple(found)


def _check_word(word: str, directory: str, start: str, repository: Repository, names: frozenset[str]) -> None:
    """Check an argument that names a source file. Raises RefusedError: it names the original, or what the copy will not
    have.
    """
    if not is_source(word):
        return
    file = Path(directory, word)
    if word.startswith(f"{WORKSPACE}/") or (word.startswith("/") and repository.top in file.parents):
        what = f"{word} names the original, and the copy is run"
        raise RefusedError(what, where=_WHERE, fix="name it by its path relative to the working directory")
    if word.startswith("/") or not file.is_file():
        return
    name = posixpath.normpath(posixpath.join(start, word))
    if name not in names:
        what = f"{word} is not tracked by git, so the copy does not have it"
        raise RefusedError(what, where=_WHERE, fix=f"`git add {word}` (no commit is needed), or leave out --snapshot")
