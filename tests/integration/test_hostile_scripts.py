"""Whole scripts with hostile strings in them, run by a real bash with recording parts: nothing may change on the way.

What a runtime cannot express is refused with the option and the text named; all else arrives byte for byte.
"""

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.model.backends import RUNTIMES
from tests.support.hostile import HOSTILE, NAME, PATH
from tests.support.recording import direct, slurm

pytestmark = pytest.mark.integration
ENV = st.dictionaries(NAME, HOSTILE, max_size=3)
SAME_PATHS = st.lists(PATH.filter(lambda path: path.strip("/.") != ""), max_size=2, unique=True)
# `native` is tested on this machine and on hosts.
CONTAINERS = tuple(name for name, facts in RUNTIMES.items() if facts.is_container)
ALL_SCRIPTS = 600  # in a run of all runtimes: about 35 ms each
ALL_VALUES = 1000  # compared at least
_tried: Counter[str] = Counter()


@pytest.mark.parametrize("via", CONTAINERS)
@settings(max_examples=max(100, ALL_SCRIPTS // len(CONTAINERS)), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arguments=st.lists(HOSTILE, max_size=4),
    of_recipe=st.lists(HOSTILE, max_size=2),
    envs=st.tuples(ENV, ENV, ENV),
    option=HOSTILE,
    mounts=st.lists(st.tuples(PATH, PATH), max_size=2, unique_by=lambda pair: os.path.normpath(pair[1])),
    image=PATH,
    mpi=HOSTILE,
)
def test_what_was_given_arrives_or_is_refused(
    via: str,
    arguments: list[str],
    of_recipe: list[str],
    envs: tuple[dict[str, str], dict[str, str], dict[str, str]],
    option: str,
    mounts: list[tuple[str, str]],
    image: str,
    mpi: str,
) -> None:
    arrived = slurm.arrives_or_is_refused(via, arguments, of_recipe, envs, option, mounts, image, mpi)
    _tried[via if arrived else "refused"] += 1
    _tried["values"] += arrived


def test_enough_was_tried() -> None:
    """Every runtime has run scripts, and not nearly all was refused. Says nothing where the test above was left out."""
    if not _tried:
        return
    print(dict(_tried))
    assert all(_tried[via] >= 10 for via in CONTAINERS), _tried
    assert _tried["values"] >= ALL_VALUES, _tried


ON_ITS_OWN = {
    "arguments": st.lists(HOSTILE, max_size=4), "env": ENV, "option": HOSTILE, "mounts": SAME_PATHS, "image": PATH,
}  # fmt: skip


@pytest.mark.parametrize("via", ["native", "charliecloud"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_=st.fixed_dictionaries(ON_ITS_OWN))
def test_what_was_given_arrives_on_this_machine_or_is_refused(via: str, given_: dict[str, Any]) -> None:
    direct.arrives_or_is_refused(via, **given_)


@pytest.mark.parametrize("via", ["native", "charliecloud"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_=st.fixed_dictionaries(ON_ITS_OWN), here=HOSTILE.filter(lambda text: "\0" not in text))
def test_what_was_given_arrives_on_hosts_or_is_refused(via: str, given_: dict[str, Any], here: str) -> None:
    direct.arrives_or_is_refused(via, **given_, here=here)
