"""The ways of the sites that have Slurm, as they are run: with the probe, on a cluster in the site's shape.

``slurm`` has every runtime there is. Where the box lacks a runtime, its command is a stand-in, or its plugin's options
are the tests' own (clusters.py): the program then runs on the node itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runner.sites.loader import read_site
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


VALUES = {"account": "m1234", "field": "nlp"}  # of a user, where the site asks for them
_OF_SITES = {
    "technion": ("pyxis", "pyxis pmix", "pyxis 8+5", "pyxis 3"),
    "perlmutter": (
        *("shifter", "shifter 4+3", "shifter pmi2", "shifter mpich", "native", "native pmi2", "native mpich"),
        *("podman-hpc", "podman-hpc pmi2", "podman-hpc mpich"),
    ),
    "alpha": ("native", "native pmix", "singularity", "singularity pmix", "singularity 8+5"),
    "capella": ("singularity",),
    "neuron": ("native", "singularity", "singularity 4", "pyxis", "enroot", "podman"),
    "slurm": (
        *("apptainer", "apptainer 4+4+3", "singularity", "enroot", "pyxis", "charliecloud", "podman-hpc"),
        *("podman", "shifter"),
    ),
}


def own_values(site: str) -> tuple[str, ...]:
    """The options with what the site needs of every user."""
    return tuple(word for name in read_site(site).needs for word in (f"--{name}", VALUES[name]))


def way(site: str, runtime: str, more: str = "") -> Way:
    """``more``: ranks on each node (``8+5``), else all; or what wires them up, else the rendezvous."""
    machine = MACHINES[site]
    ranks = tuple(map(int, more.split("+"))) if more[:1].isdigit() else (machine.shape.gpus,) * machine.nodes
    wireup = "rendezvous" if not more or more[:1].isdigit() else more
    asked = () if wireup == "rendezvous" else ("--wireup", wireup)
    return Way(site, runtime, ranks, wireup, (*asked, *own_values(site)))


WAYS = tuple(way(site, *words.split()) for site, all_words in _OF_SITES.items() for words in all_words)
# The site of a golden script -> whose cluster it is tried on.
TRIED_ON = {site: site for site in MACHINES} | {"box": "technion"}
# What no cluster has but the one that the options name: jobs that are to end first, nodes, a reservation.
APART = frozenset({"slurm-asked"})
AtSite = Callable[[str], Cluster]


def scripts(site: str) -> list[str]:
    return [name for name, case in CASES.items() if TRIED_ON.get(case[0]) == site and name not in APART]
