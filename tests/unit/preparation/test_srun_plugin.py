"""What ``srun --help`` shows of a runtime's plugin; the answers are those of Slurm 22.05.8."""

from __future__ import annotations

import pytest

from runner.core.process import Completed
from runner.preparation.observation import judged, others
from runner.sites.loader import read_site

PLAIN = "Usage: srun [OPTIONS(0)...]\n\nParallel run options:\n  -A, --account=name          charge job\n"
PYXIS = PLAIN + "\nOptions provided by plugins:\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
BROKEN = """\
srun: error: plugin_load_from_file: dlopen(/nowhere/x.so): /nowhere/x.so: cannot open shared object file
srun: error: spank: /nowhere/x.so: Dlopen of plugin file failed
srun: error: spank: /etc/slurm/plugstack.conf:1: Failed to load plugin /nowhere/x.so. Aborting.
srun: error: Plug-in initialization failed
"""


def answered(out: str, err: str = "", code: int = 0) -> Completed:
    return Completed(("srun", "--help"), code, out, err)


def test_a_plugin_that_is_loaded_is_no_problem() -> None:
    assert judged("pyxis", answered(PYXIS), "") == ("", "")
    assert judged("shifter", answered(PLAIN + "      --image=type:image\n"), "") == ("", "")


@pytest.mark.parametrize(
    ("instead", "says"), [("", "ask the administrator for spank_pyxis.so"), ("--x", "--x, or ask")]
)
def test_a_plugin_that_is_not_loaded_is_named_with_what_else_there_is(instead: str, says: str) -> None:
    what, fix = judged("pyxis", answered(PLAIN), instead)
    assert what == "srun has no --container-image: the plugin of Pyxis is not loaded on this cluster"
    assert fix.startswith(says)


def test_a_broken_configuration_is_reported_with_its_line() -> None:
    what, fix = judged("pyxis", answered("", BROKEN, 1), "")
    assert "plugin configuration (plugstack.conf) is broken: spank: /nowhere/x.so: Dlopen of plugin file failed" in what
    assert "administrator" in fix


def test_the_other_runtimes_are_those_seen_here_then_those_of_the_site() -> None:
    site = read_site("box")
    assert others(site, "pyxis", PLAIN, ["apptainer"]) == (
        "--runtime with another (found here: apptainer; of the site: charliecloud, native)"
    )
    assert others(read_site("technion"), "pyxis", PLAIN, []) == ""
