"""``--stage``: the image on each node's own disk before the ranks begin, whatever the runtime.

A runtime makes its step for an image at a placeholder path, which is replaced here by the path of the staged file.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runner.backends.runtimes import Runtime, leftovers
from runner.core.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import Argument, Export, StepSpec, Text, Var, text, texts

DIRECTORY = "runner_stage"  # variable of the batch script: the directory of this job on every node
_PREFIX = "gpu-runner-stage-"
_NAME = "/image.sqsh"
_PLACEHOLDER = "/\0image"  # no value of a user can contain a NUL

# Once a node; arguments: the job's directory, what `is_left` needs of other jobs, the image, its bytes, its SHA-256 (or
# nothing), and what else is to be done once a node. What is summed is what was read, in one pass. The node stands in
# the directory: where nodes share the disk, a job is refused, and nothing of another node's is removed. Of a run
# without a scheduler (PID.START.BOOT, of the machine that submits) its session here stands there, too, and of which
# boot and space its number is: a session without a process is that of a run that was killed outright, with its ranks.
_STAGE = f"""\
set -u; set -o pipefail
{leftovers.IS_LEFT}\
boot=$(cat /proc/sys/kernel/random/boot_id) space=$(readlink /proc/self/ns/pid)
session() {{ local stat; read -r stat <"$1" && set -- ${{stat##*) }} && echo "$4"; }} 2>/dev/null
is_dead() {{
  [[ ${{1##*/{_PREFIX}}} =~ ^[0-9]+[.][0-9]+[.][0-9a-f]{{8}}$ ]] || return
  local own booted numbers process
  read -r own booted numbers <"$1/session" || return
  [ "$booted" = "$boot" ] || return 0
  [ "$numbers" = "$space" ] || return
  for process in /proc/[0-9]*/stat; do [ "$(session "$process")" != "$own" ] || return; done
}} 2>/dev/null
say() {{ echo "$(hostname): cannot stage the image: $*" >&2; rm -rf -- "$stage"; exit 1; }}
stage=$1 live=$2 alone=$3 image=$4 bytes=$5 sum=$6; shift 6
ours() {{ [ ! -L "$1" ] && [ -O "$1" ] && [ "$(cat -- "$1/node")" = "$(uname -n)" ]; }} 2>/dev/null
for old in "${{stage%/*}}/{_PREFIX}"*; do
  ours "$old" || continue
  if is_dead "$old" || is_left "${{old##*/{_PREFIX}}}" "$live" "$alone" "${{stage##*/{_PREFIX}}}"; then
    rm -rf -- "$old"; fi
done
if ours "$stage"; then rm -rf -- "$stage"; fi   # of an earlier start of this job
mkdir -m 700 -- "$stage" && uname -n >"$stage/node" || {{
  echo "$(hostname): cannot stage the image: $stage cannot be made, or is no disk of this node alone" >&2; exit 1; }}
echo "$(session /proc/self/stat) $boot $space" >"$stage/session"
room=$(df --output=avail -B1 -- "$stage" | tail -n 1)
[ "$room" -ge "$bytes" ] || say "no room: $bytes bytes needed, $room free in ${{stage%/*}}"
found=$(tee -- "$stage{_NAME}" <"$image" | sha256sum) || say "the copy of $image failed"
[ "$(stat -c %s -- "$stage{_NAME}")" = "$bytes" ] || say "the copy has another size than $image had"
[ -z "$sum" ] || [ "${{found%% *}}" = "$sum" ] || say "$image is not what was converted: its SHA-256 differs"
[ $# -eq 0 ] || exec "$@"
"""


def step(plan: Plan, runtime: Runtime) -> StepSpec:
    """The runtime's step, from the staged file where the plan stages.

    Raises:
        UsageError: the runtime takes no image file; or as the runtime's own step.
    """
    if not plan.stage:
        return runtime.step(plan)
    image = msgspec.structs.replace(plan.image, path=_PLACEHOLDER)
    made = runtime.step(msgspec.structs.replace(plan, image=image))
    launcher, command = (tuple(map(_staged, words)) for words in (made.launcher, made.command))
    if made.at_end or (launcher, command) == (made.launcher, made.command):
        why = f"{plan.runtime} does not start from an image file, so there is nothing to stage"
        raise UsageError(why, where="--stage", fix="leave it out")
    copy = (
        *texts("/bin/bash", "-c", _STAGE, "bash"),
        (Var(DIRECTORY),),
        *leftovers.known(plan),
        *texts(plan.image.path, str(plan.image.size_bytes), plan.image.sha256),
    )
    return msgspec.structs.replace(
        made,
        prelude=(*made.prelude, Export(DIRECTORY, (Text(f"{plan.stage}/{_PREFIX}"), *leftovers.job_of(plan)))),
        once_a_node=(*copy, *made.once_a_node),
        launcher=launcher,
        command=command,
        at_end=(*texts("rm", "-rf", "--"), (Var(DIRECTORY),)),
    )


def _staged(word: Argument) -> Argument:
    return tuple(part for old in word for part in _parts(old))


def _parts(part: Text | Var) -> Iterator[Text | Var]:
    if isinstance(part, Var) or _PLACEHOLDER not in part.value:
        yield part
        return
    before, _, after = part.value.partition(_PLACEHOLDER)
    yield from text(before) if before else ()
    yield from (Var(DIRECTORY), Text(_NAME + after))
