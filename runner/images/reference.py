"""Image references: how a person, an engine, Pyxis and Enroot write the same image."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.core.errors import UsageError

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATTERN = re.compile(
    rf"(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_REGISTRY = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_SCHEMES = ("docker://", "dockerd://", "podman://", "docker-daemon://")
_LOCAL_REGISTRIES = ("docker.io", "localhost")
# What ``build`` names its images with. At Docker's hub anyone may own that name.
OURS = "gpu-runner/"
# The bases of the Dockerfiles, and so of the images that recipes run in.
DEFAULT_BASES = {"pytorch": "nvcr.io/nvidia/pytorch:25.02-py3", "tensorflow": "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"}


@dataclass(frozen=True)
class Reference:
    """An image by name. registry: host, with its port if it has one; empty means the engine's default. repository: path
    in lower case. tag: ``latest`` unless given; empty where only a digest was given. digest: ``sha256:...`` or empty.
    """

    registry: str
    repository: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        """As engines write it: ``nvcr.io/nvidia/pytorch:25.02-py3``."""
        suffix = (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")
        return "/".join(filter(None, (self.registry, self.repository))) + suffix


def default_tag(image: str) -> str:
    """The tag of the image that a plain ``build`` makes under this name; empty for any other image.

    >>> default_tag("gpu-runner/horovod-tensorflow")
    '25.02-tf2-py3'
    """
    return DEFAULT_BASES.get(image.removeprefix(f"{OURS}horovod-"), "").rpartition(":")[2]


def parse(text: str) -> Reference:
    """Parse any of the ways an image is written: with a scheme or none, ``#`` or ``/`` after the registry. Podman's
    ``docker.io/library/x`` and ``localhost/x`` come back without those prefixes, so that the same image has one name.
    """
    registry, rest = _split(text)
    match = _PATTERN.fullmatch(rest)
    # An archive that names itself so would stand for what has that digest.
    is_digest = re.fullmatch(r"(library/)?sha256:[0-9a-f]{64}", rest) is not None
    if match is None or is_digest or (registry and not _REGISTRY.fullmatch(registry)):
        raise UsageError(
            f"{text!r} is not an image reference",
            fix="write it as [REGISTRY/]NAME[:TAG], such as nvcr.io/nvidia/pytorch:25.02-py3 (names in lower case)",
        )
    repository = match["repository"]
    if registry in _LOCAL_REGISTRIES:
        registry, repository = "", repository.removeprefix("library/")
    digest = match["digest"] or ""
    return Reference(registry, repository, match["tag"] or ("" if digest else "latest"), digest)


def names_registry(text: str) -> bool:
    """Whether a reference says which registry it is of: ``docker.io/library/debian`` does, ``debian`` does not.

    ``localhost`` without a port is no registry: engines name their own images so.
    """
    registry = _split(text)[0]
    return bool(registry) and registry != "localhost"


def is_local(text: str) -> bool:
    """Whether it is the name of an image that Podman built: ``localhost/NAME``."""
    return _split(text)[0] == "localhost"


def _split(text: str) -> tuple[str, str]:
    """The registry that is written, empty for none; and the rest."""
    bare = text.strip()
    for scheme in _SCHEMES:
        bare = bare.removeprefix(scheme)
    registry, separator, rest = bare.partition("#")
    if separator:
        return registry.rpartition("@")[2], rest  # Enroot's USER@REGISTRY#IMAGE: who that is, the files of logins say
    first, slash, behind = bare.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return (first, behind) if is_host else ("", bare)


def is_path(text: str) -> bool:
    """Whether the text names a file rather than an image: the rule of Pyxis, and our two suffixes."""
    return text.startswith((".", "/", "~")) or text.endswith((".sqsh", ".squashfs", ".sif"))


def path_without_format(text: str, *, exists: bool) -> UsageError:
    """The error where a path stands for an image whose format it does not name."""
    what = "is a path without a format" if exists else "does not exist"
    fix = "for a saved image use docker-archive:FILE, oci-archive:FILE or oci:DIR; a squashfs needs no conversion"
    return UsageError(f"{text} {what}", where=text, fix=fix)
