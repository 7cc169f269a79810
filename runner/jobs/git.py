"""The user's git repository, read without running anything of it.

A repository's own configuration can name programs that git would run: a file system monitor, filters, drivers for
diffs, hooks, a helper that fetches. So git is never given that configuration: it runs with a directory of its own, and
takes from the repository only what is data, its objects, its index, and the files that lie there. Where HEAD points
is read here. For the same reason a repository of another user can be read.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.core import files, process
from runner.core.errors import RunnerError

TIMEOUT_S = 10.0
MOST_BYTES = 1 << 25  # of an answer: what is longer is cut off
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_LINKS = 5  # symbolic references that lead to each other
_SHORT = 1 << 16  # of HEAD and its like, bytes
_OWN_CONFIGURATION = """[core]
	quotePath = false
	fsmonitor = false
	hooksPath = /dev/null
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


def repository_of(place: Path) -> Repository | None:
    """The repository whose work tree holds a directory; None where there is none.

    Raises:
        GitError: something stands there that is not understood.
    """
    real = place.resolve()
    for top in (real, *real.parents):
        found = top / ".git"
        if os.path.lexists(found):
            directory = _git_directory(found)
            common = directory / _line(directory / "commondir") if (directory / "commondir").is_file() else directory
            commit, branch = _head(directory, common)
            return Repository(top, directory, common, commit, branch)
    return None


class Reader:
    """Git, for one repository, without its configuration."""

    def __init__(self, repository: Repository, env: dict[str, str]) -> None:
        self.repository = repository
        self._env = env

    def diff(self) -> bytes:
        """How the tracked files differ from HEAD's commit, at most MOST_BYTES; from nothing where there is no commit.

        Of what is not text it says only that it differs; of a submodule only its commit.

        Raises:
            GitError.
        """
        commit = self.repository.commit
        base = commit or self._run("hash-object", "-t", "tree", os.devnull).decode().strip()
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index")
        submodules = ("--ignore-submodules=dirty", "--submodule=short")
        return self._run("diff", *options, *submodules, "--src-prefix=a/", "--dst-prefix=b/", base, "--")

    def tracked(self, below: Path | None = None) -> tuple[str, ...]:
        """Names of the tracked files, as the index has them, relative to the top; a submodule is one name.

        Args:
            below: only those at or below this path.

        Raises:
            GitError: also where the list is longer than MOST_BYTES.
        """
        paths = () if below is None else (f":(literal,top){below.relative_to(self.repository.top)}",)
        answer = self._run("ls-files", "-z", "--", *paths)
        if len(answer) >= MOST_BYTES:
            raise GitError("the repository has too many files")
        return tuple(os.fsdecode(name) for name in answer.split(b"\0") if name)

    def _run(self, *arguments: str) -> bytes:
        return _run(self.repository.top, self._env, *arguments)


@contextmanager
def reader(repository: Repository) -> Iterator[Reader]:
    """Git with a directory of its own, whose configuration has the repository's harmless settings alone.

    Raises:
        GitError: git is not there, or the repository's configuration cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-runner-git-") as name:
        own = Path(name)
        for folder in ("objects", "refs"):
            (own / folder).mkdir()
        (own / "HEAD").write_text(f"{repository.commit}\n" if repository.commit else "ref: refs/heads/none\n")
        (own / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        env |= {
            "GIT_DIR": name,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "HOME": name,  # releases before 2.32 have no GIT_CONFIG_GLOBAL
            "XDG_CONFIG_HOME": name,
            "LC_ALL": "C",
        }
        settings = _run(
            own, env, "config", "--no-includes", "--file", str(repository.common / "config"), "-z", "--list"
        )
        (own / "config").write_text(_harmless(settings))
        env |= {
            "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
            "GIT_INDEX_FILE": str(repository.directory / "index"),
            "GIT_WORK_TREE": str(repository.top),
        }
        yield Reader(repository, env)


def _harmless(settings: bytes) -> str:
    """A configuration with the harmless ones of another one's settings (``git config -z --list``)."""
    lines = [_OWN_CONFIGURATION]
    for entry in settings.split(b"\0"):
        key, _, value = entry.decode("utf-8", "replace").partition("\n")
        if _HARMLESS.fullmatch(key) and re.fullmatch(r"\w*", value, re.ASCII):
            section, _, name = key.partition(".")
            lines.append(f"[{section}]\n\t{name} = {value}\n")
    return "".join(lines)


def _run(top: Path, env: dict[str, str], *arguments: str) -> bytes:
    command = ("git", "--no-pager", *arguments)
    try:
        done = process.read(command, MOST_BYTES, timeout_s=TIMEOUT_S, cwd=top, env=env)
    except process.CommandNotFoundError:
        raise GitError("git is not installed here") from None
    except process.CommandTimeoutError:
        raise GitError(f"git did not answer within {TIMEOUT_S:g} s") from None
    except RunnerError as error:
        raise GitError(error.what) from None
    if done.code != 0 and not done.is_cut:
        raise GitError(f"git cannot read the repository: {done.err.strip()[-300:]}")
    return done.out


def _git_directory(found: Path) -> Path:
    """What a work tree's ``.git`` stands for: itself, or where the file says (submodules, further work trees)."""
    if found.is_dir():
        return found.resolve()
    text = _line(found)
    if not text.startswith("gitdir: "):
        raise GitError(f"{found} is neither a directory nor a link to one")
    return (found.parent / text.removeprefix("gitdir: ")).resolve()


def _head(directory: Path, common: Path) -> tuple[str, str]:
    """Commit and branch of HEAD."""
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
        for line in _bytes(packed, MOST_BYTES).decode("utf-8", "surrogateescape").splitlines():
            commit, _, other = line.partition(" ")
            if other == name:
                return commit
    return ""


def _line(path: Path) -> str:
    return _bytes(path, _SHORT).decode("utf-8", "surrogateescape").strip("\n")


def _bytes(path: Path, most: int) -> bytes:
    try:
        return files.read_bytes(path, most)
    except OSError as error:
        raise GitError(f"{path} cannot be read: {error.strerror}") from None
