"""The programs of ``containers/horovod``, imported for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.container_programs import Programs, imported


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with imported() as modules:
        yield modules
