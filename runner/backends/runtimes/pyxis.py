"""Pyxis: ``srun --container-image`` (options as in Pyxis 0.24, ``args.c``)."""

from __future__ import annotations

from runner.backends.runtimes import common, leftovers
from runner.backends.runtimes.common import image_file, launched_program, loads, mounted, prefixed
from runner.backends.runtimes.enroot import BY_ENROOTS_HOOK
from runner.core.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.runtimes import MountSyntax, RuntimeFacts
from runner.model.schedulers import SCHEDULERS
from runner.model.step import RENDEZVOUS, RUN_DIRECTORY, Argument, Export, StepSpec, Text, Var, text, texts

FACTS = RuntimeFacts(
    title="Pyxis",
    image="squashfs",
    # It splits mounts at ',' and ':', and hands them to Enroot through a shell's double quotes (0.24).
    mounts=MountSyntax(forbidden=',:"$`\\'),
    srun_option="container-image",
    plugin="spank_pyxis.so",
    user_namespaces=True,
    driver=BY_ENROOTS_HOOK,
    failure="pyxis: ",
    versions={"enroot": ("enroot", "version")},
    version_variable="PYXIS_VERSION",
    preference=10,
    # Pyxis escapes blanks since 0.24 (``fstab_escape``); Enroot 4.1.2 as released, linked with musl, does not read that
    # (``compat_getmntent_r``), linked with glibc it does. Which of them the nodes have is not known here.
    blanks="Pyxis before 0.24, and Enroot up to 4.1.2 as released, cannot mount a path with a blank",
)

# Where Pyxis was killed outright with its job, its container stays: pyxis_JOB.STEP, or pyxis_JOB_JOB.STEP where
# containers are a job's (pyxis_slurmstepd.c, 0.24). Removed are the user's own of jobs that are gone, on a disk of this
# node (types of stat(1): another cluster may share what is on others), and with a mount point of ours, since a user may
# name a container 25.10. No option of Enroot shows where containers are: its message about one that is missing does.
_SWEEP = f"""\
exec >>logs/cleanup.log 2>&1
{leftovers.IS_LEFT}\
data=$(enroot remove gpu-runner-none 2>&1 </dev/null |
  sed -n "s|^.*No such file or directory: \\(/.*\\)/gpu-runner-none$|\\1|p")
case $data:$(stat -f -c %t -- "$data" 2>/dev/null) in
  /*:ef53 | /*:58465342 | /*:9123683e | /*:2fc12fc1 | /*:f2f52010 | /*:1021994 | /*:794c7630) ;; *) exit 0 ;;
esac
for old in "$data"/pyxis_*; do
  name=${{old##*/}}
  [[ $name =~ ^pyxis_([1-9][0-9]*_)?([1-9][0-9]*)[.](0|[1-9][0-9]*)$ ]] || continue
  of=${{BASH_REMATCH[1]%_}} job=${{BASH_REMATCH[2]}}
  [ "${{of:-$job}}" = "$job" ] && [ ! -L "$old" ] && [ -O "$old" ] && [ -d "$old{RESULTS}" ] || continue
  if is_left "$job" "$1" "$2" "$3"; then echo "$(uname -n): removing $name, of a job that has ended"
    enroot remove --force "$name"; fi
done
exit 0
"""


def step(plan: Plan) -> StepSpec:
    """One step with an unnamed container: Pyxis unpacks it once a node (or mounts it), and removes it at the end.

    PYXIS_VERSION is one of Enroot's variables since Pyxis 0.21; named so, it reaches the ranks, who record it.

    A named one would outlive the job where containers are global, which is Pyxis's default.
    """
    if SCHEDULERS[plan.scheduler].launcher != "srun":
        raise UsageError(
            f"Pyxis is a plugin of Slurm, and {plan.site} has {plan.scheduler}",
            where="--runtime pyxis",
            fix="use another runtime",
        )
    # --container-env puts values into a file of lines, so one with a newline would set variables of its own.
    env = common.carried(plan)
    carried = [(name, value) for name, value in env if "\n" not in value]
    renamed = [(name, value) for name, value in env if "\n" in value]
    return StepSpec(
        prelude=(
            *loads(plan),
            *(Export(name, text(value)) for name, value in carried),
            *(prefixed(name, text(value)) for name, value in renamed),
        ),
        once_a_node=(
            *texts("/bin/bash", "-c", _SWEEP, "bash"),
            *leftovers.known(plan),
            leftovers.job_of(plan),
        ),
        launcher=(
            (Text("--container-image="), *image_file(plan)),
            _mounts(plan),
            text(f"--container-workdir={plan.workdir}"),
            *texts("--no-container-mount-home", "--no-container-entrypoint", "--no-container-remap-root"),
            text("--container-env=" + ",".join((*RENDEZVOUS, "PYXIS_VERSION", *(name for name, _ in carried)))),
        ),
        command=(*common.shell(plan, rename=bool(renamed)), *launched_program(plan)),
    )


def _mounts(plan: Plan) -> Argument:
    words: list[Text | Var] = [Text("--container-mounts="), Var(RUN_DIRECTORY), Text(f":{RESULTS}")]
    return (*words, *(Text(f",{value}") for _, value in mounted(plan)))
