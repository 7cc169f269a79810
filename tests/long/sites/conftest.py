"""The sites' clusters, each brought up when it is first asked for and taken down at the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.sites.clusters import Cluster, cluster


@pytest.fixture(scope="session")
def at_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    up: dict[str, Cluster] = {}
    with ExitStack() as all_of_them:

        def get(site: str) -> Cluster:
            if site not in up:
                up[site] = all_of_them.enter_context(cluster(site, tmp_path_factory.mktemp(site)))
            return up[site]

        yield get
