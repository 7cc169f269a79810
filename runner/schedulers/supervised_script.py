"""Shell code that the scripts which this machine itself starts have in common: no scheduler made their environment."""

from __future__ import annotations

from collections.abc import Iterable

from runner.model.step import JOB_ID, RUN_DIRECTORY, Word
from runner.render.shell import folded

# Besides these nothing of a login shell reaches a rank: what runs is the same from a clean one and from a dirty one.
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR", "CUDA_VISIBLE_DEVICES")


def into_run_directory(code: int) -> str:
    """Go to the run directory, where the script lies; exit with ``code`` where it cannot be entered."""
    return f"""\
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" || exit {code}
{RUN_DIRECTORY}=$(pwd -P)
"""


def only(*names: str) -> str:
    """Take all but the usual few variables and ``names`` out of the environment."""
    pattern = " | ".join((*_KEPT, *names))
    return f"""\
while IFS= read -r runner_i; do unset -f "$runner_i"; done < <(compgen -A function)
while IFS= read -r runner_i; do
  case $runner_i in
  {pattern}) ;;
  *) unset -v "$runner_i" 2>/dev/null ;;
  esac
done < <(compgen -e)
"""


def without(prefixes: Iterable[str]) -> str:
    """Take the variables that begin so out of the environment, and leave all others."""
    return "unset -v " + " ".join(f'"${{!{prefix}@}}"' for prefix in prefixes) + "\n"


# proc(5): the start time is field 22 of stat, the 20th after the command's name. The same as runner.schedulers.local
# makes of a process number.
OWN_JOB_ID = f"""\
read -r runner_stat </proc/$$/stat
read -ra runner_fields <<<"${{runner_stat##*) }}"
read -r runner_boot </proc/sys/kernel/random/boot_id
{JOB_ID}="$$.${{runner_fields[19]}}.${{runner_boot%%-*}}"
export RUNNER_JOB_ID="${JOB_ID}"   # in the ranks' records: the run is found by it again
printf '%s\\n' "${JOB_ID}" >job.id.part && mv -f job.id.part job.id
"""


def marker(at_end: tuple[Word, ...] = ()) -> str:
    """However the script ends, short of SIGKILL, it leaves its marker; ``runner_why``: what ended it, where it knows.

    Args:
        at_end: a command that is run before, whatever became of the job; empty for none.
    """
    last = f"  {folded(at_end, indent='    ')}\n" if at_end else ""
    return f"""\
runner_why=
runner_mark() {{
  local runner_code=$?
{last}  printf '{{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}}\\n' "${JOB_ID}" "$runner_code" "$(date +%s)" \\
    "$runner_why" >exit.json.part && mv -f exit.json.part exit.json
}}
trap runner_mark EXIT
"""
