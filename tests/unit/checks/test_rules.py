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
from runner.model.request import Mount, Recipe, Request
from runner.model.site import MpiFacts
from runner.model.step import Text
from runner.planning.plan import plan
from runner.recipes.loader import recipe_of
from runner.sites.loader import read_site

RECIPE = Recipe(name="r", description="", image="i", program=("p",))
NOTHING_WRONG = Observed()
IMAGE = PlannedImage("registry.example/i:1", "sha256:ab", "/store/x")


def findings_of(
    site: str = "technion", observed: Observed = NOTHING_WRONG, force: tuple[str, ...] = (), **asked: Any
) -> dict[str, Finding]:
    facts = read_site(site)
    planned = plan(RECIPE, facts, Request(**({"gpus": 16} | asked)), IMAGE)
    return {finding.code: finding for finding in check(planned, facts, observed, force)}


@pytest.mark.parametrize("site", ["technion", "box", "perlmutter", "alpha", "neuron", "polaris"])
def test_an_ordinary_request_is_not_refused_anywhere(site: str) -> None:
    observed = Observed(run_directory=("/lustre/runs", "/scratch/{user}/runs", "/pscratch/runs"))
    assert not refuses(tuple(findings_of(site, observed).values()))


FROM_HOME = {"directory": "/home/e/src", "program": ("true",)}


@pytest.mark.parametrize(
    ("code", "site", "observed", "asked", "says"),
    [
        ("image-unusable", "technion", Observed(image_problem="gone", image_fix="convert it"), {}, "convert it"),
        ("mount-source-missing", "technion", Observed(missing_sources=("/data",)), {}, "/data"),
        ("run-directory-unmountable", "technion", Observed(run_directory_problem="a comma"), {}, "a comma"),
        ("runtime-not-at-site", "technion", Observed(), {"runtime": "shifter"}, "pyxis"),
        ("account-missing", "polaris", Observed(absent=("account",)), {}, "--account"),
        ("project-missing", "polaris", Observed(absent=("project",)), {}, "--project"),
        ("environment-lacks", "neuron", Observed(environment_problem="no torch"), {}, "no torch"),
        ("plugin-missing", "technion", Observed(plugin_problem="none", plugin_fix="--runtime enroot"), {}, "enroot"),
        ("scratch-missing", "polaris", Observed(absent=("scratch",)), {}, "--scratch"),
        ("field-missing", "neuron", Observed(absent=("field",)), {}, "showque"),
        ("submit-directory", "neuron", Observed(run_directory=("/home/e/runs",)), {}, "--runs /scratch/"),
        ("path-not-visible", "perlmutter", Observed(run_directory=("/home/e/runs",)), {}, "--runs"),
        ("path-not-visible", "perlmutter", Observed(run_directory=("/pscratch/runs",)), FROM_HOME, "start there"),
        ("queue-unfit", "polaris", Observed(), {"queue": "prod"}, "--queue debug-scaling"),
        (
            "queue-unfit",
            "perlmutter",
            Observed(),
            {"gpus": 3, "queue": "shared"},
            "3 are requested --queue",
        ),
        ("queue-unfit", "polaris", Observed(), {"gpus": 8, "walltime_s": 700_000}, "--nodes"),
        ("too-many-cpus", "alpha", Observed(), {"cpus_per_gpu": 8}, "--cpus-per-gpu 6"),
        ("too-many-cpus", "box", Observed(), {"cpus_per_gpu": 33}, "--cpus-per-gpu 32"),
        ("directive-emptied", "neuron", Observed(), {"scheduler_options": (("comment", ""),)}, "-S comment=VALUE"),
        ("site-unfinished", "technion", Observed(left_open=("node.count",)), {}, "site check"),
        ("no-bf16-on-gpu", "neuron", Observed(), {"gpu_type": "v100", "arguments": ("--precision", "amp-bf16")}, "7.0"),
    ],
)
def test_a_refusal_names_the_fix_and_can_be_forced(
    code: str, site: str, observed: Observed, asked: dict[str, Any], says: str
) -> None:
    refusal = findings_of(site, observed, **asked)[code]
    assert refusal.severity == "refuse"
    assert says in f"{refusal.what} {refusal.fix}"
    forced = findings_of(site, observed, force=(code,), **asked)[code]
    assert (forced.severity, forced.forced) == ("warn", True)


EXCLUSIVE = (("exclusive", ""),)
HOME = Observed(home=("/home/e",), run_directory=("/scratch/{user}/runs",))
CACHES = Observed(caches=("/home/me/.cache/huggingface", "/scratch/hf"))
SCRATCH = (Mount("/scratch", "/scratch"),)


def of_home(source: str, target: str, allowed: str = "0") -> dict[str, Any]:
    env = (("PYTHONNOUSERSITE", allowed),) if allowed else ()
    return {"gpus": 8, "runtime": "singularity", "mounts": (Mount(source, target),), "env": env}


def with_data(runtime: str, source: str) -> dict[str, Any]:
    return {"runtime": runtime, "mounts": (Mount(source, "/data"),)}


@pytest.mark.parametrize(
    ("code", "site", "observed", "asked", "says"),
    [
        ("queue-unknown", "polaris", Observed(), {"queue": "prode"}, "prod'?"),
        ("queue-unknown", "polaris", Observed(), {"queue": "prode"}, "(queues: debug, debug-scaling, prod, preempt"),
        ("queue-unknown", "technion", Observed(), {"queue": "any"}, None),  # where none is known, none is unknown
        ("site-defaults", "technion", Observed(defaulted=("needs", "mpi.pmi")), {}, "needs, mpi.pmi"),
        ("gpus-left-over", "technion", Observed(), {"gpus": 3, "nodes": 2}, "4 GPUs are allocated on 2 nodes, and 3"),
        ("gpus-left-over", "technion", Observed(), {"gpus": 13}, "16 GPUs are allocated on 2 nodes, and 13 are used"),
        ("gpus-left-over", "technion", Observed(), {"gpus": 1, "scheduler_options": EXCLUSIVE}, "8 GPUs are allocated"),
        ("gpus-left-over", "polaris", Observed(), {"gpus": 3}, "4 GPUs are allocated on 1 node, and 3 are used"),
        ("gpus-left-over", "perlmutter", Observed(), {"gpus": 3}, "4 GPUs are allocated on 1 node, and 3 are used"),
        ("gpus-left-over", "perlmutter", Observed(), {"gpus": 1, "queue": "debug"}, "4 GPUs are allocated on 1 node"),
        ("gpus-left-over", "perlmutter", Observed(), {"gpus": 2}, None),
        ("gpus-left-over", "technion", Observed(), {"gpus": 16}, None),
        ("gpus-left-over", "technion", Observed(), {"gpus": 3}, None),
        ("gpus-left-over", "technion", Observed(), {"gpus": 8, "wireup": "own"}, None),
        ("mount-with-blank", "box", Observed(run_directory=("/runs",)), with_data("pyxis", "/data/my sets"), "my sets"),
        ("mount-with-blank", "box", Observed(run_directory=("/my runs",)), with_data("pyxis", "/data/my"), "/my runs"),
        ("mount-with-blank", "box", Observed(run_directory=("/runs",)), with_data("pyxis", "/data/my"), None),
        ("mount-with-blank", "box", Observed(run_directory=("/a b",)), with_data("charliecloud", "/my sets"), None),
        ("too-many-cpus", "technion", Observed(), {"cpus_per_gpu": 32}, "32"),  # hardware threads may be on or off
        ("too-many-cpus", "technion", Observed(), {"cpus_per_gpu": 16}, None),
        ("mig-slices", "slurm", Observed(), {"gpus": 2, "gpu_type": "a100_1g.5gb"}, "a100_1g.5gb"),
        ("mig-slices", "slurm", Observed(), {"gpus": 1, "gpu_type": "a100_1g.5gb"}, None),
        ("mig-slices", "slurm", Observed(), {"gpus": 2, "gpu_type": "a100"}, None),
        ("user-packages", "neuron", HOME, of_home("/home/e", "/home/e"), "PYTHONNOUSERSITE=1"),
        ("user-packages", "neuron", HOME, of_home("/home", "/home/"), "~/.local"),
        ("user-packages", "neuron", HOME, of_home("/home/e", "/home/e", ""), None),
        ("user-packages", "neuron", HOME, of_home("/home/e/data", "/home/e/data"), None),
        ("user-packages", "neuron", HOME, of_home("/home/e/.local/lib", "/x"), None),
        ("caches-not-visible", "technion", CACHES, {"mounts": SCRATCH}, "(/home/me/.cache/huggingface)"),
        (
            "caches-not-visible",
            "technion",
            CACHES,
            {"mounts": SCRATCH},
            "--mount /home/me/.cache:/home/me/.cache",
        ),
        ("caches-not-visible", "technion", Observed(), {"mounts": SCRATCH}, None),
        ("caches-not-visible", "neuron", CACHES, {"gpus": 8, "runtime": "native"}, None),
        ("image-of-another-user", "technion", Observed(image_owner="mallory"), {}, "put into the store by mallory"),
        ("rendezvous-at-scale", "technion", Observed(), {"gpus": 128}, "about 2.8 s"),
        ("rendezvous-at-scale", "technion", Observed(), {"gpus": 128}, "4-8 ms"),
        ("rendezvous-at-scale", "technion", Observed(), {"gpus": 64}, None),
    ],
)
def test_a_warning_is_given_where_it_holds_and_nowhere_else(
    code: str, site: str, observed: Observed, asked: dict[str, Any], says: str | None
) -> None:
    found = findings_of(site, observed, **asked).get(code)
    assert (found is None) is (says is None)
    if found is not None and says is not None:
        assert found.severity == "warn"
        assert says in f"{found.what} {found.fix}"


def test_memory_of_a_job_takes_the_place_of_memory_that_the_site_requires() -> None:
    site = msgspec.structs.replace(read_site("technion"), scheduler_settings={"directives": {"mem-per-cpu": "4G"}})
    planned = plan(RECIPE, site, Request(gpus=16, scheduler_options=(("mem", "100G"),)), IMAGE)
    assert planned.directives == (("mem", "100G"),)
    assert "directive-emptied" not in {finding.code for finding in check(planned, site, NOTHING_WRONG)}


def test_a_time_beyond_the_sites_limit_is_refused() -> None:
    site = msgspec.structs.replace(read_site("technion"), max_walltime_s=600)
    findings = check(plan(RECIPE, site, Request(gpus=16, walltime_s=601), IMAGE), site, NOTHING_WRONG)
    assert [finding.code for finding in findings if finding.severity == "refuse"] == ["walltime-too-long"]


def test_mpi_that_was_never_proven_at_the_site_is_warned_of() -> None:
    site = msgspec.structs.replace(read_site("technion"), mpi=MpiFacts(pmi=("pmix",)))
    image = msgspec.structs.replace(IMAGE, mpi="openmpi")
    proven = msgspec.structs.replace(site, proven={"pyxis/pmix": "2026-11-21"})
    for each, warned in ((site, True), (proven, False)):
        findings = check(plan(RECIPE, each, Request(gpus=16, wireup="pmix"), image), each, NOTHING_WRONG)
        assert (("wireup-unproven", "warn") in {(found.code, found.severity) for found in findings}) is warned


def test_a_code_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        findings_of(force=("queue-unft",))
    assert "did you mean 'queue-unfit'?" in caught.value.fix


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
    planned = plan(RECIPE, read_site(site), Request(**request_), IMAGE)
    assert planned.queue == queue
    assert not refuses(check(planned, read_site(site), NOTHING_WRONG))


def test_what_the_containers_of_a_site_show_needs_no_mount_point() -> None:
    """An image that was made without the runner's directories runs there."""
    seen = Observed(run_directory=("/u/link", "/pscratch/sd/e/elvis/runs"))
    shifter = findings_of(
        "perlmutter", seen, directory="/pscratch/sd/e/elvis/src", image="nvcr.io/nvidia/pytorch:25.02-py3"
    )
    assert "path-not-visible" not in shifter
    assert "path-not-visible" not in findings_of(
        "perlmutter", Observed(run_directory=("/home/e",)), runtime="podman-hpc"
    )
    mounts = (Mount("/pscratch/x", "/pscratch/x"),)
    request = Request(gpus=16, directory="/pscratch/sd/e/elvis/src", program=("python",), mounts=mounts)
    planned = plan(RECIPE, read_site("perlmutter"), request, IMAGE)
    command = runtime("shifter").step(planned).command
    assert not [word for word in command if isinstance(word[0], Text) and word[0].value.startswith("--volume")]
    assert (Text("--workdir="), Text("/pscratch/sd/e/elvis/src")) in command


@pytest.mark.parametrize("option", ["gpu-bind", "gpus-per-task", "ntasks-per-gpu", "tres-bind"])
def test_a_step_that_hides_gpus_from_ranks_is_refused(option: str) -> None:
    site = msgspec.structs.replace(read_site("technion"), scheduler_settings={"step": {option: "1"}})
    told = check(plan(RECIPE, site, Request(gpus=16), IMAGE), site, NOTHING_WRONG)
    refused = [finding for finding in told if finding.severity == "refuse"]
    assert [(finding.code, option in finding.fix) for finding in refused] == [("gpus-hidden", True)]


def test_a_figure_under_a_profiler_is_a_demonstration() -> None:
    one_rank = '[ "$RANK" = 0 ] && exec /opt/bin/nsys profile -o /results/rank-0 "$@"; exec "$@"'
    for program in (("nsys", "profile", "python3", "train.py"), ("sh", "-c", one_rank, "sh", "python3")):
        made = plan(msgspec.structs.replace(RECIPE, program=program), read_site("technion"), Request(gpus=16), IMAGE)
        assert made.demonstration == "profiled by nsys, which costs time"


def other_world(words: str, site: str = "technion", **asked: Any) -> Finding | None:
    facts = read_site(site)
    planned = plan(recipe_of(shlex.split(words)), facts, Request(**({"gpus": 16} | asked)), IMAGE)
    return next((each for each in check(planned, facts, NOTHING_WRONG) if each.code == "other-world"), None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("accelerate launch --num_processes 16 train.py --lr 1", "-- python train.py --lr 1;"),
        ("python3 -u -m accelerate.commands.launch -m pkg.train", "-- python -m pkg.train;"),
        ("horovodrun -np 16 -H a:8,b:8 python3 -u train.py", "-- python3 -u train.py;"),
        ("python -W ignore /opt/bin/mpirun -np 16 ./solver", "leave mpirun out, as a rank is started for each GPU;"),
        ("numactl -N 0 python -Xdev -maccelerate.commands.launch train.py", "-- python train.py;"),
    ],
)
def test_a_starter_of_ranks_is_refused_with_the_line_without_it(words: str, line: str) -> None:
    found = other_world(words)
    assert found is not None
    assert line in found.fix
    assert other_world(words, wireup="own") is None


@pytest.mark.parametrize(
    ("words", "asked", "what"),
    [
        ("/opt/bin/torchrun train.py --nnodes 3", {}, None),
        ("python -m torch.distributed.run --nnodes=2 --nproc_per_node 8 -m pkg", {}, None),
        ("torchrun --standalone --nproc-per-node=4 train.py", {"gpus": 4}, None),
        *((words, {}, None) for words in ("python train.py torchrun", "python -uc torchrun", "env python - torchrun")),
        *((words, {}, None) for words in ("nice ./train --strategy deepspeed", "env A=1 ./mpirun.py", "env")),
        ("env A=1 torchrun --virtual-local-rank --nnode=1 t.py", {}, "--nnodes is 1, and the job has 2 nodes"),
        ("uv run torchrun --stand --nproc 8 t.py", {}, "--standalone is for one node"),
        ("torchrun -r 3 --nproc-per-node 4 train.py", {}, "--nproc-per-node is 4, and the job has 8 GPUs on each node"),
        ("torchrun --nproc-per-node auto t.py", {"site": "local", "gpus": 1}, "is auto, and the job has 1 GPU on each"),
        ("python -m torch.distributed.run --nnodes=1:2 train.py", {}, "--nnodes is 1:2, and the job has 2 nodes"),
        ("torchrun --standalone train.py", {}, "--standalone is for one node"),
        ("torchrun train.py", {"wireup": "torchrun"}, "each would form a world of its own"),
    ],
)
def test_torchrun_is_started_once_a_node_and_may_not_say_otherwise(
    words: str, asked: dict[str, Any], what: str | None
) -> None:
    found = other_world(words, **asked)
    assert (found is None) if what is None else (found is not None and what in found.what)
