"""Which golden scripts a site's cluster can take."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.golden_jobs import CASES
from tests.support.sites.clusters import MACHINES, Cluster

# The site of a golden script -> whose cluster it is tried on.
TRIED_ON = {site: site for site in MACHINES} | {"box": "technion"}
# What no cluster has but the one that the options name: jobs that are to end first, nodes, a reservation.
APART = frozenset({"slurm-asked"})
AtSite = Callable[[str], Cluster]


def scripts(site: str) -> list[str]:
    return [name for name, case in CASES.items() if TRIED_ON.get(case[0]) == site and name not in APART]
