"""Horovod's wheels, kept by key for whoever builds next: offered to a build, and taken out of one."""

from __future__ import annotations

import shutil
from pathlib import Path

from runner import paths
from runner.files import atomic
from runner.images.build.horovod import SHIPPED


def offered() -> tuple[tuple[str, Path], ...]:
    """Every kept wheel, under the name in the context where ``build.py`` looks for the one that fits."""
    shelf = paths.cache("wheels")
    found = [] if paths.caches_ignored() else sorted(shelf.glob("*/*.whl"))
    return tuple((f"containers/horovod/wheels/{path.parent.name}/{path.name}", path) for path in found)


def keep(directory: Path) -> None:
    """Keep the wheel that ``build.py`` left in ``directory`` with its key; nothing where the base's own was taken."""
    key = (directory / "key").read_text("utf-8").strip()
    for wheel in directory.glob("*.whl"):
        shelf = paths.cache("wheels") / key
        if key != SHIPPED and not (shelf / wheel.name).exists():
            shelf.mkdir(parents=True, exist_ok=True)
            with atomic.replacement(shelf / wheel.name) as fresh:
                shutil.copyfile(wheel, fresh)
