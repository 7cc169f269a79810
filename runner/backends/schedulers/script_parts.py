"""Parts of all schedulers' batch scripts: where ranks meet, signals, the end."""

from __future__ import annotations

from collections.abc import Iterator

from runner.model.exit_codes import NODE_NOT_READY, WRONG_NODES
from runner.model.plan import Plan
from runner.model.step import JOB_ID, RUN_DIRECTORY, Argument
from runner.render.shell import folded

TRAPS = f"""\
runner_step=
# Near the time limit: checkpoint and leave. The launchers read it (their module `notices`): a signal of srun's would
# also end what serves a container's file system.
: >notices
trap 'echo USR1 >>"${RUN_DIRECTORY}/notices"' USR1
trap 'kill -TERM "$runner_step" 2>/dev/null' TERM
"""


def memlock(plan: Plan) -> str:
    """The limit on locked memory, raised; what it stays at is said only where GPUs of several nodes may use RDMA."""
    raised = "ulimit -l unlimited 2>/dev/null"
    if plan.nodes == 1 or plan.device != "cuda" or plan.transport == "sockets":
        return raised
    return f'{raised} || echo "memlock is $(ulimit -l) kB: RDMA registration may fail" >&2'


# By it the verdict names the node of a rank that never started.
NODES_FILE = "printf '%s\\n' \"${runner_hosts[@]}\" >nodes"


def world(plan: Plan, hosts: str) -> str:
    """Head node and port, decided here: a container has no scheduler's clients.

    Args:
        hosts: a command that prints the allocation's nodes, a line each.
    """
    return f"""\
mapfile -t runner_hosts < <({hosts})
[ "${{#runner_hosts[@]}}" -eq {plan.nodes} ] || {{
  echo "planned {plan.nodes} nodes, allocated ${{#runner_hosts[@]}}" >&2; exit {WRONG_NODES}; }}
{NODES_FILE}
export RUNNER_RDV_HOST="${{runner_hosts[0]}}"
export {port(f"${{{JOB_ID}%%[!0-9]*}}")}
{KEY}"""


# Where rank 0 serves, unless the port is taken: below Linux's ephemeral range (32768), above the well-known services.
# The launcher inside a container makes the same port of a job number (its module `network`); a test holds both.
FIRST_PORT, PORTS = 12000, 16000


def port(number: str) -> str:
    """An assignment, for export; ``number``: shell arithmetic, equal on all nodes, different for a neighbouring job."""
    return f"RUNNER_RDV_PORT=$(( {FIRST_PORT} + {number} % {PORTS} ))   # below ip_local_port_range"


# Made anew by each run of a script, it is in no file, and ends with the processes.
KEY = """\
RUNNER_RDV_KEY=$(head -c 16 /dev/urandom | base64)   # only this job's ranks know it
export RUNNER_RDV_KEY"""

# Wait for the step, which runs in the background, and leave its exit status as a record and as the script's own.
WAIT = """\
runner_step=$!
while kill -0 "$runner_step" 2>/dev/null; do wait "$runner_step"; done
wait "$runner_step"; runner_exit=$?
"""
TAIL = f"""\
{WAIT}printf '{{"job":"%s","exit":%d,"end_s":%d}}\\n' "${JOB_ID}" "$runner_exit" "$(date +%s)" \\
  >exit.json.part && mv -f exit.json.part exit.json
exit "$runner_exit"
"""


# What the clean-up says is no evidence of why a job failed: it must not stand beside what is.
CLEANUP_LOG = ">>logs/cleanup.log 2>&1"


def node_log(name: str) -> str:
    """Redirection of what is run once a node into a file of that node; ``name``: shell code of its name."""
    return f'>"logs/node-{name}.log" 2>&1'


def around(once_a_node: tuple[Argument, ...], at_end: tuple[Argument, ...]) -> Iterator[str]:
    """What comes before the step, and what is run whenever the script ends: whole commands, empty for none."""
    if at_end:
        yield f"runner_at_end() {{\n  {folded(at_end, indent='    ')} {CLEANUP_LOG}\n}}\ntrap runner_at_end EXIT\n"
    if once_a_node:
        yield f"# Once a node, not once a rank.\n{folded(once_a_node)} || exit {NODE_NOT_READY}\n"


def clock(seconds: int) -> str:
    """``hours:minutes:seconds``, the hours as many as it takes."""
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
