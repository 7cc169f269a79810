"""The ways of the sites that have Slurm, as they are run: with the probe, on a cluster in the site's shape.

``slurm`` has every runtime there is. Where the box lacks a runtime, its command is a stand-in, or its plugin's options
are the tests' own (clusters.py): the program then runs on the node itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.golden_jobs import CASES
from tests.support.sites.clusters import MACHINES, Cluster

REAL = frozenset({"charliecloud"})  # what these clusters have as it is


@dataclass(frozen=True)
class Way:
    """One submission.

    Attributes:
        words: further options of ``submit``.
        ranks: on each node, as is to come of it.
    """

    site: str
    runtime: str
    ranks: tuple[int, ...]
    wireup: str = "rendezvous"
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.site} {self.runtime} {self.wireup} {'+'.join(map(str, self.ranks))}"


ACCOUNT = ("--account", "m1234")
OF_THE_USER = {"perlmutter": ACCOUNT, "alpha": ACCOUNT, "neuron": ("--field", "nlp")}  # what the site asks for
FULL = {"technion": (8, 8), "alpha": (8, 8), "neuron": (8, 8), "perlmutter": (4, 4, 4, 4), "slurm": (4, 4, 4, 4)}


def _way(site: str, runtime: str, ranks: tuple[int, ...] = (), wireup: str = "rendezvous") -> Way:
    asked = () if wireup == "rendezvous" else ("--wireup", wireup)
    return Way(site, runtime, ranks or FULL[site], wireup, (*asked, *OF_THE_USER.get(site, ())))


WAYS = (
    _way("technion", "pyxis"),
    _way("technion", "pyxis", wireup="pmix"),
    _way("technion", "pyxis", (8, 5)),
    _way("technion", "pyxis", (3,)),
    _way("perlmutter", "shifter"),
    _way("perlmutter", "shifter", (4, 3)),
    _way("perlmutter", "shifter", wireup="pmi2"),
    _way("perlmutter", "shifter", wireup="mpich"),
    _way("perlmutter", "podman-hpc"),
    _way("perlmutter", "podman-hpc", wireup="pmi2"),
    _way("perlmutter", "podman-hpc", wireup="mpich"),
    _way("perlmutter", "native"),
    _way("perlmutter", "native", wireup="pmi2"),
    _way("perlmutter", "native", wireup="mpich"),
    _way("alpha", "native"),
    _way("alpha", "native", wireup="pmix"),
    _way("alpha", "singularity"),
    _way("alpha", "singularity", wireup="pmix"),
    _way("alpha", "singularity", (8, 5)),
    _way("neuron", "native"),
    _way("neuron", "singularity"),
    _way("neuron", "singularity", (4,)),
    _way("slurm", "apptainer"),
    _way("slurm", "singularity"),
    _way("slurm", "enroot"),
    _way("slurm", "pyxis"),
    _way("slurm", "charliecloud"),
    _way("slurm", "podman-hpc"),
    _way("slurm", "shifter"),
    _way("slurm", "apptainer", (4, 4, 3)),
)
# The site of a golden script -> whose cluster it is tried on.
TRIED_ON = {site: site for site in MACHINES} | {"box": "technion"}
# What no cluster has but the one that the options name: jobs that are to end first, nodes, a reservation.
APART = frozenset({"slurm-asked"})
AtSite = Callable[[str], Cluster]


def scripts(site: str) -> list[str]:
    return [name for name, case in CASES.items() if TRIED_ON.get(case[0]) == site and name not in APART]
