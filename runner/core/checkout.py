"""The git checkout that this package runs from."""

from __future__ import annotations

from runner.core import paths, process
from runner.core.errors import RunnerError

_LONGEST_S = 10.0


def commit_and_changes() -> tuple[str, bool | None] | None:
    """Its commit, and whether files of it differ, None where git does not say; None without a checkout, or git."""
    root = paths.repository_root()
    if root is None or process.find("git") is None:
        return None
    git = ("git", "--no-optional-locks", "-C", root)
    try:
        head = process.run((*git, "rev-parse", "HEAD"), timeout_s=_LONGEST_S, check=False)
        changes = process.run((*git, "status", "--porcelain"), timeout_s=_LONGEST_S, check=False)
    except RunnerError:
        return None
    changed = bool(changes.out.strip()) if changes.code == 0 else None
    return (head.out.strip(), changed) if head.code == 0 else None
