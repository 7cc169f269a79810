"""What ``srun --help`` shows of a runtime's plugin; the answers are those of Slurm 22.05.8."""

from __future__ import annotations

from runner.core.process import Completed
from runner.preparation.observation import srun_plugin_problem
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


def problem(answer: Completed, runtime: str = "pyxis", site: str = "technion", *installed: str) -> tuple[str, str]:
    return srun_plugin_problem(read_site(site), runtime, answer, installed)


def test_a_plugin_that_is_loaded_is_no_problem() -> None:
    assert problem(answered(PYXIS)) == ("", "")
    assert problem(answered(PLAIN + "      --image=type:image\n"), "shifter") == ("", "")


def test_a_plugin_that_is_not_loaded_is_named_with_what_else_there_is_here_then_at_the_site() -> None:
    what, fix = problem(answered(PLAIN))
    assert what == "srun has no --container-image: the plugin of Pyxis is not loaded on this cluster"
    assert fix.startswith("ask the administrator for spank_pyxis.so")
    assert problem(answered(PLAIN), "pyxis", "box", "apptainer")[1].startswith(
        "--runtime with another (found here: apptainer; of the site: charliecloud, native), or ask"
    )


def test_a_broken_configuration_is_reported_with_its_line() -> None:
    what, fix = problem(answered("", BROKEN, 1))
    assert "plugin configuration (plugstack.conf) is broken: spank: /nowhere/x.so: Dlopen of plugin file failed" in what
    assert "administrator" in fix
