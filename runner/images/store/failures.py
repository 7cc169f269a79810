"""Errors of a store that cannot be read or written, and what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.core.errors import InfrastructureError


def unreadable(path: Path, error: OSError) -> InfrastructureError:
    """The error to raise for a file or directory of the store that cannot be read."""
    return InfrastructureError(
        f"a file of the image store cannot be read: {error.strerror}",
        where=str(path),
        fix="ask its owner for permission, or convert the image into a store of your own (--store DIR)",
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into an InfrastructureError about ``path``."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"cannot write to the image store: {error.strerror}",
            where=str(path),
            fix="free space, or name a store that you may write to (--store DIR or RUNNER_STORE)",
        ) from error
