"""Where things live: what ships with the package, and what is kept in the user's cache.

``RUNNER_CACHE`` overrides the cache directory (default: the platform's, ``~/.cache/gpu-runner``). Everything
expensive is kept there, keyed by a hash of its inputs, and all of it may be deleted at any time that no engine
or box runs from it.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_PACKAGE = Path(__file__).resolve().parent


def cache_dir() -> Path:
    """The cache directory, absolute; not necessarily existing."""
    override = os.environ.get("RUNNER_CACHE")
    return Path(override).absolute() if override else platformdirs.user_cache_path("gpu-runner", appauthor=False)


def state_dir() -> Path:
    """What must outlive the cache: the list of runs. ``RUNNER_STATE`` overrides ``~/.local/state/gpu-runner``."""
    override = os.environ.get("RUNNER_STATE")
    return Path(override).absolute() if override else platformdirs.user_state_path("gpu-runner", appauthor=False)


def share(name: str) -> Path:
    """The shipped directory ``name`` (``containers`` or ``recipes``), from the checkout or from the wheel."""
    bundled = _PACKAGE / "_share" / name
    return bundled if bundled.is_dir() else _PACKAGE.parent / name


def source_root() -> Path | None:
    """The checkout that this package runs from; None when it runs from an installed wheel."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "containers").is_dir() else None
