"""The script of a job on hosts that the user's own ssh reaches: plain bash, a function of the plan and its step alone.

Without an argument it is the job's controller, on the machine that submits: it starts one ssh a node, keeps the time
limit, and ends all when one fails. What it sends through ssh's standard input makes a bash of the node go to the run
directory, which is the same there, and run this script with the node's number: it starts the node's ranks and does for
them what ``srun --kill-on-bad-exit=1 --wait`` does. The rest of that input are orders, one every few seconds;
after its end, or after silence, the node takes the controller for gone and ends its ranks. No value of the user is
on ssh's command line.
"""

from __future__ import annotations

from runner.backends.schedulers import supervised_script, versions
from runner.backends.schedulers.script_parts import CLEANUP_LOG, KEY, node_log, port
from runner.backends.schedulers.ssh import command
from runner.backends.schedulers.supervised_script import GRACE_S
from runner.core.errors import UsageError
from runner.model.exit_codes import CANCELLED, NO_RUN_DIRECTORY, NODE_NOT_READY
from runner.model.plan import Plan
from runner.model.step import JOB_ID, RENDEZVOUS, RUN_DIRECTORY, StepSpec, texts
from runner.render.shell import folded, quote, quoted_arguments, statement

ORPHAN_GRACE_S = 10  # GRACE_S where the controller is gone
_CUT_S = 38  # after the order to end, ssh itself is ended; less than runner.backends.schedulers.local waits
_BEAT_S = 5
_NODE = "${runner_hosts[$1]##*@}"
SILENCE_S = 60  # of the controller: its machine or the road to it has gone

# The node's own, and not the submitting shell's: its user, its terminal, its road here, its GPUs, its scratch.
_NOT_CARRIED = (
    "HOME | USER | LOGNAME | SHELL | PWD | OLDPWD | SHLVL | _ | HOSTNAME | TERM | TMPDIR | MAIL | DISPLAY\\\n"
    "    | XAUTHORITY | CUDA_VISIBLE_DEVICES | KRB5CCNAME | SSH_* | XDG_* | DBUS_* | BASHOPTS | SHELLOPTS\\\n"
    "    | SLURM* | PMI* | PALS_* | OMPI_COMM_WORLD_* | HOROVOD_GLOO_RENDEZVOUS_* | RUNNER_* | runner_*"
)
_ENVIRONMENT = f"""\
runner_environment() {{   # of this shell: there is no container to bring one
  local runner_i
  while IFS= read -r runner_i; do
    case $runner_i in
    {_NOT_CARRIED}) ;;
    *) printf 'export %s=%q\\n' "$runner_i" "${{!runner_i-}}" ;;
    esac
  done < <(compgen -e)
}}
"""

_CONTROL = f"""\
runner_links=() runner_ways=()
for runner_i in "${{!runner_hosts[@]}}"; do
  runner_fifo=$(mktemp -u) && mkfifo -m 600 -- "$runner_fifo" || exit
  exec {{runner_way}}<>"$runner_fifo"
  exec {{runner_ear}}<"$runner_fifo"
  rm -f -- "$runner_fifo"
  runner_ways[runner_i]=$runner_way
  (
    # Only the controller keeps these pipes open: when it ends, all nodes notice.
    for runner_fd in "${{runner_ways[@]}}"; do exec {{runner_fd}}>&-; done
    exec "${{runner_ssh[@]}}" -- "${{runner_hosts[runner_i]}}" '{command.REMOTE}' \\
      < <(runner_begin "$runner_i"; exec cat <&"$runner_ear")
  ) &
  runner_links[runner_i]=$!
  exec {{runner_ear}}<&-
done

# Orders are single characters, so that a node never reads half of one. T: end, U: the time limit is near, H: I am here.
runner_order() {{
  for runner_i in "${{!runner_links[@]}}"; do printf '%s' "$1" >&"${{runner_ways[runner_i]}}"; done
}}
runner_beat=0
"""
_LINKS = supervised_script.Children(
    "link",
    ended="""\
    runner_way=${runner_ways[runner_i]}
    exec {runner_way}>&-
    unset "runner_links[runner_i]" "runner_ways[runner_i]"
""",
    failed="""\
    if [ "$runner_code" -eq 255 ] && [ -z "$runner_why" ]; then   # ssh's own
      runner_why=NODE_FAIL
      echo "hosts: error: Node failure on ${runner_hosts[runner_i]}: its ssh connection has ended" >&2
    fi
""",
    grace=str(_CUT_S),
    end="runner_order T",
    warn="runner_order U",
    kill='kill -KILL "${runner_links[@]}" 2>/dev/null',
)
_BEAT = f"""\
  if [ "$SECONDS" -ge "$runner_beat" ]; then
    runner_beat=$(( SECONDS + {_BEAT_S} ))
    runner_order H
  fi
  sleep 0.2
"""

_FOLLOW_ORDERS = f"""\
  if [ "$runner_why" = GONE ]; then
    sleep 0.2
    continue
  fi
  runner_word=
  read -r -n 1 -t 0.2 runner_word
  runner_code=$?   # more than 128: nothing yet
  case $runner_word in
  T) runner_why=${{runner_why:-ENDED}} ;;
  U) runner_tell USR1 '' ;;
  esac
  if [ -n "$runner_word" ]; then
    runner_heard=$SECONDS
  elif [ "$runner_code" -le 128 ] || [ "$(( SECONDS - runner_heard ))" -ge {SILENCE_S} ]; then
    runner_why=GONE runner_grace={ORPHAN_GRACE_S}
  fi
"""
_NODE_ENDING = f"""\
case $runner_why in
FAILED) exit "$(( runner_exit == 0 || runner_exit == 255 ? 1 : runner_exit ))" ;;   # 255 would be ssh's
ENDED | GONE) exit {CANCELLED} ;;
esac
exit 0
"""


def render(plan: Plan, step: StepSpec) -> str:
    """The whole script.

    Raises:
        UsageError: what only a scheduler has, or a value that bash could not take as it is; says which.
    """
    assert plan.hosts is not None
    if plan.queue is not None:
        raise UsageError("a list of hosts has no queues", where=f"--queue {plan.queue}", fix="leave it out")
    if plan.directives:
        name = plan.directives[0][0]
        raise UsageError("there is no scheduler to take it", where=f"--scheduler-option {name}", fix="leave it out")
    parts = [
        "#!/bin/bash",
        "# Without an argument: the job's controller. With one: the part of the node of that number.",
        "set -uo pipefail",
        "umask 077",
        supervised_script.into_run_directory(NO_RUN_DIRECTORY),
        f"runner_hosts=({quoted_arguments(texts(*plan.hosts.names))})",
        f"runner_counts=({' '.join(map(str, plan.tasks_per_node))})",
        "",
        "if [ $# -eq 0 ]; then",
        "",
        *_controller(plan, step),
        "fi",
        "",
        *_node(plan, step),
    ]
    return "\n".join(parts)


def _controller(plan: Plan, step: StepSpec) -> tuple[str, ...]:
    assert plan.hosts is not None
    return (
        supervised_script.OWN_JOB_ID,
        supervised_script.marker(),
        supervised_script.TRAPS,
        f"runner_ssh=({folded(texts(*command.command_line(plan.hosts)))})",
        _meeting(plan.nodes),
        *((_ENVIRONMENT,) if step.inherits else ()),
        _begin(step),
        supervised_script.time_limit(plan.walltime_s),
        _CONTROL + supervised_script.supervision(_LINKS, _BEAT, plan.wait_s) + supervised_script.ENDING,
    )


def _meeting(nodes: int) -> str:
    """Where rank 0 serves: the first host as ssh's configuration names it; other programs don't know ssh's aliases."""
    if nodes == 1:
        host = "RUNNER_RDV_HOST=127.0.0.1"
    else:
        host = (
            'RUNNER_RDV_HOST=$("${runner_ssh[@]}" -G -- "${runner_hosts[0]}" | sed -n "s/^hostname //p")\n'
            'RUNNER_RDV_HOST=${RUNNER_RDV_HOST:-"${runner_hosts[0]##*@}"}'
        )
    return f"{host}\n{port('$$')}\n{KEY}\n"


def _begin(step: StepSpec) -> str:
    environment = "  runner_environment\n" if step.inherits else ""
    names = ("RUNNER_JOB_ID", *RENDEZVOUS)
    exports = "".join(f"  printf 'export {name}=%q\\n' \"${name}\"\n" for name in names)
    return f"""\
runner_begin() {{   # what the bash of a node reads first
  printf 'cd -- %q || exit {NO_RUN_DIRECTORY}\\n' "${RUN_DIRECTORY}"
{environment}{exports}  printf 'exec bash ./job.sh %d\\n' "$1"
}}
"""


def _node(plan: Plan, step: StepSpec) -> tuple[str, ...]:
    first = [f"{folded(step.once_a_node)} {node_log(_NODE)} || exit {NODE_NOT_READY}\n"] if step.once_a_node else []
    last = [f"trap {quote(f'{quoted_arguments(step.at_end)} {CLEANUP_LOG}')} EXIT\n"] if step.at_end else []
    return (
        *(() if step.inherits else (supervised_script.only("RUNNER_JOB_ID", *RENDEZVOUS),)),
        'export USER="${USER:-$(id -un)}"',
        f"{JOB_ID}=$RUNNER_JOB_ID runner_why=",
        "trap 'runner_why=${runner_why:-ENDED}' TERM INT HUP",
        "trap : PIPE   # ssh may be gone\n",
        *(statement(entry) for entry in step.prelude),
        "",
        *(f'if [ "$1" -eq 0 ]; then\n{code}fi\n' for code in versions.record(plan)),
        *last,
        *first,
        _ranks(plan, step),
        supervised_script.TELL_RANKS
        + f"runner_heard=$SECONDS runner_grace={GRACE_S}\n"
        + supervised_script.supervision(
            supervised_script.ranks('"$runner_grace"'), _FOLLOW_ORDERS, plan.wait_s, time_limit=False
        )
        + _NODE_ENDING,
    )


def _ranks(plan: Plan, step: StepSpec) -> str:
    before = """\
export RUNNER_NODE="${runner_hosts[$1]}"   # in the ranks' records: two nodes may have one host name
runner_base=0
for (( runner_i = 0; runner_i < $1; runner_i++ )); do runner_base=$(( runner_base + runner_counts[runner_i] )); done
"""
    return before + supervised_script.start_ranks(
        step.command,
        plan.tasks,
        count="runner_counts[$1]",
        rank="$(( runner_base + runner_i ))",
        local_world='"${runner_counts[$1]}"',
    )
