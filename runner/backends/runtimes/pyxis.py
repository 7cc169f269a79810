"""Pyxis: ``srun --container-image`` (options as in Pyxis 0.24, ``args.c``)."""

from __future__ import annotations

from runner.backends import LEFTOVERS
from runner.backends.runtimes import common
from runner.backends.runtimes.enroot import BY_ENROOTS_HOOK
from runner.core.errors import UsageError
from runner.model.backends import SCHEDULERS, MountSyntax, RuntimeFacts
from runner.model.plan import Plan
from runner.model.step import RENDEZVOUS, Export, StepSpec, Text, library_file, text, texts

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

_LEFTOVERS = common.SHELL / "pyxis-leftovers.sh"


def step(plan: Plan) -> StepSpec:
    """One step with an unnamed container: Pyxis unpacks it once a node (or mounts it), and removes it at the end.

    PYXIS_VERSION is one of Enroot's variables since Pyxis 0.21; named so, it reaches the ranks, who record it.

    A named one would outlive the job where containers are global, which is Pyxis's default.
    """
    if not SCHEDULERS[plan.scheduler].has_srun:
        raise UsageError(
            f"Pyxis is a plugin of Slurm, and {plan.site} has {plan.scheduler}",
            where="--runtime pyxis",
            fix="use another runtime",
        )
    # --container-env puts values into a file of lines, so one with a newline would set variables of its own.
    env = common.carried(plan)
    names = [name for name, value in env if "\n" not in value]
    mounts = (Text(f",{value}") for _, value in common.mounted(plan))
    return StepSpec(
        prelude=(
            *common.loads(plan),
            *(Export(name, text(value)) for name, value in env if "\n" not in value),
            *(common.prefixed(name, text(value)) for name, value in env if "\n" in value),
        ),
        once_a_node=(*library_file(_LEFTOVERS), *common.live_jobs(plan), common.node_job(plan)),
        launcher=(
            (Text("--container-image="), *common.image_file(plan)),
            (Text("--container-mounts="), *common.RUN_AT_RESULTS, *mounts),
            *texts(f"--container-workdir={plan.workdir}", "--no-container-mount-home", "--no-container-entrypoint"),
            *texts("--no-container-remap-root", "--container-env=" + ",".join((*RENDEZVOUS, "PYXIS_VERSION", *names))),
        ),
        command=(*common.shell(), *common.launched_program(plan)),
        does="removes containers that killed jobs of yours have left there",
        files=(_LEFTOVERS, LEFTOVERS, *common.RANK_FILES),
    )
