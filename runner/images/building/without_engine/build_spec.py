"""What to build without an engine: decided once, the same for every builder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from runner.core.files import sha256
from runner.images.building.without_engine.steps import Stage
from runner.images.packing import rootfs
from runner.images.writable_root.tree import TreeImage

ARCHIVES = ("docker-archive:", "oci-archive:")  # bases that are files


@dataclass(frozen=True)
class ResolvedBase:
    """The base image as a builder found it.

    Attributes:
        reference: as the user named it. digest: of its manifest where a registry has it, else of its content.
        path: where the builder keeps it; None where no file of it is known.
    """

    reference: str
    digest: str
    path: Path | None = None


@dataclass(frozen=True)
class BuildSpec:
    """An image to build.

    Attributes:
        name: of the image. base: what it starts from. stages: the Dockerfile's, all values put in.
        files: the build's context as (name, path). labels: of the image, its stages' own included.
        inputs: hash of everything that goes into it.
    """

    name: str
    base: ResolvedBase
    stages: tuple[Stage, ...]
    files: tuple[tuple[str, Path], ...]
    labels: Mapping[str, str]
    inputs: str

    def is_directory(self, source: str) -> bool:
        """Whether a source of COPY is a directory of the context."""
        return any(name.startswith(source.rstrip("/") + "/") for name, _ in self.files)

    def tree(self, root: Path, config: rootfs.Config, left_out: frozenset[str] = frozenset()) -> TreeImage:
        """The finished image below ``root``. Its id is, as an engine's, a hash of its content and time."""
        created = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        about = msgspec.json.encode({"inputs": self.inputs, "created": created, "config": config})
        digest = f"sha256:{sha256(about)}"
        return TreeImage(root, self.name, digest, created, config, left_out)


def write_context(files: Sequence[tuple[str, Path]], directory: Path) -> None:
    """The build's context as files below ``directory``."""
    for name, path in files:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
