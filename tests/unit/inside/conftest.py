"""What several tests of the programs in a job's tasks share."""

from collections.abc import Iterator

import pytest
from gpu_runner_inside.launcher.rendezvous import Store

from tests.support.rendezvous import served


@pytest.fixture
def store() -> Iterator[Store]:
    """The launcher's rendezvous of two ranks."""
    with served() as (_server, store):
        yield store
