"""Whether srun has the option that a runtime's plugin adds, asked of ``srun --help``, which asks no controller."""

from __future__ import annotations

import re

from runner.core import process
from runner.core.errors import RunnerError
from runner.model.runtimes import RUNTIMES, programs
from runner.model.schedulers import SCHEDULERS
from runner.model.site import Site
from runner.preparation.clients import clients

_TIMEOUT_S = 15.0  # of a program that reads two files


def problem(site: Site, runtime: str) -> tuple[str, str]:
    """Why jobs could not be started by the runtime's plugin, and the fix; empty if they can, or if no srun is here."""
    option = RUNTIMES[runtime].srun_option
    if not option or SCHEDULERS[site.scheduler].launcher != "srun":
        return "", ""
    try:
        where = clients(site)
        done = process.run((where / "srun" if where else "srun", "--help"), timeout_s=_TIMEOUT_S, check=False)
    except RunnerError:  # no srun here, no box, or no answer: submission reports it
        return "", ""
    if _has(done.out, option):
        return "", ""
    here = [name for name, program in programs().items() if process.find(program, str(where) if where else None)]
    return judged(runtime, done, others(site, runtime, done.out, here))


def others(site: Site, runtime: str, help_text: str, here: list[str]) -> str:
    """The fix: the runtimes that could be used instead.

    Args:
        here: those whose program is on this machine.
    """
    plugins = [name for name, facts in RUNTIMES.items() if facts.srun_option and _has(help_text, facts.srun_option)]
    found = [name for name in dict.fromkeys((*plugins, *here)) if name != runtime]
    of_site = [name for name in site.runtimes if name != runtime and name not in found]
    named = [f"found here: {', '.join(found)}"] if found else []
    named += [f"of the site: {', '.join(of_site)}"] if of_site else []
    return f"--runtime with another ({'; '.join(named)})" if named else ""


def judged(runtime: str, answer: process.Completed, instead: str) -> tuple[str, str]:
    """The problem and its fix, of what ``srun --help`` answered.

    Args:
        instead: what to do besides asking the administrator; may be empty.
    """
    facts = RUNTIMES[runtime]
    ask = f"ask the administrator for {facts.plugin or f'the plugin of {facts.title}'} in plugstack.conf"
    if _has(answer.out, facts.srun_option):
        return "", ""
    if answer.code != 0:
        lines = [line for line in answer.err.splitlines() if ": spank: " in line] or answer.err.splitlines()[-1:]
        said = lines[0].removeprefix("srun: error: ") if lines else f"exit code {answer.code}"
        what = f"srun does not start here, the cluster's plugin configuration (plugstack.conf) is broken: {said}"
        return what, "show this line to the administrator: no job can be submitted from here until it is corrected"
    what = f"srun has no --{facts.srun_option}: the plugin of {facts.title} is not loaded on this cluster"
    return what, f"{instead}, or {ask}" if instead else ask


def _has(help_text: str, option: str) -> bool:
    return re.search(rf"^\s+--{re.escape(option)}\b", help_text, re.MULTILINE) is not None
