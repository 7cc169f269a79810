"""Shell code of the scripts that this machine starts itself: no scheduler makes their environment or watches them."""

from __future__ import annotations

from runner.backends.schedulers.script_parts import CLEANUP_LOG, grouped
from runner.model.exit_codes import NO_RUN_DIRECTORY
from runner.model.step import RUN_DIRECTORY, Argument, StepSpec
from runner.render.shell import command

# The script lies in the run directory.
INTO_RUN_DIRECTORY = f"""\
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" || exit {NO_RUN_DIRECTORY}
{RUN_DIRECTORY}=$(pwd -P)
"""


def rank(step: StepSpec) -> str:
    """The function that starts a rank."""
    return f"runner_rank() {{\n  exec {command(*grouped(step), indent='  ')}\n}}"


def at_end(step: StepSpec, starter: tuple[Argument, ...] = ()) -> str:
    """The function that is called when the script ends, however it ends, with a line break; empty for none.

    Args:
        starter: words that start it on each node.
    """
    if not step.at_end:
        return ""
    return f"runner_at_end() {{\n  {command(starter, step.at_end, indent='  ')} {CLEANUP_LOG}\n}}\n"
