"""Shell code of the scripts that this machine starts itself: no scheduler makes their environment or watches them.

``supervision`` does for its children what ``srun --kill-on-bad-exit=1 --wait`` and a time limit do elsewhere. The
children are the ranks of this node, or one ssh connection for each node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.model.exit_codes import CANCELLED, TIMED_OUT
from runner.model.step import JOB_ID, RUN_DIRECTORY, Argument
from runner.render.shell import folded

GRACE_S = 30  # between SIGTERM and SIGKILL

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


# proc(5): the start time is field 22 of stat, the 20th after the command's name. The same as the local
# scheduler makes of a process number.
OWN_JOB_ID = f"""\
read -r runner_stat </proc/$$/stat
read -ra runner_fields <<<"${{runner_stat##*) }}"
read -r runner_boot </proc/sys/kernel/random/boot_id
{JOB_ID}="$$.${{runner_fields[19]}}.${{runner_boot%%-*}}"
export RUNNER_JOB_ID="${JOB_ID}"   # in the ranks' records: the run is found by it again
printf '%s\\n' "${JOB_ID}" >job.id.part && mv -f job.id.part job.id
"""


def marker(at_end: str = "") -> str:
    """The script leaves its exit marker however it ends, except by SIGKILL; ``runner_why``: what ended it, where known.

    Args:
        at_end: a command that is run before, even if the job failed, as shell code; empty for none.
    """
    last = f"  {at_end}\n" if at_end else ""
    return f"""\
runner_why=
runner_mark() {{
  local runner_code=$?
{last}  printf '{{"job":"%s","exit":%d,"end_s":%d,"why":"%s"}}\\n' "${JOB_ID}" "$runner_code" "$(date +%s)" \\
    "$runner_why" >exit.json.part && mv -f exit.json.part exit.json
}}
trap runner_mark EXIT
"""


TRAPS = """\
trap 'runner_why=${runner_why:-CANCELLED}' TERM INT
trap '' HUP   # the terminal may go
"""


def time_limit(walltime_s: int) -> str:
    """When the job ends, and when its ranks are warned; both count from the start of the script."""
    near_s = walltime_s - min(120, walltime_s // 5)
    return f"runner_limit={walltime_s} runner_near={near_s}   # seconds\n"


def start_ranks(command: tuple[Argument, ...], world: int, count: str, rank: str, local_world: str) -> str:
    """Start this node's ranks in the background, each with logs of its own.

    Args:
        world: ranks of the whole job.
        count, rank, local_world: shell code of the number of ranks here, of the rank that the local rank
            ``$runner_i`` has in the world, and of LOCAL_WORLD_SIZE.
    """
    return f"""\
set -m   # each rank leads a process group of its own, so that nothing of it is left
runner_ranks=()
for (( runner_i = 0; runner_i < {count}; runner_i++ )); do
  runner_rank={rank}
  (
    export RANK="$runner_rank" LOCAL_RANK="$runner_i" WORLD_SIZE={world} LOCAL_WORLD_SIZE={local_world}
    exec {folded(command)}
  ) >"logs/rank-$runner_rank.out" 2>"logs/rank-$runner_rank.err" </dev/null &
  runner_ranks[runner_i]=$!
done
"""


@dataclass(frozen=True)
class Children:
    """Background processes that are supervised together; all but ``name`` is shell code of whole lines.

    Attributes:
        name: ``rank``: the array ``runner_ranks`` holds their process numbers.
        ended: what is done after one has ended; it takes the child out of the array.
        failed: what is done where it has failed.
        grace: seconds between ``end`` and ``kill``.
        end, warn, kill: what asks all of them to end, warns them of the time limit, and kills them.
    """

    name: str
    ended: str
    grace: str
    end: str
    kill: str
    warn: str
    failed: str = ""


TELL_RANKS = """\
runner_tell() {
  for runner_i in "${!runner_ranks[@]}"; do kill "-$1" -- "$2${runner_ranks[runner_i]}" 2>/dev/null; done
}
"""


def ranks(grace: str) -> Children:
    """The ranks of this node, each the leader of a process group; TELL_RANKS comes before the loop."""
    return Children(
        "rank",
        ended="""\
    kill -KILL -- "-$runner_rank" 2>/dev/null   # what it has left behind
    unset "runner_ranks[runner_i]"
""",
        grace=grace,
        end="runner_tell TERM ''",
        warn="runner_tell USR1 ''",
        kill="runner_tell KILL -",
    )


def supervision(children: Children, each_turn: str, wait_s: int, *, time_limit: bool = True) -> str:
    """The loop that ends when all children have; the first failure, or the time limit, ends the others.

    It leaves ``runner_exit``, the first exit status but zero, and ``runner_why``, what ended the children early.

    Args:
        each_turn: shell code that ends each turn of the loop, and waits a moment.
        wait_s: how long the others may go on after the first has ended well, seconds; 0 for as long as they need.
        time_limit: whether this loop keeps it (``time_limit`` comes before).
    """
    name, array = f"runner_{children.name}", f"runner_{children.name}s"
    limit = 'if [ "$SECONDS" -ge "$runner_limit" ]; then runner_why=${runner_why:-TIMEOUT}; fi'
    warning = f"""\
  elif [ -z "$runner_warned" ] && [ "$SECONDS" -ge "$runner_near" ]; then
    runner_warned=yes
    {children.warn}   # near the time limit: checkpoint and leave
"""
    late = f"""\
  if [ -n "$runner_first" ] && [ "$(( SECONDS - runner_first ))" -ge {wait_s} ]; then
    runner_why=${{runner_why:-FAILED}}
  fi
"""
    return f"""\
runner_exit=0 runner_first='' runner_told=''{" runner_warned=''" if time_limit else ""}
while [ "${{#{array}[@]}}" -gt 0 ]; do
  for runner_i in "${{!{array}[@]}}"; do
    {name}=${{{array}[runner_i]}}
    kill -0 "${name}" 2>/dev/null && continue
    wait "${name}"; runner_code=$?
{children.ended}    runner_first=${{runner_first:-$SECONDS}}
    [ "$runner_code" -eq 0 ] && continue
{children.failed}    [ "$runner_exit" -ne 0 ] || runner_exit=$runner_code
    runner_why=${{runner_why:-FAILED}}
  done
  [ "${{#{array}[@]}}" -gt 0 ] || break
{f"  {limit}" + chr(10) if time_limit else ""}\
{late if wait_s else ""}\
  if [ -n "$runner_told" ]; then
    if [ "$(( SECONDS - runner_told ))" -ge {children.grace} ]; then {children.kill}; fi
  elif [ -n "$runner_why" ]; then
    runner_told=$SECONDS
    {children.end}
{warning if time_limit else ""}\
  fi
{each_turn}done
"""


ENDING = f"""\
case $runner_why in
TIMEOUT) exit {TIMED_OUT} ;;
CANCELLED) exit {CANCELLED} ;;
NODE_FAIL | FAILED) exit "$(( runner_exit ? runner_exit : 1 ))" ;;
esac
exit 0
"""
