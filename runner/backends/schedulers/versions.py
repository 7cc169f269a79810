"""Which versions run a job: asked on its first node, and left in the run directory."""

from __future__ import annotations

from runner.model.plan import Plan
from runner.model.runtimes import RUNTIMES
from runner.model.schedulers import SCHEDULERS
from runner.model.step import texts
from runner.render.shell import quoted_arguments

_WITHIN_S = 10


def record(plan: Plan) -> tuple[str, ...]:
    """Shell code that leaves ``versions``, a name and a line with a version for each command that has one.

    In the background and within a bounded time: whatever it meets, the job neither waits for it nor fails by it.
    """
    commands: dict[str, tuple[str, ...]] = dict(RUNTIMES[plan.runtime].versions)
    if SCHEDULERS[plan.scheduler].version:
        commands = {plan.scheduler: SCHEDULERS[plan.scheduler].version, **commands}
    if not commands:
        return ()
    asked = "".join(f"  runner_version {name} {quoted_arguments(texts(*words))}\n" for name, words in commands.items())
    code = f"""\
# For the record, on the side: nothing waits for it.
runner_version() {{
  runner_i=$(timeout {_WITHIN_S} "${{@:2}}" 2>&1 | grep '[0-9][.][0-9]') || return 0   # not a warning before it
  printf '%s\\t%s\\n' "$1" "${{runner_i%%$'\\n'*}}"
}}
{{
{asked}}} >versions 2>/dev/null </dev/null &
"""
    return (code,)
