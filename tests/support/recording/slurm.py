"""A batch script run by real bash on this machine, with an srun and containers that record and go on to the next part.

What a rank's launcher gets is looked at where it gets it: behind the scheduler's words, the container's, and the shell
in the container, which are real but for the container itself. A container lets its image's variables win over the
job's, as real ones do, unless an option carries the job's by name. A new runtime needs nothing here as long as its
container command ends with the shell of ``runner.backends.runtimes.common``.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, runtime_programs
from runner.model.plan import PlannedImage
from runner.model.request import Recipe
from runner.model.site import NodeShape, Site
from runner.model.step import JobScript
from runner.planning.plan import plan
from tests.support import recording

_IMAGE_WINS = r"""
image_wins() {  # the words of the container's command line
  local name word carried
  for name in "${!T_@}"; do
    carried=
    for word in "$@"; do
      [[ $word == "$name" || $word =~ ^--[a-z-]*env=(.*,)?$name(,.*)?$ ]] && carried=1
    done
    [ "$carried" ] || export "$name=the image's own"
  done
}
"""
_SRUN = f"""#!/bin/bash
[ "$1" != --version ] || exit 0  # it is asked beside the job's own calls
{_IMAGE_WINS}
printf '%s\\0' "$@" >>"$RECORD/words.$$"
case " $* " in *" --overlap "*)  # both nodes are ready; at the end of its input the job has ended
  printf 'ready\\nready\\n'; cat >/dev/null; exit 0 ;;
esac
launches=
for word in "$@"; do [[ $word == */lib/launch.py ]] && launches=1; done
[ "$launches" ] || exit 0
case "$*" in *--container-image=*) image_wins "$@" ;; esac
while [[ $1 == --* ]]; do shift; done
exec "$1" "${{2/#\\/results/$SLURM_SUBMIT_DIR}}" "${{@:3}}"
"""
# As Enroot does twice, before and after its hooks (common::envfmt).
_UNQUOTED = r"""
unquoted() {
  local name
  for name in "${!RUNNER_ENV_@}"; do
    if [[ ${!name} =~ ^[\"\'](.*)[\"\'][[:space:]]*$ ]]; then export "$name=${BASH_REMATCH[1]}"; fi
  done
}
"""
_CONTAINER = f"""#!/bin/bash
{_IMAGE_WINS}
{_UNQUOTED}
printf '%s\\0' "$@" >>"$RECORD/words.$$"
case $0 in */enroot) unquoted; unquoted ;; esac
image_wins "$@"
while [ $# -gt 0 ] && [ "$1" != /bin/bash ]; do shift; done
[ $# -gt 0 ] || exit 0
rank=${{2/#\\/results/$SLURM_SUBMIT_DIR}}  # the container's directories are not here
shift 2
if [ "$1" = --cd ]; then shift 2; fi
exec /bin/bash "$rank" "$@"
"""
_PYTHON = """#!/bin/bash
printf '%s\\0' "$@" >"$RECORD/arrived"
env -0 >"$RECORD/environment"
"""
_HOSTS = "#!/bin/sh\necho n1\necho n2\n"
_CONTAINERS = sorted(set(runtime_programs().values()))


@dataclass(frozen=True)
class Arrived:
    """What has arrived, as bytes.

    Attributes:
        words: of every call of srun and of a container command, in one; each process keeps its own, as bash writes a
            value with a line's end in several parts.
        program: argument list of the program below the launcher.
        environment: of the launcher.
    """

    words: tuple[bytes, ...]
    program: list[bytes]
    environment: dict[bytes, bytes]


def executed(script: JobScript) -> Arrived:
    """Run a batch script as Slurm would run it."""
    job = {"SLURM_SUBMIT_DIR": "{run}", "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]"}
    with recording.ran(script, _stubs(), {"RECORD": "{records}", **job}) as (records, run):
        assert (run / "exit.json").is_file()
        arrived = recording.split(records / "arrived")
        return Arrived(
            words=tuple(word for path in records.glob("words.*") for word in recording.split(path)),
            program=arrived[arrived.index(b"--") + 1 :],
            environment=recording.environment(records / "environment"),
        )


def arrives_or_is_refused(
    via: str,
    arguments: list[str],
    of_recipe: list[str],
    envs: tuple[dict[str, str], dict[str, str], dict[str, str]],
    option: str,
    mounts: list[tuple[str, str]],
    image: str,
    mpi: str,
) -> int:
    """Assert that each value arrives unchanged, or is refused with its option and the text that cannot be expressed.

    Args:
        envs: of site, recipe and user; a rank sees the value of whoever comes last, over the image's.

    Returns:
        How many values have arrived; 0 where the job was refused.
    """
    site_env: dict[str, str | None] = {**envs[0]}
    recipe_env: dict[str, str | None] = {**envs[1]}
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=(via,), node=NodeShape(cores=8, memory_mb=1, gpus=4),
        scheduler_settings={"mpi": mpi}, env=site_env,
    )  # fmt: skip
    recipe = Recipe(
        name="r", description="", image="i", program=("python3", *of_recipe), options={"note": "x"}, env=recipe_env
    )
    request = recording.request(8, arguments, envs[2], option, mounts)
    env = {**envs[0], **envs[1], **envs[2]}
    try:
        planned = plan(recipe, site, request, PlannedImage("registry.example/i:1", "sha256:ab", image))
        step = runtime(via).step(planned)
    except UsageError as error:
        given = [*(f"{source}\0{target}" for source, target in mounts), *env.values(), *of_recipe, option, *arguments]
        assert error.where.startswith(("--mount", "--env", "-- "))
        assert any(repr(c)[1:-1] in error.what or c == "\n" for text in given for c in text), error
        return 0
    arrived = executed(render(planned, step))
    shown = os.fsencode(option)
    options = [b"--note=" + shown] if shown.startswith(b"-") else [b"--note", shown]
    assert arrived.program == [b"python3", *map(os.fsencode, of_recipe), *options, *map(os.fsencode, arguments)]
    seen = {name: arrived.environment.get(os.fsencode(name)) for name in env}
    assert seen == {name: os.fsencode(value) for name, value in env.items()}
    joined = b"\n".join(arrived.words)
    assert os.fsencode(image) in joined or b"registry.example/i:1" in joined
    assert os.fsencode(f"--mpi={mpi}") in arrived.words
    for source, target in mounts:
        forms = (RUNTIMES[via].mounts.pair.format(source=source, target=target), f"{source}\n{target}")
        assert any(os.fsencode(form) in joined for form in forms)
    return len(arguments) + len(of_recipe) + len(env) + 2 * len(mounts) + 3


@cache
def _stubs() -> Path:
    """A directory with a recording srun, containers and python3, and a scontrol that names two nodes."""
    containers = dict.fromkeys(_CONTAINERS, _CONTAINER)
    return recording.stubs({"srun": _SRUN, "scontrol": _HOSTS, "python3": _PYTHON, **containers})
