"""The user's git repository, read without running anything of it, and the record of the code that a job runs.

A repository's own configuration can name programs that git would run: a file system monitor, filters, drivers for
diffs, hooks, a helper that fetches. So git is never given that configuration: it runs with a directory of its own, and
takes from the repository only what is data, its objects, its index, and the files that lie there. Where HEAD points
is read here. For the same reason a repository of another user can be read: through none of that user's links, and
nothing that is read of it becomes an argument of git's, which all can see.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from runner.core import files, ownership, process
from runner.core.errors import RunnerError
from runner.core.hide import redacted
from runner.jobs.directory import CODE_DIFF, Run
from runner.model.job import CodeRecord

TIMEOUT_S = 10.0
MOST_ANSWER_BYTES = 1 << 25  # of an answer: what is longer is cut off
# What no program is made of: documentation, pictures, notebooks.
_DOCUMENTATION = (
    "*.md", "*.rst", "*.adoc", "*.tex", "*.bib", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.ipynb",
    "*.log", "*.out", "*.err",
    "doc/*", "docs/*", ".github/*", ".gitignore", "README", "LICENSE",
)  # fmt: skip
_PROGRAM = (":(top)", *(f":(top,exclude,icase){name}" for name in _DOCUMENTATION))
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_LINKS = 5  # symbolic references that lead to each other
_SHORT = 1 << 16  # of HEAD and its like, bytes
_MOST_COPIED = 1 << 28  # of the configuration and the index, bytes
# With sparseCheckout a file that is there is compared though it need not be (skip-worktree).
_OWN_CONFIGURATION = """[core]
	quotePath = false
	fsmonitor = false
	hooksPath = /dev/null
	sparseCheckout = true
[diff]
	autoRefreshIndex = false
"""
# Settings of a repository that say how its files are stored, and run nothing.
_HARMLESS = re.compile(
    r"core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|repositoryformatversion)"
    r"|extensions\.objectformat",
    re.IGNORECASE,
)


class GitError(Exception):
    """Git is not there, did not answer in time, or could not read the repository; says why."""


@dataclass(frozen=True)
class Repository:
    """A repository and its work tree.

    Attributes:
        top: top directory of the work tree.
        directory: what ``.git`` stands for: HEAD and the index. common: objects, and the references of all work trees.
        commit: of HEAD; empty where there is none yet. branch: empty where HEAD is detached.
    """

    top: Path
    directory: Path
    common: Path
    commit: str
    branch: str

    @property
    def is_trusted(self) -> bool:
        """Whether its owner is. Raises OSError."""
        return ownership.is_trusted(ownership.owner_of(ownership.status_of(self.directory)))


def repository_of(place: Path) -> Repository | None:
    """The repository whose work tree holds a directory; None where there is none. Another user's counts where the
    directory is that user's, too: anybody may put one into a place above, such as /tmp. Raises GitError: something
    stands there that is not understood, or another user's leads to what is not.
    """
    real = place.resolve()
    for top in (real, *real.parents):
        git = top / ".git"
        if not os.path.lexists(git) or (owner := git.lstat().st_uid) not in (0, os.geteuid(), real.stat().st_uid):
            continue
        directory = git.resolve()
        if not git.is_dir():  # a file that says where (submodules, further work trees)
            text = _line(git)
            if not text.startswith("gitdir: "):
                raise GitError(f"{git} is neither a directory nor a link to one")
            directory = (git.parent / text.removeprefix("gitdir: ")).resolve()
        common = directory
        if (directory / "commondir").is_file():
            common = (directory / _line(directory / "commondir")).resolve()
        parts = (directory, common, *(common / each for each in ("objects", "refs")))
        if owner not in (0, os.geteuid()) and any(each.exists() and each.stat().st_uid != owner for each in parts):
            raise GitError(f"{git} is another user's, and leads to what is not")
        return Repository(top, directory, common, *_head(directory, common))
    return None


class GitReader:
    """Git, for one repository, without its configuration."""

    def __init__(self, repository: Repository, env: dict[str, str]) -> None:
        self.repository = repository
        self._env = env

    def diff(self) -> bytes:
        """How tracked files, without documentation, differ from HEAD's commit; at most MOST_ANSWER_BYTES; from nothing
        without one.

        Of what is not text it says only that it differs; of a submodule only its commit.

        Raises:
            GitError.
        """
        base = "HEAD"
        if not self.repository.commit:
            base = self._run("hash-object", "-t", "tree", os.devnull).decode().strip()
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index")
        submodules = ("--ignore-submodules=dirty", "--submodule=short")
        return self._run("diff", *options, *submodules, "--src-prefix=a/", "--dst-prefix=b/", base, "--", *_PROGRAM)

    def between(self, commit: str, other: str) -> tuple[str, ...]:
        """Names of files, without documentation, in which two commits differ, relative to the top. Raises GitError."""
        names = ("refs/first", "refs/second")
        for name, each in zip(names, (commit, other), strict=True):
            Path(self._env["GIT_DIR"], name).write_text(f"{each}\n")
        answer = self._run("diff", "--name-only", "--no-renames", "-z", *names, "--", *_PROGRAM)
        if len(answer) >= MOST_ANSWER_BYTES:
            raise GitError("the commits differ in too many files")
        return tuple(os.fsdecode(name) for name in answer.split(b"\0") if name)

    def tracked(self, below: Path | None = None, *, new: bool = False) -> tuple[str, ...]:
        """Names of the tracked files (at or below a path), as the index has them, relative to the top; a submodule is
        one name. ``new``: with those that are neither tracked nor ignored. Raises GitError, also where the list is
        longer than MOST_ANSWER_BYTES.
        """
        paths = () if below is None else (f":(literal,top){below.relative_to(self.repository.top)}",)
        which = ("--cached", "--others", "--exclude-standard") if new else ()
        answer = self._run("ls-files", "-z", *which, "--", *paths)
        if len(answer) >= MOST_ANSWER_BYTES:
            raise GitError("the repository has too many files")
        return _names(answer.split(b"\0"))

    def sources(self) -> tuple[str, str]:
        """SHA-256 of the index without documentation, and without Python; empty where it has none, or too many files.
        Raises GitError, also where a name of the index leads out of the repository, of which ``diff`` would read.
        """
        answer = self._run("ls-files", "--stage", "-z", "--", *_PROGRAM)
        _names(entry.partition(b"\t")[2] for entry in answer.split(b"\0"))
        if not 0 < len(answer) < MOST_ANSWER_BYTES:
            if answer and not self.repository.is_trusted:
                raise GitError("the repository is another user's, and has too many files")
            return "", ""
        others = (entry for entry in answer.split(b"\0") if not entry.endswith(b".py"))
        return files.sha256(answer), files.sha256(b"\0".join(others))

    def _run(self, *arguments: str) -> bytes:
        return _run(self.repository, self._env, *arguments)


def _names(listed: Iterable[bytes]) -> tuple[str, ...]:
    """Of the files that git lists. Raises GitError: one leads out of the repository: another user made the index."""
    names = tuple(os.fsdecode(name) for name in listed if name)
    if outside := next((each for each in names if each.startswith("/") or ".." in each.split("/")), ""):
        raise GitError(f"a name in its index leads out of it: {outside}")
    return names


@contextmanager
def git_reader(repository: Repository) -> Iterator[GitReader]:
    """Git with a directory of its own, whose configuration has the repository's harmless settings alone. Raises
    GitError: git is not there, or the repository's configuration or index cannot be read.
    """
    with files.temporary_directory() as own:
        for folder in ("objects", "refs"):
            (own / folder).mkdir()
        (own / "HEAD").write_text(f"{repository.commit}\n" if repository.commit else "ref: refs/heads/none\n")
        (own / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        env |= {
            "GIT_DIR": str(own),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "HOME": str(own),  # releases before 2.32 have no GIT_CONFIG_GLOBAL
            "XDG_CONFIG_HOME": str(own),
            "LC_ALL": "C",
        }
        copy = own / "config of the repository"
        copy.write_bytes(_bytes(repository.common / "config", _MOST_COPIED))
        settings = _run(repository, env, "config", "--no-includes", "--file", str(copy), "-z", "--list")
        lines = [_OWN_CONFIGURATION]
        for entry in settings.split(b"\0"):
            key, _, value = entry.decode("utf-8", "replace").partition("\n")
            if _HARMLESS.fullmatch(key) and re.fullmatch(r"\w*", value, re.ASCII):
                section, _, setting = key.partition(".")
                lines.append(f"[{section}]\n\t{setting} = {value}\n")
        (own / "config").write_text("".join(lines))
        has_copy = not repository.is_trusted
        env |= {
            "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
            "GIT_WORK_TREE": str(repository.top),
            "GIT_INDEX_FILE": str((own if has_copy else repository.directory) / "index"),
        }
        if has_copy:
            _copy_index(repository.directory, own)
        if re.search(rb"(\A|\0)[a-z] ", _run(repository, env, "ls-files", "-v", "-z")):
            # Git takes files for unchanged as the user wants it: a copy says what they are.
            if not has_copy:
                _copy_index(repository.directory, own)
            env["GIT_INDEX_FILE"] = str(own / "index")
            _run(repository, env, "update-index", "-q", "--really-refresh")
        yield GitReader(repository, env)


def _copy_index(directory: Path, own: Path) -> None:
    """Copy the index, and what it shares with others (a split index). Its time stays: git compares what is as new."""
    if not (index := directory / "index").is_file():
        return  # nothing was added yet
    changed_ns = index.stat().st_mtime_ns
    content = _bytes(index, _MOST_COPIED)
    for part in directory.glob("sharedindex.*"):
        digits = part.suffix[1:]
        if _HASH.match(digits) and bytes.fromhex(digits) in content:
            (own / part.name).write_bytes(_bytes(part, _MOST_COPIED))
            break
    (own / "index").write_bytes(content)
    os.utime(own / "index", ns=(changed_ns, changed_ns))


def _run(repository: Repository, env: dict[str, str], *arguments: str) -> bytes:
    command = ("git", "--no-pager", *arguments)
    try:
        done = process.read(command, MOST_ANSWER_BYTES, timeout_s=TIMEOUT_S, cwd=repository.top, env=env)
    except process.CommandNotFoundError:
        raise GitError("git is not installed here") from None
    except process.CommandTimeoutError:
        raise GitError(f"git did not answer within {TIMEOUT_S:g} s") from None
    except RunnerError as error:
        raise GitError(error.what) from None
    if done.code != 0 and not done.is_cut:
        # Of a stranger's it would cite what his links lead to, such as a list of further directories of objects.
        why = f": {done.err.strip()[-300:]}" if repository.is_trusted else ", which is another user's"
        raise GitError(f"git cannot read the repository{why}")
    return done.out


def _head(directory: Path, common: Path) -> tuple[str, str]:
    text = _line(directory / "HEAD")
    branch = text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else ""
    if branch == ".invalid":
        raise GitError("the repository keeps its references in a form that is not read here (reftable)")
    for _ in range(_LINKS):
        if not text.startswith("ref: "):
            break
        name = text.removeprefix("ref: ")
        if not name.startswith("refs/") or ".." in name:
            raise GitError(f"HEAD points to {name!r}")
        text = _reference(name, directory, common)
    if text and not _HASH.match(text):
        raise GitError("HEAD does not lead to a commit")
    return text, branch


def _reference(name: str, directory: Path, common: Path) -> str:
    for place in (directory, common):
        if (place / name).is_file():
            return _line(place / name)
    packed = common / "packed-refs"
    if packed.is_file():
        for line in _bytes(packed, MOST_ANSWER_BYTES).decode("utf-8", "surrogateescape").splitlines():
            commit, _, other = line.partition(" ")
            if other == name:
                return commit
    return ""


def _line(path: Path) -> str:
    return _bytes(path, _SHORT).decode("utf-8", "surrogateescape").strip("\n")


def _bytes(path: Path, most: int) -> bytes:
    """A file of the repository's own; a stranger's link could lead to one that this user alone may read."""
    try:
        real = ownership.real_path(path)
        return files.Folder(real.parent).content_of(real.name, most)
    except OSError as error:
        raise GitError(f"{path} cannot be read: {error.strerror}") from None


MOST_BYTES = 1_000_000  # of the kept difference
_MOST_NAMES = 1000
_MOST_WORDS = 100  # of a command line that are looked at
_SOURCE = re.compile(r"\.(py|sh|pl|R|jl)\Z")
_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)  # of names in quotes, as in C
_LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def code_record(program: Sequence[str], directory: Path, *, with_diff: bool) -> tuple[CodeRecord, str]:
    """The record of the code that a job runs, and the difference to keep. Never fails: what is unknown is said.

    Args:
        program: the argument list whose files are looked for; empty for a recipe.
        directory: where it starts.
        with_diff: the difference is kept.
    """
    try:
        repository, file = _code_of(program, directory)
        if repository is None:
            return CodeRecord(problem="the program is in no git repository"), ""
    except (GitError, OSError, RuntimeError) as error:
        return CodeRecord(problem=str(error)), ""
    base = CodeRecord(repository=str(repository.top), commit=repository.commit, branch=repository.branch)
    try:
        with git_reader(repository) as reader:
            (sources, other_sources), answer = reader.sources(), reader.diff()
            untracked = "" if file is None or reader.tracked(file) else str(file.relative_to(repository.top))
    except (GitError, OSError) as error:
        return replace(base, problem=f"what differs from the commit is unknown: {error}"), ""
    if len(answer) >= MOST_ANSWER_BYTES:
        return replace(base, dirty=True, problem="what differs from the commit is too much to be read"), ""
    # Those of text that fit, without secrets; a long one does not crowd out the others.
    changed: list[str] = []
    texts: list[bytes] = []
    binary, too_long = [], []
    left = MOST_BYTES
    for name, change in changes_in(answer):
        if not change.partition(b"\n")[2]:  # only its times differ
            continue
        changed.append(name)
        if b"\nBinary files " in change:
            binary.append(name)
        elif len(change) > left:
            too_long.append(name)
        else:
            texts.append(change)
            left -= len(change)
    text, count = redacted(b"".join(texts).decode("utf-8", "surrogateescape"))
    record = replace(
        base,
        sources=sources,
        other_sources=other_sources,
        dirty=bool(changed),
        changed=tuple(changed[:_MOST_NAMES]),
        binary=tuple(binary[:_MOST_NAMES]),
        too_long=tuple(too_long[:_MOST_NAMES]),
        untracked=untracked,
    )
    if not with_diff or not text:
        return record, ""
    return replace(record, redacted=count, diff_kept=True), text


def changes_in(difference: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of a difference, each with its part."""
    starts = [match.start() for match in _FILE.finditer(difference)]
    for start, end in pairwise([*starts, len(difference)]):
        change = difference[start:end]
        yield _name(change.partition(b"\n")[0].removeprefix(b"diff --git ")), change


def changed_since(commit: str, now: CodeRecord) -> tuple[str, ...] | None:
    """Names of files, without documentation, in which two commits differ; None where git cannot tell."""
    try:
        if (repository := repository_of(Path(now.repository))) is None or not _HASH.match(commit):
            return None
        with git_reader(repository) as reader:
            return reader.between(commit, now.commit)
    except (GitError, OSError):
        return None


def recorded(first: Run, *, with_diff: bool) -> tuple[CodeRecord | None, str]:
    """The same of a run whose code is run again: what was recorded then."""
    record = first.code
    if record is None or not record.diff_kept:
        return record, ""
    text = first.content(CODE_DIFF).decode("utf-8", "surrogateescape") if with_diff else ""
    return (record, text) if text else (replace(record, redacted=0, diff_kept=False), "")


def _name(head: bytes) -> str:
    """Of ``a/NAME b/NAME``, both in quotes if one is: without renames, the two are alike."""
    second = head[len(head) // 2 + 1 :]
    if second.startswith(b'"'):
        second = _ESCAPE.sub(
            lambda escape: bytes([int(escape[1], 8)]) if escape[1].isdigit() else _LETTERS.get(escape[1], escape[1]),
            second[1:-1],
        )
    return os.fsdecode(second.removeprefix(b"b/"))


def _code_of(program: Sequence[str], directory: Path) -> tuple[Repository | None, Path | None]:
    """The repository of the first source file among the words that is in one, and the file; else of the directory.

    Other files may be the interpreter, in an environment within another repository, or data.
    """
    for word in program[:_MOST_WORDS]:
        file = directory / word
        if not is_source(word) or not os.path.isfile(file):  # noqa: PTH113 (False for a name that is too long)
            continue
        if (repository := repository_of(file.parent)) is not None:
            return repository, file.parent.resolve() / file.name
    return repository_of(directory), None


def is_documentation(name: str) -> bool:
    """Whether that file is no part of a program; relative to the top of its repository."""
    return any(fnmatchcase(name.lower(), each.lower()) for each in _DOCUMENTATION)


def is_source(word: str) -> bool:
    """Whether an argument looks like a file of the program's source."""
    return _SOURCE.search(word) is not None and "\0" not in word and not word.startswith("-")
