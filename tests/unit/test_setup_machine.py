"""What a machine lacks, and whether it is a cluster's."""

from __future__ import annotations

import pytest

from runner.setup import cluster, packages


def names(found: tuple[packages.Package, ...]) -> list[str]:
    return [package.name for package in found]


def test_a_complete_machine_lacks_nothing() -> None:
    assert packages.missing(engine=True, has=lambda _: True, debian=True, root=True) == ()


def test_an_engine_is_asked_for_only_where_none_answers() -> None:
    def without_docker(name: str) -> bool:
        return name != "dockerd"

    assert names(packages.missing(engine=True, has=without_docker, debian=True, root=True)) == ["docker.io"]
    assert packages.missing(engine=False, has=without_docker, debian=True, root=True) == ()


def test_an_ordinary_user_and_another_distribution_need_more() -> None:
    lacking = packages.missing(engine=False, has=lambda name: name != "newuidmap", debian=False, root=False)
    assert names(lacking) == ["uidmap", "debian-archive-keyring"]


def test_every_package_says_why() -> None:
    everything = packages.missing(engine=True, has=lambda _: False, debian=False, root=False)
    assert all(package.why for package in everything)


@pytest.mark.parametrize(
    ("env", "files", "programs", "expected"),
    [
        ({}, set(), set(), None),
        ({}, set(), {"sbatch", "sinfo"}, None),
        ({}, {"/etc/slurm/slurm.conf"}, set(), None),
        ({}, {"/etc/slurm/slurm.conf"}, {"sbatch"}, "sbatch is here and /etc/slurm/slurm.conf too"),
        ({"SLURM_CONF": "/x"}, {"/x"}, {"sinfo"}, "sinfo is here and /x too"),
        ({"SLURM_CONF": "/x"}, {"/etc/slurm/slurm.conf"}, {"sinfo"}, None),
        ({}, {"/etc/pbs.conf"}, {"qstat"}, "qstat is here and /etc/pbs.conf too"),
        ({"SLURM_JOB_ID": "7"}, set(), set(), "SLURM_JOB_ID is set: this is a job"),
    ],
)
def test_a_real_cluster_has_clients_and_their_configuration(
    env: dict[str, str], files: set[str], programs: set[str], expected: str | None
) -> None:
    assert cluster.reason(env, files.__contains__, programs.__contains__) == expected
