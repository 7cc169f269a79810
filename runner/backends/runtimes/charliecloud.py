"""Charliecloud: ``ch-run`` straight from the squashfs, with no privilege (options as in 0.31)."""

from __future__ import annotations

from runner.backends import LEFTOVERS
from runner.backends.runtimes import common
from runner.model.backends import MountSyntax, RuntimeFacts
from runner.model.plan import Plan
from runner.model.step import RENDEZVOUS, StepSpec, Text, Var, library_file, text, texts

FACTS = RuntimeFacts(
    title="Charliecloud",
    image="squashfs",
    mounts=MountSyntax(forbidden=":", absolute=False, read_only=""),  # ch-run --bind splits at ':' and has no escape
    program="ch-run",
    user_namespaces=True,
    without_scheduler=True,
    driver="ch-run brings no driver: put it into the image with `ch-fromhost --nvidia`, on a machine that has it, "
    "or choose another runtime (--runtime)",
    # ch-run mounts nothing of the host's GPU driver; ch-fromhost changes the image, which our store does not do.
    brings_driver=False,
    install="apt-get install charliecloud-runtime squashfuse",
    failure=r"ch-run\[\d+\]: error",
    versions={"charliecloud": ("ch-run", "--version")},
    preference=60,
)

_SHELL = common.SHELL / "charliecloud.sh"
# slurmstepd offers PMIx's data in shared memory, in files of its own that no container sees: over its socket, then.
_OVER_THE_SOCKET = {"pmix": (("PMIX_MCA_gds", "hash"),)}


def step(plan: Plan) -> StepSpec:
    """The ranks of a node share one mount of the image; with an uneven split each mounts it for itself.

    A mount of its own for every rank costs its own decompression and page cache: 16 ranks that import torch took
    1.7 times as long so. The directory below which ``ch-run`` mounts is made once a node: left to the ranks, they
    race for it, and some fail. One that is not the user's own ends the job before any rank starts.
    """
    even = len(set(plan.tasks_per_node)) == 1 and plan.tasks_per_node[0] > 1
    join = (text(f"--join-ct={plan.tasks_per_node[0]}"),) if even else ()  # the tag is charliecloud.sh's
    env = (*common.carried(plan), *_OVER_THE_SOCKET.get(plan.wireup, ()))
    return StepSpec(
        # ch-run --set-env lets the image's values win over the job's.
        prelude=(
            *common.loads(plan),
            *(common.prefixed(name, text(value)) for name, value in env),
            *(common.prefixed(name, (Var(name),)) for name in RENDEZVOUS),
        ),
        once_a_node=(*library_file(_SHELL), text("directories"), (Text("/var/tmp/"), Var("USER"), Text(".ch"))),
        command=(
            *(*library_file(_SHELL), *texts("run", "ch-run"), *join, *texts("--set-env", "--cd", plan.workdir)),
            *(text("--bind"), common.RUN_AT_RESULTS, *common.mount_options(plan, "--bind")),
            *(*texts(plan.image.path, "--"), *common.shell()),
            # The rank that made the mount serves it: no rank may exit before all of its node have ended.
            *common.launched_program(plan, *(("--leave-together", str(plan.wait_s)) if even else ())),
        ),
        does="makes the directory below which ch-run mounts the image",
        files=(_SHELL, LEFTOVERS, *common.RANK_FILES),
    )
