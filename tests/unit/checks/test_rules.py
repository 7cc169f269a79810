"""What is refused or warned of before anything is submitted, from the plan, the site and what was looked at."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import runtime
from runner.checks import registry
from runner.checks.registry import Case, Observed, check, codes, refuses, rule, rules
from runner.core.errors import UsageError
from runner.model.plan import Finding, PlannedImage
from runner.model.request import Mount, Request
from runner.model.site import MpiFacts, Site
from runner.model.step import Text
from runner.planning.plan import plan
from runner.recipes.loader import recipe_of
from runner.sites.loader import read_site
from tests.support.plans import PROGRAM

SEEN = Observed()
IMAGE = PlannedImage("registry.example/i:1", "sha256:ab", "/store/x")
OPEN_MPI = msgspec.structs.replace(IMAGE, mpi="openmpi")


def technion(**changes: Any) -> Site:
    return msgspec.structs.replace(read_site("technion"), **changes)


PMIX = technion(mpi=MpiFacts(pmi=("pmix",)))


def findings_of(
    site: str | Site = "technion", observed: Observed = SEEN, force: tuple[str, ...] = (), image: PlannedImage = IMAGE,
    words: str = "", **asked: Any,
) -> dict[str, Finding]:  # fmt: skip
    facts = read_site(site) if isinstance(site, str) else site
    recipe = recipe_of(shlex.split(words)) if words else PROGRAM
    planned = plan(recipe, facts, Request(**({"gpus": 16} | asked)), image)
    return {finding.code: finding for finding in check(planned, facts, observed, force)}


@pytest.mark.parametrize("site", ["technion", "box", "perlmutter", "alpha", "neuron", "polaris"])
def test_an_ordinary_request_is_not_refused_anywhere(site: str) -> None:
    observed = Observed(run_directory=("/lustre/runs", "/scratch/{user}/runs", "/pscratch/runs"))
    assert not refuses(tuple(findings_of(site, observed).values()))


HOME = Observed(home=("/home/e",), run_directory=("/scratch/{user}/runs",))
AT_HOME, BLANK = Observed(run_directory=("/home/e/runs",)), Observed(run_directory=("/my runs",))
CACHES = Observed(caches=("/home/me/.cache/huggingface", "/scratch/hf"))
SCRATCH = {"mounts": (Mount("/scratch", "/scratch"),)}
DATA, FROM_DATA = Observed(named_paths=("/home/me/data/x.pt",)), {"directory": "/home/me", "program": ("true",)}
FROM_HOME = {"directory": "/home/e/src", "program": ("true",)}
# An image that was made without the runner's directories runs where a site's containers show them.
SHOWN = {"directory": "/pscratch/sd/e/elvis/src", "image": PlannedImage("nvcr.io/nvidia/pytorch:25.02-py3", "", "/x")}


def of_home(source: str, target: str, allowed: str = "0") -> dict[str, Any]:
    env = (("PYTHONNOUSERSITE", allowed),) if allowed else ()
    return {"gpus": 8, "runtime": "singularity", "mounts": (Mount(source, target),), "env": env}


def with_data(runtime: str, source: str) -> dict[str, Any]:
    return {"runtime": runtime, "mounts": (Mount(source, "/data"),)}


ONE_OF_TWO = "bash -c 'if x; then torchrun --nnodes 2 t.py; else torchrun --nnodes 1 t.py; fi'"


def starts(words: str, **more: Any) -> dict[str, Any]:
    """A program of the user's that may start ranks itself."""
    return {"words": words, **more}


@pytest.mark.parametrize(
    ("code", "site", "observed", "asked", "says"),
    [
        ("image-unusable", "technion", Observed(image_problem="gone", image_fix="convert it"), {}, "convert it"),
        ("mount-source-missing", "technion", Observed(missing_sources=("/data",)), {}, "/data"),
        ("run-directory-unmountable", "technion", Observed(run_directory_problem="a comma"), {}, "a comma"),
        ("runtime-not-at-site", "technion", SEEN, {"runtime": "shifter"}, "pyxis"),
        ("account-missing", "polaris", Observed(absent=("account",)), {}, "--account"),
        ("project-missing", "polaris", Observed(absent=("project",)), {}, "--project"),
        ("environment-lacks", "neuron", Observed(environment_problem="no torch"), {}, "no torch"),
        ("plugin-missing", "technion", Observed(plugin_problem="none", plugin_fix="--runtime enroot"), {}, "enroot"),
        ("scratch-missing", "polaris", Observed(absent=("scratch",)), {}, "--scratch"),
        ("field-missing", "neuron", Observed(absent=("field",)), {}, "showappl"),
        ("submit-directory", "neuron", AT_HOME, {}, "--runs /scratch/"),
        ("path-not-visible", "perlmutter", AT_HOME, {}, "--runs"),
        ("path-not-visible", "perlmutter", Observed(run_directory=("/pscratch/runs",)), FROM_HOME, "start there"),
        ("queue-unfit", "polaris", SEEN, {"queue": "prod"}, "--queue debug-scaling"),
        ("queue-unfit", "perlmutter", SEEN, {"gpus": 3, "queue": "shared"}, "3 are requested --queue"),
        ("queue-unfit", "polaris", SEEN, {"gpus": 8, "walltime_s": 700_000}, "--nodes"),
        ("queue-unfit", "polaris", SEEN, {"gpus": 40, "walltime_s": 10_801, "queue": "prod"}, "at most 10800 s"),
        ("queue-unfit", "polaris", SEEN, {"gpus": 100, "walltime_s": 21_601, "queue": "prod"}, "at most 21600 s"),
        ("queue-unfit", "polaris", SEEN, {"gpus": 8, "walltime_s": 299, "queue": "debug"}, "at least 300 s"),
        ("walltime-too-long", technion(max_walltime_s=600), SEEN, {"walltime_s": 601}, "--time"),
        ("over-budget", "technion", Observed(budget_left=15.9), {"walltime_s": 3600}, "a larger RUNNER_BUDGET"),
        ("too-many-cpus", "alpha", SEEN, {"cpus_per_gpu": 8}, "--cpus-per-gpu 6"),
        ("too-many-cpus", "alpha", SEEN, {"gpus": 7, "cpus_per_gpu": 6}, "--cpus-per-gpu 5"),
        ("too-many-cpus", "box", SEEN, {"cpus_per_gpu": 33}, "--cpus-per-gpu 32"),
        ("directive-emptied", "neuron", SEEN, {"scheduler_options": (("comment", ""),)}, "-S comment=VALUE"),
        ("site-unfinished", "technion", Observed(left_open=("node.count",)), {}, "site check"),
        ("no-bf16-on-gpu", "neuron", SEEN, {"gpu_type": "v100", "arguments": ("--precision", "amp-bf16")}, "7.0"),
        *(("gpus-hidden", technion(scheduler_settings={"step": {option: "1"}}), SEEN, {}, option)
          for option in ("gpu-bind", "gpus-per-task", "ntasks-per-gpu", "tres-bind")),
        *(("other-world", "technion", SEEN, starts(words), f"{name} out, as a rank is started for each GPU{line}")
          for words, name, line in (
            ("horovodrun -np 16 -H a:8,b:8 python3 -u train.py", "horovodrun", ": -- python3 -u train.py"),
            ("srun -n 16 python train.py --lr 1", "srun", ": -- python train.py --lr 1"),
            ("python -W ignore /opt/bin/mpirun -np 16 ./solver", "mpirun", ""))),
        ("other-world", "technion", SEEN, starts("accelerate launch train.py", wireup="rendezvous"),
         "-- python train.py; leave --wireup out"),
        ("other-world", PMIX, SEEN, starts("torchrun --nnodes 16 --nproc-per-node 1 t.py", wireup="pmix"),
         "each would form a world of its own"),
        ("other-world", "technion", SEEN, starts("torchrun --nnodes 2 t.py", wireup="rendezvous"),
         "the job has 16 ranks"),
        ("other-world", "technion", SEEN, starts("torchrun t.py", world=4), "a world of 16, and --world asks for 4"),
        ("other-world", "technion", SEEN, starts("uv run torchrun --stand --nproc 8 t.py"), "--standalone is for one"),
        ("other-world", "local", SEEN, starts("torchrun --nproc-per-node auto t.py", gpus=1),
         "is auto, and the job has 1 GPU on each"),
        ("other-world", "technion", SEEN, starts("bash -c 'CUDA_VISIBLE_DEVICES=0,1 torchrun t.py'"),
         "CUDA_VISIBLE_DEVICES shows it 2 GPUs"),
        ("other-world", "technion", SEEN, starts("env CUDA_VISIBLE_DEVICES=0 torchrun t.py"), "shows it 1 GPU"),
        ("other-world", "technion", SEEN, starts("""bash -c 'exec "$0" "$@"' torchrun t.py"""), "by its name alone"),
        ("other-world", "technion", SEEN, starts("env -i bash -c 'torchrun t.py'"), "by its name alone"),
        ("other-world", "technion", SEEN, starts("bash -c 'unset -f torchrun; torchrun t.py'"), "by its name alone"),
        ("other-world", "technion", SEEN, starts("torchrun train.py", wireup="torchrun"),
         "each would form a world of its own"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_fix_and_can_be_forced(
    code: str, site: str | Site, observed: Observed, asked: dict[str, Any], says: str
) -> None:
    refusal = findings_of(site, observed, **asked)[code]
    assert refusal.severity == "refuse"
    assert says in f"{refusal.what} {refusal.fix}"
    forced = findings_of(site, observed, force=(code,), **asked)[code]
    assert (forced.severity, forced.forced) == ("warn", True)


@pytest.mark.parametrize(
    ("code", "site", "observed", "asked", "says"),
    [
        ("queue-risk", "polaris", SEEN, {"gpus": 16, "walltime_s": 7200}, "killed there at any time"),
        ("queue-unknown", "polaris", SEEN, {"queue": "prode"}, "nothing, if it exists; else did you mean 'prod'?"),
        ("queue-unknown", "polaris", SEEN, {"queue": "prode"}, "(queues: debug, debug-scaling, prod, preempt"),
        ("gpus-left-over", "technion", SEEN, {"gpus": 3, "nodes": 2}, "4 GPUs are allocated on 2 nodes, and 3"),
        ("gpus-left-over", "technion", SEEN, {"gpus": 13}, "16 GPUs are allocated on 2 nodes, and 13 are used"),
        ("gpus-left-over", "technion", SEEN, {"gpus": 1, "scheduler_options": (("exclusive", ""),)},
         "8 GPUs are allocated"),
        ("gpus-left-over", "polaris", SEEN, {"gpus": 3}, "4 GPUs are allocated on 1 node, and 3 are used"),
        ("gpus-left-over", "perlmutter", SEEN, {"gpus": 3}, "4 GPUs are allocated on 1 node, and 3 are used"),
        ("gpus-left-over", "perlmutter", SEEN, {"gpus": 1, "queue": "debug"}, "4 GPUs are allocated on 1 node"),
        ("mount-with-blank", "box", Observed(run_directory=("/runs",)), with_data("pyxis", "/data/my sets"), "my sets"),
        ("mount-with-blank", "box", BLANK, with_data("pyxis", "/data/my"), "/my runs"),
        ("too-many-cpus", "technion", SEEN, {"cpus_per_gpu": 32}, "32"),  # hardware threads may be on or off
        ("mig-slices", "slurm", SEEN, {"gpus": 2, "gpu_type": "a100_1g.5gb"}, "a100_1g.5gb"),
        ("user-packages", "neuron", HOME, of_home("/home/e", "/home/e"), "PYTHONNOUSERSITE=1"),
        ("user-packages", "neuron", HOME, of_home("/home", "/home/"), "~/.local"),
        ("caches-not-visible", "technion", CACHES, SCRATCH, "(/home/me/.cache/huggingface)"),
        ("caches-not-visible", "technion", CACHES, SCRATCH, "--mount /home/me/.cache:/home/me/.cache"),
        ("argument-not-visible", "technion", DATA, SCRATCH, "--mount /home/me/data:/home/me/data"),
        ("argument-not-visible", "technion", DATA, FROM_DATA, "as seen from this directory: data/x.pt"),
        ("environment-not-used", "technion", Observed(unused_environment="/home/me/env"), {}, "--runtime native"),
        ("meter-not-judged", "technion", SEEN, starts("torchrun t.py", meter=True), "no torchrun in"),
        ("image-of-another-user", "technion", Observed(image_owner="mallory"), {}, "put into the store by mallory"),
        ("rendezvous-at-scale", "technion", SEEN, {"gpus": 128}, "about 2.8 s"),
        ("rendezvous-at-scale", "technion", SEEN, {"gpus": 128}, "4-8 ms"),
        ("wireup-unproven", PMIX, SEEN, {"wireup": "pmix", "image": OPEN_MPI}, "--wireup rendezvous"),
        ("unknown-starter", "technion", SEEN, starts("docker run x"), "16 starts, one for each GPU"),
        ("unknown-starter", "technion", SEEN, starts(ONE_OF_TWO), "if this runs, --nnodes is 1"),
        ("unknown-starter", "technion", SEEN, starts("bash -c 'torchrun p.py; $(cat program) t.py'"), "$(cat program)"),
        ("unknown-starter", "technion", SEEN, starts("bash -c 'torchrun --nproc-per-node $(cat n) t.py'"),
         "`--nproc-per-node $(cat n)` says, which only a run tells"),
        ("unknown-starter", "technion", SEEN, starts("bash -c 'torchrun t.py; torchrun --nproc-per-node 1 e.py'"),
         "--nproc-per-node is 1"),
    ],
)  # fmt: skip
def test_a_warning_is_given_where_it_holds(
    code: str, site: str | Site, observed: Observed, asked: dict[str, Any], says: str
) -> None:
    warning = findings_of(site, observed, **asked)[code]
    assert warning.severity == "warn"
    assert says in f"{warning.what} {warning.fix}"


@pytest.mark.parametrize(
    ("code", "site", "observed", "asked"),
    [
        *(
            (code, "technion", SEEN, starts(f"bash -c '{text}'"))
            for code in ("other-world", "unknown-starter")
            for text in (
                "torchrun --nnodes ${NNODES:-1} --node_rank ${NODE_RANK:-0} --master_addr ${MASTER_ADDR:-::1} t.py",
                'eval "$(conda shell.bash hook)"; torchrun t.py',
                "torchrun --nproc-per-node $(nvidia-smi -L | wc -l) t.py",
                "export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}; torchrun t.py",
            )
        ),
        ("queue-unknown", "technion", SEEN, {"queue": "any"}),  # where none is known, none is unknown
        ("gpus-left-over", "perlmutter", SEEN, {"gpus": 2}),
        ("gpus-left-over", "technion", SEEN, {"gpus": 16}),
        ("gpus-left-over", "technion", SEEN, {"gpus": 3}),
        ("gpus-left-over", "technion", SEEN, {"gpus": 8, "wireup": "own"}),
        ("mount-with-blank", "box", Observed(run_directory=("/runs",)), with_data("pyxis", "/data/my")),
        ("mount-with-blank", "box", BLANK, with_data("charliecloud", "/my sets")),
        ("too-many-cpus", "technion", SEEN, {"cpus_per_gpu": 16}),
        ("mig-slices", "slurm", SEEN, {"gpus": 1, "gpu_type": "a100_1g.5gb"}),
        ("mig-slices", "slurm", SEEN, {"gpus": 2, "gpu_type": "a100"}),
        ("user-packages", "neuron", HOME, of_home("/home/e", "/home/e", "")),
        ("user-packages", "neuron", HOME, of_home("/home/e/data", "/home/e/data")),
        ("user-packages", "neuron", HOME, of_home("/home/e/.local/lib", "/x")),
        ("caches-not-visible", "technion", SEEN, SCRATCH),
        ("argument-not-visible", "technion", DATA, {"mounts": (Mount("/x", "/home/me/data", read_only=True),)}),
        ("argument-not-visible", "neuron", DATA, {"gpus": 8, "runtime": "native"}),
        ("caches-not-visible", "neuron", CACHES, {"gpus": 8, "runtime": "native"}),
        ("rendezvous-at-scale", "technion", SEEN, {"gpus": 64}),
        ("wireup-unproven", msgspec.structs.replace(PMIX, proven={"pyxis/pmix": "2026-11-21"}), SEEN,
         {"wireup": "pmix", "image": OPEN_MPI}),
        # Memory of a job takes the place of memory that the site requires.
        ("directive-emptied", technion(scheduler_settings={"directives": {"mem-per-cpu": "4G"}}), SEEN,
         {"scheduler_options": (("mem", "100G"),)}),
        ("path-not-visible", "perlmutter", Observed(run_directory=("/u/link", "/pscratch/runs")), SHOWN),
        ("path-not-visible", "perlmutter", AT_HOME, {"runtime": "podman-hpc"}),
        ("other-world", "technion", SEEN, starts("horovodrun -np 8 python train.py", gpus=8)),
        ("other-world", "technion", SEEN, starts("horovodrun -np 8 python train.py", world="none")),
        ("other-world", "technion", SEEN, starts("torchrun --standalone t.py", world=8)),
        ("other-world", "technion", SEEN, starts("torchrun --nnodes 16 --nproc-per-node 1 t.py", wireup="torchrun")),
        ("other-world", "technion", SEEN, starts("torchrun --standalone --nproc-per-node=4 train.py", gpus=4)),
        *(("other-world", "technion", SEEN, starts(words)) for words in (
            "/opt/bin/torchrun train.py --nnodes 3", "env",
            "python -m torch.distributed.run --nnodes=1:2 --nproc_per_node gpu -m pkg")),
    ],
)  # fmt: skip
def test_there_is_no_finding_where_it_does_not_hold(
    code: str, site: str | Site, observed: Observed, asked: dict[str, Any]
) -> None:
    assert code not in findings_of(site, observed, **asked)


def test_a_code_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'queue-unfit'"):
        findings_of(force=("queue-unft",))


def test_a_check_registers_itself_and_may_refuse_with_the_codes_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    own = list(rules())
    monkeypatch.setattr(registry, "_RULES", own)
    monkeypatch.setattr(registry, "rules", lambda: own)

    @rule("too-late")
    def check_clock(case: Case) -> Iterator[Finding]:
        yield Finding("too-late" if case.plan.gpus == 2 else "too-early", "refuse", "it is late", "sleep")

    assert "too-late" in codes()
    assert findings_of(gpus=2)["too-late"].severity == "refuse"
    assert findings_of(gpus=2, force=("too-late",))["too-late"].forced
    with pytest.raises(AssertionError, match="check_clock refuses with 'too-early'"):
        findings_of(gpus=4)


@pytest.mark.parametrize(
    ("site", "request_", "queue"),
    [
        *(("polaris", {"gpus": 4 * nodes, "walltime_s": walltime_s}, queue) for nodes, walltime_s, queue in (
            (1, 600, "debug"), (4, 600, "debug-scaling"), (10, 7200, "prod"), (4, 7200, "preemptable"),
            (4, 300_000, "capacity"), (12, 600, "prod"))),
        *(("perlmutter", {"gpus": gpus}, queue) for gpus, queue in (
            (1, "shared"), (2, "shared"), (3, "regular"), (16, "regular"))),
        ("perlmutter", {"gpus": 16, "queue": "debug"}, "debug"),
    ],
)  # fmt: skip
def test_the_queue_is_the_first_that_fits(site: str, request_: dict[str, Any], queue: str) -> None:
    """A part of a node goes to the queue for parts, where there is one."""
    planned = plan(PROGRAM, read_site(site), Request(**request_), IMAGE)
    assert planned.queue == queue
    assert not refuses(check(planned, read_site(site), SEEN))


def test_what_the_containers_of_a_site_show_needs_no_mount_point() -> None:
    mounts = (Mount("/pscratch/x", "/pscratch/x"),)
    request = Request(gpus=16, directory="/pscratch/sd/e/elvis/src", program=("python",), mounts=mounts)
    command = runtime("shifter").step(plan(PROGRAM, read_site("perlmutter"), request, IMAGE)).command
    assert not [word for word in command if isinstance(word[0], Text) and word[0].value.startswith("--volume")]
    assert (Text("--workdir="), Text("/pscratch/sd/e/elvis/src")) in command


@pytest.mark.parametrize(
    "program",
    [("nsys", "profile", "python3", "train.py"),
     ("sh", "-c", '[ "$RANK" = 0 ] && exec /opt/bin/nsys profile -o /results/rank-0 "$@"; exec "$@"', "sh", "python3")],
)  # fmt: skip
def test_a_figure_under_a_profiler_is_a_demonstration(program: tuple[str, ...]) -> None:
    made = plan(msgspec.structs.replace(PROGRAM, program=program), technion(), Request(gpus=16), IMAGE)
    assert made.demonstration == "profiled by nsys, which costs time"
