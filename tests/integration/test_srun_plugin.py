"""A cluster without a runtime's plugin, or with a broken configuration of plugins, is noticed before submission."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.commands import Runner
from tests.support.daemons import Daemons

pytestmark = pytest.mark.integration
Configure = Callable[[str], None]
PYXIS = ("submit", "--recipe", "probe", "--gpus", "2", "--runtime", "pyxis")


@pytest.fixture
def plugstack(daemons: Daemons) -> Iterator[Configure]:
    """Writes the clients' plugstack.conf; it is empty again at the end."""

    def write(line: str) -> None:
        daemons.inside("sh", "-c", 'printf "%s" "$1" >/etc/slurm/plugstack.conf', "sh", line)

    yield write
    write("")


def test_no_plugin(ill: Runner, plugstack: Configure) -> None:
    plugstack("")
    refused = ill(*PYXIS, code=3).err
    assert (
        "[plugin-missing]: srun has no --container-image: the plugin of Pyxis is not loaded on this cluster" in refused
    )
    assert "of the site: charliecloud" in refused


def test_a_broken_configuration(ill: Runner, plugstack: Configure) -> None:
    """It ends every client: also where the job's own runtime needs no plugin."""
    plugstack("required /nowhere/spank_pyxis.so\n")
    refused = ill(*PYXIS, code=3).err
    assert "(plugstack.conf) is broken: spank: /nowhere/spank_pyxis.so: Dlopen of plugin file failed" in refused
    other = ill("submit", "--recipe", "probe", "--gpus", "2", code=4).err
    assert "the cluster's plugin configuration (plugstack.conf) is broken" in other
    assert "sinfo" not in other
