"""Parts of all schedulers' scripts. What they share word for word are the files in ``shell``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.exit_codes import ANOTHERS_DIRECTORY, NO_RUN_DIRECTORY, NODE_NOT_READY
from runner.model.job import ListedLaunch
from runner.model.plan import Plan
from runner.model.step import RUN_DIRECTORY, Argument, JobScript, StepSpec, Text, texts
from runner.render import checked, command, job_script, quoted_argument, quoted_arguments, statement

SHELL = Path(__file__).parent / "shell"
COMMON = SHELL / "common.sh"
SUPERVISE = SHELL / "supervise.sh"
PROFILE = SHELL / "profile.sh"
LAUNCHES = SHELL / "launches.sh"

STRICT = "set -uo pipefail; umask 077"
# Before any file of such a directory is read. Users whom a network file system or a container does not know are 65534,
# or one less than (uid_t) -1.
ENTER = f"""\
# Goes to directory $1. Others may have taken its name by now, or one on the way, and may do so at any moment: it, each
# link, and what lies where all may write must be yours, the system's or of users $2.
runner_enter() {{
  local PATH=/usr/bin:/bin${{PATH:+:$PATH}} at='' rest=$1/ open=0 uid mode kind name first known
  first=$(awk '$1 == "UID_MIN" && $2 ~ /^[0-9]+$/ {{ print $2; exit }}' /etc/login.defs 2>/dev/null)
  known=,$(id -u),65534,4294967294,${{2-}},${{RUNNER_TRUST-}},
  cd -P -- "$1" || exit {NO_RUN_DIRECTORY}
  while [ -n "$rest" ]; do
    case ${{rest%%/*}} in '' | .) open=0 ;; ..) at=${{at%/*}} open=0 ;; *) at=$at/${{rest%%/*}} ;; esac
    rest=${{rest#*/}}
    read -r uid mode kind name < <(stat -c '%u %a %A %U' -- "${{at:-/}}") || uid=4294967295 kind=l name=-
    case $known in *,"$uid",* | *,"$name",*) uid=0 ;; esac
    case $open$kind$rest in 0[!l]*/*) uid=0 ;; esac   # a directory on the way
    [ "$uid" -lt "${{first:-1000}}" ] || {{ open=2; break; }}
    case $kind in
    l*) rest=$(readlink -- "$at")/$rest; case $rest in /*) at='' open=0 ;; *) at=${{at%/*}} ;; esac ;;
    *) open=$(( 0$mode & 2 )) ;;
    esac
  done
  [ "$open" -ne 0 ] || ! [ . -ef "${{at:-/}}" ] || return 0
  echo "$1: $at is another user's by now, or open to all; submit again, from (--runs: in) a directory of yours" >&2
  exit {ANOTHERS_DIRECTORY}
}}"""
# The script lies in the run directory.
INTO_RUN_DIRECTORY = f"""\
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" || exit {NO_RUN_DIRECTORY}
{RUN_DIRECTORY}=$(pwd -P)
"""
BEFORE_RANKS = """\
# One task for each GPU. Signals go to the ranks through this script: it is outside their containers.
runner_pass_signals"""


def unlock_memory(plan: Plan) -> str:
    """The limit on locked memory, raised; what it stays at is said only where GPUs of several nodes may use RDMA."""
    no_rdma = plan.nodes == 1 or plan.device != "cuda" or plan.transport == "sockets"
    return "runner_unlock_memory quiet" if no_rdma else "runner_unlock_memory"


def environment(plan: Plan) -> Iterator[str]:
    """A clean environment. Without Slurm's login shell (``slurm.export``), or where such a shell has loaded modules
    that the job builds on, it is made anew by the node's /etc/profile, which brings PATH and the module system.

    Modules are loaded whole or not at all: without their LD_LIBRARY_PATH, which is unset first, the module system would
    take them for loaded and not load them again.
    """
    in_container = RUNTIMES[plan.runtime].is_container
    on_modules = bool(plan.load) or not in_container
    own = quoted_arguments(texts(*(f"{prefix}*" for prefix in SCHEDULERS[plan.scheduler].variables)))
    anew = f". lib/{PROFILE.name}"
    # Nothing of the profile may be taken out of what a program without a container runs on, but what misleads it.
    again = f"runner_unset_login{' but-libraries' if on_modules else ''}" if in_container else "runner_unset_proxies"
    yield "# What runs must not depend on your login shell."
    if own and needs_profile(plan):
        yield f"runner_own=({own})"
    if not plan.settings.login_shell:
        yield f"{anew}; {again}"
        return
    yield "runner_unset_login"
    if on_modules:
        yield f'[ -z "${{LOADEDMODULES-}}" ] || {{ {anew}; {again}; }}   # its modules: loaded anew, and whole'


def trust(plan: Plan) -> Iterator[str]:
    """Whose places the job takes for the user's own, as the submitting shell has it."""
    if plan.trust:
        yield f"export RUNNER_TRUST={quoted_arguments(texts(plan.trust))}"


def begin(plan: Plan, *, by_name: bool = True) -> Iterator[str]:
    """The first lines of a script. ``by_name``: it goes to its directory, or others, by a name."""
    yield from (STRICT, *trust(plan), *([ENTER] if by_name or plan.owners else []))


def owners(plan: Plan) -> Iterator[str]:
    """Ends the script where what the program would start in, or is in, has become another user's, or is gone: he could
    make it anew. What was not there when the job was planned may still not be.
    """
    users = ",".join({str(max(user, 0)): None for _, user in plan.owners})
    for place, user in plan.owners:
        directory = quoted_argument(*texts(place))
        not_there = "" if user >= 0 else f"[ ! -e {directory} ] || "
        yield f"{not_there}(runner_enter {directory} {users}) || exit {ANOTHERS_DIRECTORY}"


def needs_profile(plan: Plan) -> bool:
    """Whether ``environment`` reads PROFILE."""
    return not plan.settings.login_shell or bool(plan.load) or not RUNTIMES[plan.runtime].is_container


def versions(plan: Plan) -> Iterator[str]:
    """The line that leaves ``versions``: a name and a line with a version for each command that has one."""
    programs = dict(RUNTIMES[plan.runtime].versions)
    if SCHEDULERS[plan.scheduler].version:
        programs = {plan.scheduler: SCHEDULERS[plan.scheduler].version, **programs}
    if programs:
        words = texts(*(word for name, asked in programs.items() for word in (name, " ".join(asked))))
        yield f"runner_record_versions {quoted_arguments(words)}   # in `versions`; nothing waits for it"


def prelude(plan: Plan, step: StepSpec) -> Iterator[str]:
    """What makes the runtime available, and records the versions."""
    yield from map(statement, step.prelude)
    yield from versions(plan)
    yield ""


def once_a_node(step: StepSpec, starter: tuple[Argument, ...] = (), output: str = "") -> Iterator[str]:
    """What makes nodes ready before the ranks; nothing where nothing does.

    Args:
        starter: words that start it on each node.
        output: redirection, as shell code; Slurm's srun may end with 0 although it launched no task on a node.
    """
    if step.once_a_node:
        yield f"# Once a node, not once a rank: {step.does}."
        yield f"{command(starter, step.once_a_node)}{output} || exit {NODE_NOT_READY}\n"


def grouped(step: StepSpec) -> tuple[tuple[Argument, ...], ...]:
    """The words of a rank in parts that are read one by one: its container, our launcher, the user's program.

    Where a user's value looks like one of ours, the parts begin elsewhere, and are the same words in the same order.
    """
    words = step.command
    shell = _next(words, 1, "/lib/rank.sh") - 1
    launcher = _next(words, shell, "/lib/launch.py")
    program = min(_next(words, launcher, "--") + 1, len(words))
    return step.launcher, words[:shell], words[shell:program], words[program:]


def _next(words: tuple[Argument, ...], start: int, end: str) -> int:
    """The place of the first word from ``start`` on that ends so; their number if there is none."""
    last = (word[-1] if word else None for word in words[start:])
    ends = (n for n, part in enumerate(last, start) if isinstance(part, Text) and part.value.endswith(end))
    return next(ends, len(words))


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
    # What the clean-up says is no evidence of why a job failed: it has a log of its own.
    return f"runner_at_end() {{\n  {command(starter, step.at_end, indent='  ')} >>logs/cleanup.log 2>&1\n}}\n"


def refuse_options(plan: Plan) -> None:
    """Raises UsageError for options of a scheduler where there is none."""
    for name, _ in plan.directives[:1]:
        raise UsageError("there is no scheduler to take it", where=f"--scheduler-option {name}", fix="leave it out")


def clock(seconds: int) -> str:
    """``hours:minutes:seconds``, the hours as many as it takes."""
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


def render_launches(plan: Plan, _step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
    """The script of a study's one allocation, where no scheduler gives it: one process of this machine runs the
    launches' own scripts, so that no two overlap.
    """
    files = (COMMON, SUPERVISE, LAUNCHES)
    parts = (
        "#!/bin/bash",
        "# The launches of a study, one after another.",
        *(*begin(plan), INTO_RUN_DIRECTORY, checked(files, *files)),
        "runner_be_job",
        f"runner_limit={plan.walltime_s}   # seconds",
        "runner_expect_launches\n",
        "# Run directory; seconds that must be left.",
        *map(launch_line, launches),
        "runner_end_launches\n",
    )
    return job_script(parts, files)


def launch_line(launch: ListedLaunch) -> str:
    """The line that runs a launch, where it has all nodes."""
    arguments = quoted_arguments(texts(launch.directory, str(launch.needs_s)))
    return f"{'runner_begin' if launch.with_next else 'runner_launch'} {arguments}"
