"""What makes the nodes ready for a job, and cleans up when it has ended, however it has ended.

A step of its own, one task a node beside the ranks, for as long as the job: after a cancel or at the time limit Slurm
refuses new steps ("job has expired"), and a step that runs already has until ``KillWait`` (30 s by default). It goes by
the end of its input: slurmd's signals reach every process of a job at once, while ranks may still be writing.
What a node's failure or SIGKILL leaves is removed by the next job of the same user there: see ``LIVE``.
"""

from __future__ import annotations

from runner.backends.schedulers.script_parts import CLEANUP_LOG, node_log
from runner.model.exit_codes import NODE_NOT_READY
from runner.model.step import LIVE, Argument, text, texts
from runner.render.shell import folded

# Besides the ranks, with all that the job has; the end of one is not the end of the others.
OPTIONS = ("--overlap", "--kill-on-bad-exit=0", "--wait=0")

# Arguments: how many words the first command has; the command that makes ready; the command that cleans up.
_KEEP = """\
first=("${@:2:$1}") last=("${@:2+$1}") code=0
trap : HUP INT TERM USR1 USR2
set -m; "${first[@]}" NODE_LOG </dev/null & work=$!; set +m
while kill -0 "$work" 2>/dev/null; do
  read -r -t 0.2 _; [ $? -gt 128 ] || { kill -TERM -- "-$work"; break; }
done
while kill -0 "$work" 2>/dev/null; do wait "$work"; done
wait "$work" || code=$?
if [ "$code" -eq 0 ]; then
  echo ready
  while :; do read -r -t 60 _; [ $? -gt 128 ] || break; done
else
  echo failed
fi
trap "" HUP INT TERM USR1 USR2
"${last[@]}" CLEANUP_LOG </dev/null
exit "$code"
""".replace("NODE_LOG", node_log("$SLURMD_NODENAME")).replace("CLEANUP_LOG", CLEANUP_LOG)

# The jobs of this user that Slurm knows, in hidden partitions, too; nothing where it did not answer with this one among
# them. A login shell's variables of squeue would leave some out.
ASK_FOR_LIVE = f"""\
unset -v "${{!SQUEUE_@}}"
{LIVE}=$(timeout 20 squeue --noheader --all --user="$(id -u)" --format=%A 2>/dev/null | tr '\\n' ' ')
case " ${LIVE} " in *" $SLURM_JOB_ID "*) ;; *) {LIVE}= ;; esac
"""

LOOK_S = 10  # how often srun's reports are looked at while nodes are made ready
LONGEST_S = 600  # of the clean-up: a file system that hangs keeps no nodes up to the job's time limit

# Before the keeper is started, and where there is none: `runner_at_end` is called when the script ends.
AT_END = f"""\
runner_keeper=
runner_at_end() {{
  [ -n "$runner_keeper" ] || return 0
  exec {{runner_keep}}>&-   # the end of the keeper's input
  local runner_until=$(( SECONDS + {LONGEST_S} ))
  while kill -0 "$runner_keeper" 2>/dev/null; do
    if [ "$SECONDS" -ge "$runner_until" ]; then
      echo "not clean on every node after {LONGEST_S} s" {CLEANUP_LOG}; kill -TERM "$runner_keeper"; break
    fi
    sleep 0.2
  done
}}
"""


def command(once_a_node: tuple[Argument, ...], at_end: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """What a keeper's task runs."""
    return (*texts("/bin/bash", "-c", _KEEP, "bash"), text(str(len(once_a_node))), *once_a_node, *at_end)


def start(step: tuple[Argument, ...]) -> str:
    """Start the keeper in the background, and wait until every node is ready, or one's task is gone.

    A task that was killed says nothing, and srun goes on with the others: it reports that one in the script's log, in
    which nothing else has written of tasks yet (the pattern is that of runner.diagnosis.log_patterns).

    Args:
        step: the whole command: srun, its options, ``command``.
    """
    return f"""\
# On each node, beside the ranks: makes it ready, and cleans up at the end of its input.
coproc RUNNER_KEEPER {{
  exec {folded(step, indent="    ")}
}}
runner_keeper=${{RUNNER_KEEPER_PID-}} runner_hear=${{RUNNER_KEEPER[0]-}} runner_keep=${{RUNNER_KEEPER[1]-}}
runner_is_lost() {{ grep -qE '^srun: error: ([^ ]+: )?tasks? [0-9,-]+:? ' logs/batch.err; }} 2>/dev/null
for _ in "${{runner_hosts[@]}}"; do
  runner_said=   # and what a site's TaskProlog prints
  until [ "$runner_said" = ready ] || [ "$runner_said" = failed ]; do
    read -r -t {LOOK_S} runner_said <&"${{runner_hear:-99}}" && continue
    if [ $? -le 128 ] || runner_is_lost; then break; fi   # more than 128: nothing yet
  done
  [ "$runner_said" = ready ] || exit {NODE_NOT_READY}
done
"""
