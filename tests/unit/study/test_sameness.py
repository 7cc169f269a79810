"""No figure is made of two programs, which are left out and measured anew; launches of one allocation are compared only
where each rank had the same node, GPU, processors and ports.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run
from runner.core.errors import Exit
from runner.jobs.code_record import code_record
from runner.jobs.directory import Run
from runner.model.job import CodeRecord, CommandLine
from runner.model.plan import WORKSPACE, LaunchPlace, ListedHosts, Plan, PlannedImage
from runner.model.records import Inputs, StartRecord
from runner.model.study import StudyFacts
from runner.study import gather
from runner.study.attempts import to_start
from runner.study.directory import StudyDirectory
from runner.study.gather import list_studies
from runner.study.sameness import run_differences
from tests.support.evidence import ended, keep_verdict, leave, report, start
from tests.support.plans import PLAN
from tests.support.repositories import git, repository
from tests.support.studies import left_run, measured, on_disk, study
from tests.support.timed import RECIPE

FIRST, SECOND, THIRD = (f"g0001-full-r{repeat}" for repeat in (1, 2, 3))


@pytest.fixture
def of(tmp_path: Path) -> StudyDirectory:
    return on_disk(tmp_path, study((1,), 3))


def ran(of: StudyDirectory, key: str, program: str, rate: float = 100.0, unit: str = "images") -> Run:
    """A proven run of a launch, with a copy of its recipe's program."""
    run = left_run(of, key, measured(rate, unit=unit))
    recipe = run.path / "recipe"
    recipe.mkdir()
    (recipe / "main.py").write_text(program)
    keep_verdict(run)
    return run


def with_plan(run: Run, **changes: object) -> Run:
    plan = run.read("plan.json", Plan)
    assert plan is not None
    leave(run, "plan.json", msgspec.structs.replace(plan, **changes))
    return run


def why(found: StudyFacts) -> list[str]:
    return [each.why for each in found.launches]


def test_a_launch_of_another_program_is_in_no_figure_until_the_first_one_is_measured(of: StudyDirectory) -> None:
    for key, program, rate in ((FIRST, "a", 100.0), (SECOND, "b", 300.0), (THIRD, "a", 100.0)):
        ran(of, key, program, rate)
    found = gather.facts(of)
    assert [each.state for each in found.launches] == ["proven", "not-proven", "proven"]
    left_out = found.launches[1]
    assert left_out.why.startswith("its program (sha256 ")
    assert " is not that of the study's first launch (sha256 " in left_out.why
    assert "scale --resume` measures it anew" in left_out.why
    assert left_out.images_per_s is None
    (point,) = found.points
    assert (point.proven, found.state) == (2, "incomplete")
    assert point.images_per_s is not None
    assert point.images_per_s.value == pytest.approx(100.0)
    (listed,) = list_studies()
    assert (listed.proven, listed.state) == (2, "incomplete")
    (again,) = to_start(of.study.launches, gather.look(of).attempts, 3)
    assert again.key == SECOND

    anew = ran(of, SECOND, "a", 101.0)
    found = gather.facts(of)
    assert (found.state, found.launches[1].run, found.launches[1].attempts) == ("complete", anew.run_id, 2)
    assert to_start(of.study.launches, gather.look(of).attempts, 3) == ()
    bundled, _, _told = gather.figures(
        of.study, {each.launch.key: Run(Path(each.directory)) for each in found.launches}, None
    )
    assert bundled == found.points


@pytest.mark.parametrize("stamp", ["20200101-000000", "20990101-000000"])  # of a clock that was set back since
def test_the_earliest_proven_run_is_the_first_wherever_its_launch_stands(of: StudyDirectory, stamp: str) -> None:
    earlier = ran(of, THIRD, "a")
    path = earlier.path.rename(earlier.path.with_name(f"{stamp}-train-4"))
    of.note("never-began", THIRD, [earlier])
    of.note("launched", THIRD, [Run(path)])
    Run(path).write("verdict.json", measured(100.0))  # a seal is of one directory's name
    ran(of, FIRST, "b")
    assert [each.state for each in gather.facts(of).launches] == ["not-proven", "missing", "proven"]


def test_launches_of_one_point_have_one_command_line(tmp_path: Path) -> None:
    """The batch of another site file; a point of its own has another one by right. Secrets are hidden."""
    of = on_disk(tmp_path, study((1, 2), 2))
    words = ("python3", "main.py", "--hub-token", "hunter22", "--batch-size")
    first, second = (f"g0001-full-r{repeat}" for repeat in (1, 2))
    for key, batch in ((first, "8"), (second, "16"), ("g0002-full-r1", "32"), ("g0002-full-r2", "32")):
        with_plan(ran(of, key, "a"), program=(*words, batch))
    found = gather.facts(of)
    assert [each.state for each in found.launches].count("not-proven") == 1
    left_out = next(each for each in found.launches if each.launch.key == second)
    assert left_out.why == (
        f"its program's options are not those of {of.runs(first)[0].run_id} (--batch-size 8 -> 16): no figure is made "
        "of both; `gpu-runner scale --resume` measures it anew"
    )
    with_plan(of.runs(second)[0], program=("python3", "main.py", "--hub-token", "hunter22", "8"))
    assert "hunter22" not in "".join(why(gather.facts(of)))


def test_a_launch_that_counts_something_else_is_measured_anew(of: StudyDirectory) -> None:
    ran(of, FIRST, "a", unit="tokens")
    ran(of, SECOND, "a", unit="samples")
    assert why(gather.facts(of))[1].startswith("it counts samples, and the study's first launch")
    assert [each.key for each in to_start(of.study.launches, gather.look(of).attempts, 3)] == [SECOND, THIRD]
    (point,) = gather.facts(of).points
    assert (point.proven, gather.facts(of).launches[0].unit) == (1, "tokens")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"device_name": "NVIDIA A100"},
            "its reported device (NVIDIA A100) is not that of the study's first launch (NVID",
        ),
        (
            {"cuda_version": "12.8"},
            "its reported software (horovod 2.1.0, CUDA 12.8) is not that of the study's first l",
        ),
        ({"device_name": None, "framework_version": None}, ""),  # it recorded none
    ],
)
def test_another_device_or_framework_is_in_no_figure(of: StudyDirectory, changes: dict[str, Any], says: str) -> None:
    """Of a partition of two kinds of GPUs, and of an environment that was upgraded in between."""
    common = {"device_name": "NVIDIA H100", "framework_version": "2.1.0", "cuda_version": "11.8"}
    for key, own in ((FIRST, {}), (SECOND, changes)):
        leave(ran(of, key, "a"), "ranks/0.report.json", report(0, **(common | own)))
    assert why(gather.facts(of))[1].startswith(says)
    assert bool(why(gather.facts(of))[1]) is bool(says)


def test_launches_that_were_planned_otherwise_are_a_doubt_of_their_point(of: StudyDirectory) -> None:
    """As after a change of the site file."""
    for key, env in ((FIRST, ()), (SECOND, ()), (THIRD, (("NCCL_P2P_DISABLE", "1"),))):
        with_plan(ran(of, key, "a"), env=env)
    now = gather.facts(of)
    assert [each.words for each in now.points[0].doubts if each.code == "unequal"] == [
        "its launches differ in environment"
    ]
    assert now.state == "complete"


@pytest.mark.parametrize(("name", "words"), [("OMP_NUM_THREADS", "environment"), ("NCCL_IB_HCA", "")])
def test_sizes_that_were_planned_otherwise_are_a_doubt_of_the_efficiency(tmp_path: Path, name: str, words: str) -> None:
    """As after `--resume` in another shell; what a site sets for several nodes only differs by right."""
    of = on_disk(tmp_path, study((1, 2), 1))
    for key, env in (("g0001-full-r1", ()), ("g0002-full-r1", ((name, "1"),))):
        with_plan(ran(of, key, "a"), env=env)
    doubts = [[each.words for each in point.doubts if each.code == "unequal"] for point in gather.facts(of).points]
    assert doubts == [[], [f"efficiency: launches of its sizes differ in {words}"] if words else []]


@pytest.mark.parametrize(
    ("scheduler", "hosts", "words"),
    [
        ("local", ("a", "a", "a"), ["", ""]),
        ("local", ("a", "b", "b"), ["", "efficiency: launches of its sizes differ in machine (a, b)"]),
        ("local", ("a", "a", "b"), ["", "its launches differ in machine (a, b)"]),
        ("slurm", ("a", "b", "b"), ["", ""]),  # submitted there: it ran where there was room
        ("hosts", ("a", "b", "b"), ["", ""]),
    ],
)
def test_without_a_scheduler_another_machine_is_a_doubt(
    scheduler: str, hosts: tuple[str, ...], words: list[str], tmp_path: Path
) -> None:
    of = on_disk(tmp_path, study((1, 2), 2))
    listed = ListedHosts(("n1", "n2")) if scheduler == "hosts" else None
    for key, host in zip(("g0001-full-r1", "g0002-full-r1", "g0002-full-r2"), hosts, strict=True):
        with_plan(run := ran(of, key, "a"), scheduler=scheduler, hosts=listed)
        leave(run, "ranks/0.start.json", start(0, host=host))
    doubts = [
        "".join(each.words for each in point.doubts if each.code == "unequal") for point in gather.facts(of).points
    ]
    assert doubts == words


@pytest.mark.parametrize("sizes", [(1, 2), (2, 4)])
def test_a_single_gpu_with_another_plan_is_a_doubt_of_the_efficiency(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Also where no launch of training has one GPU, and of the smallest size that has more."""
    of = on_disk(tmp_path, study(sizes, 1, arms=("full", "solo")))
    with_plan(ran(of, "g0001-solo-r1", "a"), env=(("PAUSE", "1"),))
    for size in sizes:
        ran(of, f"g{size:04d}-full-r1", "a")
    doubts = {
        (point.gpus, point.arm): [each.words for each in point.doubts if each.code == "unequal"]
        for point in gather.facts(of).points
    }
    differ = ["efficiency: launches of its sizes differ in environment"]
    assert doubts == {(1, "solo"): []} | {(size, "full"): differ for size in sizes}


def started(run: Run, **changes: Any) -> Run:
    leave(run, "ranks/0.start.json", start(0, **changes))
    return run


def test_what_launches_ran_with_is_a_doubt(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 2), 1))
    for key, digest in (("g0001-full-r1", "1"), ("g0002-full-r1", "8")):
        ran_with = Inputs(given={"OMP_NUM_THREADS": digest}, read={"args.json": (digest, 1.0)})
        leave(ran(of, key, "a"), "ranks/0.exit.json", ended(0, program=ran_with))
    (doubt,) = (each for each in gather.facts(of).points[1].doubts if each.code == "unequal")
    assert doubt.words == (
        "efficiency: launches of its sizes differ in set of variables (OMP_NUM_THREADS), content of files that were "
        "read (args.json)"
    )


def test_a_script_in_no_repository_that_was_edited_is_another_program(of: StudyDirectory) -> None:
    for at_s, (key, digit) in enumerate(((FIRST, "1"), (SECOND, "2"))):
        started(with_plan(ran(of, key, "a"), workdir=WORKSPACE), time_s=float(at_s), program_sha256=digit * 64)
    says = "its program as it started (222222222222) is not that of the study's first launch (111111111111): no figure"
    assert why(gather.facts(of))[1].startswith(says)


def test_another_image_is_another_program(of: StudyDirectory) -> None:
    for key, digit in ((FIRST, "1"), (SECOND, "2")):
        with_plan(ran(of, key, "a"), image=PlannedImage("hvd", f"sha256:{digit * 64}", "/i.sqsh"))
    says = "its image (sha256:222222222222) is not that of the study's first launch (sha256:111111111111): no figure"
    assert why(gather.facts(of))[1].startswith(says)


@pytest.mark.parametrize(
    ("record", "differs"),
    [
        (CodeRecord(commit="b" * 40, dirty=False), "its commit (bbbbbbbbbbbb) is not that of"),
        (
            CodeRecord(commit="a" * 40, dirty=True, changed=("train.py",)),
            "it did not run with the changes since the commit (train.py) of",
        ),
        (CodeRecord(commit="a" * 40, dirty=False), ""),
        (CodeRecord(commit="b" * 40, dirty=False, sources="s"), ""),
        (CodeRecord(commit="b" * 40, dirty=False, sources="t"), "its commit ("),
        (CodeRecord(commit="a" * 40, problem="git did not answer within 10 s"), ""),
        (CodeRecord(problem="the program is in no git repository"), ""),
    ],
)
def test_a_users_program_is_known_by_its_commit(of: StudyDirectory, record: CodeRecord, differs: str) -> None:
    for key, code in ((FIRST, CodeRecord(commit="a" * 40, dirty=False, sources="s")), (SECOND, record)):
        leave(with_plan(left_run(of, key, measured(100.0)), workdir=WORKSPACE), "code.json", code)
    assert why(gather.facts(of))[1].startswith(differs)
    assert bool(why(gather.facts(of))[1]) is bool(differs)


def test_another_module_is_another_program(of: StudyDirectory) -> None:
    for key, content in ((FIRST, "1"), (SECOND, "2")):
        own = Inputs(modules={"net.py": content, f"{content}.py": "1"})
        leave(with_plan(ran(of, key, "a"), workdir=WORKSPACE), "ranks/0.exit.json", ended(0, program=own))
    says = "it did not run with the content of modules (net.py) of the study's first launch: no figure"
    assert why(gather.facts(of))[1].startswith(says)


def test_documentation_and_other_scripts_may_change_while_a_study_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = repository(tmp_path / "work", {"train.py": b"import torch\n", "README.md": b"1\n", "plot.py": b"1\n"})
    monkeypatch.chdir(top)
    line = "scale --site local --runtime native --force environment-lacks --gpus 1 --repeats 2 -- python3 train.py"
    of = on_disk(tmp_path / "runs", study((1,), 2, site="local", command=CommandLine(tuple(line.split()), str(top))))
    first = with_plan(
        left_run(of, FIRST, measured(100.0)), image=PlannedImage("", "", ""), program=(), workdir=WORKSPACE
    )
    leave(first, "code.json", code_record(("python3", "train.py"), top, with_diff=True)[0])
    keep_verdict(first)
    words = ["scale", "--resume", of.path.name, "--dry-run"]
    leave(first, "ranks/0.exit.json", ended(0, program=Inputs(modules={"train.py": "1"})))
    for name, commits, expected in (
        ("README.md", True, Exit.GOOD),
        ("plot.py", False, Exit.GOOD),  # nothing of it was imported
        ("plot.py", True, Exit.GOOD),
        ("train.py", False, Exit.REFUSED),
        ("train.py", True, Exit.REFUSED),
    ):
        (top / name).write_text("2\n")
        if commits:
            git(top, "commit", "-q", "-a", "-m", name)
        assert run(words) == expected, (name, commits)


def test_a_commit_that_any_proven_launch_read_from_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the larger size imports it, and where it is no Python."""
    top = repository(tmp_path / "work", {"train.py": b"1\n", "multi.py": b"1\n", "a.yaml": b"1\n"})
    monkeypatch.chdir(top)
    line = "scale --site local --runtime native --force environment-lacks --gpus 1,2 --repeats 2 -- python3 train.py"
    of = on_disk(tmp_path / "runs", study((1, 2), 2, site="local", command=CommandLine(tuple(line.split()), str(top))))
    for key, modules in ((FIRST, {"train.py": "1"}), ("g0002-full-r1", {"train.py": "1", "multi.py": "1"})):
        launched = left_run(of, key, measured(100.0))
        plan = {
            "tasks_per_node": (int(key[4]),),
            "image": PlannedImage("", "", ""),
            "program": (),
            "workdir": WORKSPACE,
        }
        with_plan(launched, **plan)
        leave(launched, "code.json", code_record(("python3", "train.py"), top, with_diff=True)[0])
        leave(launched, "ranks/0.exit.json", ended(0, program=Inputs(modules=modules)))
        keep_verdict(launched)
    commit = git(top, "rev-parse", "HEAD").strip()
    for name, expected in (("new.py", Exit.GOOD), ("multi.py", Exit.REFUSED), ("a.yaml", Exit.REFUSED)):
        (top / name).write_text("2\n")
        git(top, "add", "-A")
        git(top, "commit", "-q", "-m", name)
        assert run(["scale", "--resume", of.path.name, "--dry-run"]) == expected, name
        git(top, "reset", "-q", "--hard", commit)


def test_a_module_that_only_larger_sizes_import_is_a_doubt_of_them(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 2), 2))
    for key, content in ((FIRST, ""), ("g0002-full-r1", "1"), ("g0002-full-r2", "2")):
        modules = {"train.py": "1", **({"multi.py": content} if content else {})}
        leave(ran(of, key, "a"), "ranks/0.exit.json", ended(0, program=Inputs(modules=modules)))
    doubts = [[each.words for each in point.doubts if each.code == "unequal"] for point in gather.facts(of).points]
    assert doubts == [[], ["its launches differ in content of modules (multi.py)"]]


def test_a_study_does_not_go_on_with_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not even in a dry run; with the first one in place again it does."""
    recipe = tmp_path / "recipe"
    shutil.copytree(RECIPE, recipe)
    monkeypatch.chdir(tmp_path)
    line = ("scale", "--site", "local", "--recipe", str(recipe), "--runtime", "native", "--gpus", "1", "--repeats", "2")
    of = on_disk(tmp_path / "runs", study((1,), 2, site="local", command=CommandLine(line, str(tmp_path))))
    words = ["scale", "--resume", of.path.name, "--dry-run"]
    main = recipe / "main.py"
    first = main.read_text()
    main.write_text(first + "# another\n")
    assert run(words) == Exit.GOOD, "nothing is proven yet"
    with_plan(ran(of, FIRST, ""), image=PlannedImage("", "", ""), program=())
    shutil.copytree(recipe, of.runs(FIRST)[0].path / "recipe", dirs_exist_ok=True)
    keep_verdict(of.runs(FIRST)[0])
    assert run(words) == Exit.GOOD
    main.write_text(first)
    capfd.readouterr()
    assert run(words) == Exit.REFUSED
    err = capfd.readouterr().err
    assert "the program is not as it was (sha256 " in err
    assert "launches of the first one are proven, and no figure is made of two programs" in err
    assert "begin a new study" in err
    main.write_text(first + "# another\n")
    with_plan(of.runs(FIRST)[0], program=("python3", "-u", "main.py", "--model", "other"))
    assert run(words) == Exit.REFUSED
    assert "the program's options are not as they were (--model other -> sleep): launches" in capfd.readouterr().err


GPUS = [f"GPU-{number}" for number in range(8)]
CPUS = ["48-55", "56-63", "16-23", "24-31", "112-119", "120-127", "80-87", "88-95"]


def launched(
    root: Path, key: str, ranks: int, *, node: str = "dgx01", first: tuple[int, int] = (0, 0), **more: Any
) -> tuple[str, Run]:
    """A run that was a launch: its ranks on a node, each with its GPU; ``more`` replaces fields of its last rank."""
    path = root / key
    (path / "ranks").mkdir(parents=True)
    made = Run(path)
    leave(made, "plan.json", msgspec.structs.replace(PLAN, launch=LaunchPlace(*first, node_gpus=8)))
    for rank in range(ranks):
        gpu = (first[1] + rank) % 8
        start = StartRecord(
            "2", rank, ranks, rank, ranks, 0, node, True, "cuda",
            device_uuid=f"{node}-{GPUS[gpu]}", device_ports=(f"mlx5_{gpu // 2}:1",), cpus=CPUS[gpu],
        )  # fmt: skip
        last = more if rank == ranks - 1 else {}
        leave(made, f"ranks/{rank}.start.json", msgspec.structs.replace(start, **last))
    return key, made


def test_all_sizes_and_solo_launches_on_the_same_places(tmp_path: Path) -> None:
    alone = [launched(tmp_path, f"solo-{number}", 1, first=(0, number)) for number in range(8)]
    other = launched(tmp_path, "solo-of-the-second-node", 1, node="dgx02", first=(1, 3))
    sizes = [launched(tmp_path, f"full-{size}", size) for size in (1, 2, 4, 8)]
    assert run_differences(dict([*alone, other, *sizes])) == ()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"device_uuid": "GPU-x"}, "GPU 3 of node 0: UUID dgx01-GPU-3 in b8, GPU-x in a4"),
        ({"device_uuid": None}, "GPU 3 of node 0: UUID dgx01-GPU-3 in b8, none in a4"),
        ({"cpus": "0-7"}, "GPU 3 of node 0: processors 24-31 in b8, 0-7 in a4"),
        ({"device_ports": []}, "GPU 3 of node 0: ports mlx5_1:1 in b8, none in a4"),
        ({"host": "dgx07", "device_uuid": "GPU-x"}, "GPU 3 of node 0: node dgx01 in b8, dgx07 in a4"),
    ],
)
def test_what_differs_is_named_with_both_launches(tmp_path: Path, more: dict[str, Any], sentence: str) -> None:
    assert run_differences(dict([launched(tmp_path, "b8", 8), launched(tmp_path, "a4", 4, **more)])) == (sentence,)


def test_another_allocation_on_other_nodes_is_one_sentence(tmp_path: Path) -> None:
    found = run_differences(dict([launched(tmp_path, "b8", 8), launched(tmp_path, "a8", 8, node="dgx05")]))
    assert found == ("GPU 0 of node 0: node dgx01 in b8, dgx05 in a8 (and 7 more)",)


def test_launches_of_two_allocations_are_a_doubt_of_the_efficiency_also_in_a_bundle(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 2), 1, way="one-allocation"))
    for at_s, (key, node) in enumerate((("g0001-full-r1", "dgx01"), ("g0002-full-r1", "dgx05"))):
        run = with_plan(ran(of, key, "a"), launch=LaunchPlace(node_gpus=8))
        started(run, node_name=node, time_s=1e9 + at_s)
    now = gather.facts(of)
    first = "efficiency: one GPU alone is the first of them, and others may be faster or slower: --arms solo runs each"
    says = "efficiency: the launches differ: GPU 0 of node 0: node dgx01 in g0001-full-r1, dgx05 in g0002-full-r1"
    assert [[each.words for each in point.doubts if each.code == "unequal"] for point in now.points] == [
        [],
        [first, says],
    ]
    proven = {each.launch.key: Run(Path(each.directory)) for each in now.launches}
    assert gather.figures(of.study, proven, None)[0] == now.points


def test_ranks_that_were_not_bound_share_all_processors(tmp_path: Path) -> None:
    """A rank alone has the whole node then, and one of eight an eighth: that is no equal base."""
    every: dict[str, Any] = {"cpus": "0-127"}
    runs = [launched(tmp_path, "b1", 1, **every), launched(tmp_path, "a2", 2, **every)]
    first = tmp_path / "a2/ranks/0.start.json"
    first.write_text(json.dumps(json.loads(first.read_text()) | every))
    assert run_differences(dict(runs)) == ("GPU 0 of node 0: ranks that share its processors: 1 in b1, 2 in a2",)
