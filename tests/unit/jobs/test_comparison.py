"""What differs between runs is named, and for each fact the questions that it decides."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.jobs.code_facts import code_facts
from runner.jobs.comparison import (
    FACTS,
    Ran,
    batch_of,
    beside_each_other,
    copy_among,
    differences,
    facts_for,
    first_difference,
    ran_with,
    unlike,
)
from runner.jobs.differences import Difference, code_differences, plan_differences, recipe_difference, run_differences
from runner.jobs.directory import Run
from runner.jobs.inputs import RanWith
from runner.jobs.snapshot_copy import CopiedFiles
from runner.model.figure import figure_of
from runner.model.job import CodeRecord, CommandLine
from runner.model.plan import PlannedImage, Starter
from runner.model.records import Inputs
from runner.model.request import Mount
from runner.model.verdict import Verdict
from tests.support.cases import for_each
from tests.support.evidence import report, start
from tests.support.plans import PLAN

changed = msgspec.structs.replace


def test_decisions_images_and_variables() -> None:
    second = changed(
        PLAN,
        tasks_per_node=(4,),
        mounts=(Mount("/a", "/b", True),),
        program=("p", "--password", "planted"),
        starters=(Starter("p", ("--password", "planted")),),
        unknown_starters=(Starter("q", ("--password", "planted")),),
        scheduler_settings={"export": "nil"},
        image=PlannedImage("i@sha256:00", "sha256:00", "/other.sqsh"),
        env=(("HF_TOKEN", "planted"), ("LR", "1")),
        unset=("X",),
    )
    first = changed(PLAN, env=(("HF_TOKEN", "also planted"),))
    assert plan_differences(first, first) == ()
    assert plan_differences(first, second) == (
        Difference("plan", "tasks_per_node", "2, 2", "4"),
        Difference("plan", "mounts", "none", "/a:/b:ro"),
        Difference("plan", "program", "p", "p --password '***'"),
        Difference("plan", "slurm.export", "none", "nil"),
        Difference("image", "file", "/i.sqsh", "/other.sqsh"),
        Difference("image", "digest", "none", "sha256:00"),
        Difference("environment", "HF_TOKEN", "***", "*** (another value)"),
        Difference("environment", "LR", "none", "1"),
        Difference("environment", "X", "none", "taken away"),
    )


def run_of(path: Path, commit: str, diff: str, outcome: str = "ran") -> Run:
    path.mkdir()
    run = Run(path)
    run.write("plan.json", PLAN)
    run.write("command.json", CommandLine(("submit", "--gpus", "4"), "/d"))
    run.write("code.json", CodeRecord("/r", commit, "main", True, ("a.py",), diff_kept=True))
    run.write("provenance.json", {"runner": "1", "python": "3"})
    for name, content in (("code.diff", diff), ("job.sh", "x")):
        (path / name).write_text(content)
    run.write("verdict.json", Verdict(outcome="ran" if outcome == "ran" else "failed", reasons=("why",)))
    return run


def test_runs_differ_in_code_and_verdict(tmp_path: Path) -> None:
    one, same = run_of(tmp_path / "1", "c1", "d1\n"), run_of(tmp_path / "2", "c1", "d1\n")
    assert run_differences(one, same) == ()
    assert code_differences(one, CodeRecord("/r", "c1", "main", True, ("a.py",)), "d1\n") == ()
    other = run_of(tmp_path / "3", "c1", "d2\nd3\n", "failed")
    (other.path / "job.sh").write_text("y")
    found = {(each.area, each.key): (each.first, each.second) for each in run_differences(one, other)}
    assert found.pop(("code", "content of the changes"))[0].startswith("1 lines, sha256 ")
    assert found == {
        ("script", "job.sh"): (str(one.path / "job.sh"), str(other.path / "job.sh")),
        ("verdict", "outcome"): ("ran", "failed"),
    }
    (other.path / "code.json").unlink()
    keys = {each.key for each in run_differences(one, other) if each.second == "not recorded"}
    assert keys == {"repository", "commit", "branch", "uncommitted changes"}


def test_a_recipe_that_has_changed_since_is_a_difference(tmp_path: Path) -> None:
    run, recipe = run_of(tmp_path / "1", "c1", ""), tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "main.py").write_text("train()\n")
    assert recipe_difference(run, recipe) == (), "a program without a recipe"
    shutil.copytree(recipe, run.path / "recipe")
    (recipe / "notes.txt").write_text("left by the program itself")
    assert recipe_difference(run, recipe) == recipe_difference(run, None) == ()
    (recipe / "main.py").write_text("train()  # otherwise\n")
    (found,) = recipe_difference(run, recipe)
    assert (found.area, found.key) == ("code", "program")


def with_verdict(**of_verdict: Any) -> dict[str, Any]:
    return {"figure": figure_of(Verdict("measured", images_per_s=400.0, **of_verdict))}


PROGRAM = ("python3", "main.py", "--model", "resnet50", "--precision=fp32")
READ = {"a.json": ("text 1", 50.0), "b.bin": ("1", 50.0), "state.json": ("text 1", 50.0)}
INSTALLED = {"torch": {"nn": "text 1", "fx": "text 1"}, "big": {"a": "9 state 1", "b": "9 state 1"}}
SOURCES = {"job.sh": ("1", False), "made.sh": ("", True), "again.sh": ("1", True)}
RAN_WITH = RanWith(
    given={"OMP_NUM_THREADS": frozenset("1"), "NCCL_IB_HCA": frozenset("1"), "OWN": frozenset("01")},
    variables={"DEPTH": frozenset("1")},
    cpus=frozenset((8,)),
    first=Inputs(
        read=READ,
        written=("state.json",),
        modules={"net.py": "1", "/v1/layers.py": "1"},
        installed=INSTALLED,
        sources=SOURCES,
    ),
    began_s=100.0,
    ended_s=200.0,
)


LATER = {"began_s": 300.0, "ended_s": 400.0}


CACHED = {**READ, "cache.json": ("text 1", 150.0), "cache.bin": ("", 150.0)}  # by the first


def with_inputs(**own: Any) -> dict[str, Any]:
    of_first = {name: own.pop(name) for name in ("read", "written", "modules", "installed", "sources") if name in own}
    first = msgspec.structs.replace(RAN_WITH.first, **of_first)
    return {"ran_with": dataclasses.replace(RAN_WITH, first=first, **own)}


ONE = Ran(
    plan=msgspec.structs.replace(PLAN, program=PROGRAM, recipe="r", tasks_per_node=(2, 2), gpus_per_node=2),
    batch=10,
    device_name="NVIDIA V100",
    **with_verdict(),
    code={
        "software": "horovod 2.1.0",
        "program": "sha256 a",
        "commit": "c0ffee",
        "files": "a",
    },
    changes={"net.py": "1", "out/results.csv": "1"},
    trained={"modules": "1", "inputs": "", "mean size of a sample": "10", "forward passes of a step": "1"},
    ran_with=RAN_WITH,
    machine="a",
)
# What differs -> the keys of all facts that tell it.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "recipe": ({"recipe": "another"}, "recipe"),
    "program of no recipe": ({"recipe": "", "program": ("python3", "-u", "-m", "x.train")},
                             "recipe program model precision command"),
    "model": ({"program": ("python3", "main.py", "--model", "vgg16", "--precision=fp32")}, "model command"),
    "precision": ({"program": (*PROGRAM[:-1], "--precision", "bf16")}, "precision command"),
    "image size": ({"program": (*PROGRAM, "--image-size", "299")}, "image-size command"),
    "batch": ({"batch": 20}, "batch"),
    "nodes": ({"tasks_per_node": (2, 1)}, "gpus placement"),
    "type of GPU": ({"gpu_type": "v100"}, "device setup"),
    "GPUs of a mixed partition": ({"device_name": "NVIDIA H100"}, "reported-device"),
    "site": ({"site": "elsewhere"}, "site"),
    "arm": ({"arms": ("uncoupled",)}, "arm"),
    "unit": (with_verdict(unit="tokens"), "unit"),
    "synchronisation": (with_verdict(synchronisation="not-examined"), "proof"),
    "claim": (with_verdict(demonstration="CPU"), "claim"),
    "image": ({"image": PlannedImage("i", "sha256:other", "/i")}, "image"),
    "file of an image, made again": ({"image": msgspec.structs.replace(PLAN.image, size_bytes=7)}, "image"),
    "variable": ({"env": (("NCCL_ALGO", "Ring"),)}, "env own-env"),
    "variable of the fabric": ({"env": (("NCCL_IB_HCA", "mlx5"),)}, "env"),
    "variable taken away": ({"unset": ("NCCL_ALGO",)}, "env own-env"),
    "deeper model": ({"trained": {"modules": "2", "inputs": "1"}}, "trained"),
    "longer texts": ({"trained": {"mean size of a sample": "11.1"}}, "trained"),
    "smaller passes": ({"trained": {"forward passes of a step": "2"}}, "trained"),
    "passes that cannot be read": ({"trained": {"forward passes of a step": "x"}}, "trained"),
    "variable of the process": (with_inputs(variables={"DEPTH": frozenset("2")}), "variables given"),
    "fabric": (with_inputs(given={**RAN_WITH.given, "NCCL_IB_HCA": frozenset("2")}), "given"),
    "variable of the shell": (with_inputs(given={**RAN_WITH.given, "HOROVOD_CYCLE_TIME": frozenset("1")}), "given"),
    "processors of a rank": (with_inputs(cpus=frozenset((8, 4))), "processors"),
    "another checkout of an own package": (with_inputs(modules={"/v2/layers.py": "2"}), "modules"),
    "package that was added": (with_inputs(installed={**INSTALLED, "fast": {"a": "1"}, "*": {"0": "2"}}), "packages"),
    "settings among data": (with_inputs(read={**READ, "x.yaml": ("text 2", 50.0), **{
        f"{number}.txt": ("text 2", 50.0) for number in range(9)}}), "read own-read"),
    "module that was added meanwhile": (with_inputs(read={**READ, "a.py": ("text 2", 150.0)}, **LATER), "read"),
    "module": (with_inputs(modules={"net.py": "2"}), "modules"),
    "package": (with_inputs(installed={"torch": {"nn": "text 2", "fx": "text 1"}}), "packages"),
    "size of a module": (with_inputs(installed={"big": {"a": "8 state 1", "b": "9 state 1"}}), "packages"),
    "edited module": (with_inputs(installed={"big": {"a": "9 state 2", "b": "9 state 1"}}), "packages"),
    "file that was read": (with_inputs(read={**READ, "a.json": ("text 2", 50.0)}), "read own-read"),
    "binary": (with_inputs(read={**READ, "b.bin": ("2", 50.0)}), "read own-read"),
    "file that the other wrote": (with_inputs(read={**READ, "state.json": ("text 2", 90.0)}, written=()),
                                  "read own-read"),
    "file that a wrapper made": (with_inputs(read={**READ, "state.json": ("text 2", 110.0)}, written=()), "read"),
    "file that was added since": (with_inputs(read={**READ, "c.yaml": ("text 2", 150.0)}, **LATER), "read own-read"),
    "file that was added before": (with_inputs(read={**READ, "/c": ("text 2", 40.0)}), "read own-read"),
    "weights that a wrapper made": (with_inputs(read={**READ, "b.bin": ("2", 110.0)}), "read own-read"),
    "module that was added": (with_inputs(read={**READ, "local.py": ("text 2", 40.0)}), "read"),
    "module of a child": (with_inputs(read={**READ, "eval.py": ("text 2", 50.0)}), "read"),
    "file that was removed": (with_inputs(read={"b.bin": ("1", 50.0)}), "read own-read"),
    "file that the first alone read, of no cache": (with_inputs(read={**READ, "in.txt": ("text 2", 50.0)}), "read"),
    "settings that one alone read": (with_inputs(read={**CACHED, "in.yaml": ("text 2", 50.0)}), "read own-read"),
    "modules": ({"load": (("module", "load", "cuda/12"),)}, "setup own-setup"),
    "transport": ({"transport": "sockets"}, "setup"),
    "processors": ({"cpus_per_task": 9}, "setup"),
    "machine": ({"machine": "b"}, "machine"),
    "machine that is not known": ({"machine": ""}, ""),
    "queue": ({"queue": "shared"}, "setup"),
    "options of the runtime": ({"runtime_options": ("--fakeroot",)}, "setup own-setup"),
    "binding": ({"bind": "none"}, "setup own-setup"),
    "runtime": ({"runtime": "another"}, "setup own-setup"),
    "framework": ({"code": {**ONE.code, "software": "horovod 2.7.0"}}, "software"),
    "copied code": ({"code": {**ONE.code, "program": "sha256 b"}}, "copy"),
    "commit": ({"code": {**ONE.code, "commit": "f00d"}}, "commit"),
    "changes": ({"changes": {"net.py": "2"}}, "changes"),
    "fewer changes": ({"changes": {}}, "changes"),
    "changes of what is compiled": ({"changes": {**(ONE.changes or {}), "csrc/op.cu": "1"}}, "changes"),
    "changes of what it began with": ({"changes": {**(ONE.changes or {}), "scripts/job.sh": "1"}}, "changes"),
    "changes, of Python that is not known": ({"changes": {"a.py": "1"}, **with_inputs(modules={})}, "changes"),
    "edited script": (with_inputs(sources={**SOURCES, "job.sh": ("2", False)}), "sources"),
    "edited while it ran": (with_inputs(sources={**SOURCES, "job.sh": ("2", True)}), "sources"),
    "added script": (with_inputs(sources={**SOURCES, "extra.sh": ("2", False)}), "sources"),
    "edited, though both write it": (with_inputs(sources={**SOURCES, "again.sh": ("2", False)}), "sources"),
    "files of no commit": ({"code": {**ONE.code, "files": "x"}}, "files"),
}  # fmt: skip
DECIDES = {
    "compare": "recipe model precision image-size batch gpus placement device reported-device site arm unit proof "
    "claim",
    "curve": "recipe program model precision image-size batch device reported-device site proof claim",
    "repeats": "batch placement site command image env setup trained variables processors packages read software copy "
    "commit changes sources files modules",
    "study": "reported-device unit image software copy commit changes sources files modules",
    "point": "batch placement command env machine setup trained variables processors packages read modules",
    "sizes": "device own-env machine own-setup trained given packages own-read modules",
}


def with_changes(changes: dict[str, Any]) -> Ran:
    of_plan = {name: value for name, value in changes.items() if name in PLAN.__struct_fields__}
    own = {name: value for name, value in changes.items() if name not in of_plan}
    return dataclasses.replace(ONE, plan=msgspec.structs.replace(ONE.plan, **of_plan), **own)


@for_each((case, question) for case in CASES for question in DECIDES)
def test_a_difference_counts_for_the_questions_that_it_decides(case: str, question: Any) -> None:
    changes, keys = CASES[case]
    other = with_changes(changes)
    wanted = [fact.key for fact in FACTS if fact.key in keys.split() and fact.key in DECIDES[question].split()]
    assert [fact.key for fact, _, _ in differences(question, [ONE], [other, other])] == wanted
    assert [fact.key for fact in unlike(question, [ONE, ONE, other])] == wanted
    first = first_difference(question, ONE, other)
    assert (first.key if first else None) == next(iter(wanted), None)
    assert first_difference(question, ONE, ONE) is None


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((((100, 100), (100, 100)), ((120, 120), (120, 120))), "batch"),
        ((((100, 100), (100, 100)), ((100, 100), (400, 400))), "batch"),  # beyond the first rank
        ((((90, 110), (100, 96)), ((95, 105), (98, 112))), None),
        ((((90, 110), (100, 100)), ((270, 330), (300, 300))), "batch"),
        ((((100, 100), (100, 100)), ((100, 98), (100, 98))), None),  # the smaller last batch of an epoch
        ((((100, 100), (100, 100)), ((100, 90), (100, 90))), "batch"),
    ],
)  # fmt: skip
def test_batches_that_vary_are_compared_by_their_means(tmp_path: Path, ranks: Any, expected: str | None) -> None:
    """As many as the longest text, or a last batch: of one script they are seldom the same. Samples of each group."""
    sides = []
    for place, samples in enumerate(ranks):
        run = run_of(tmp_path / str(place), "c1", "")
        (run.path / "ranks").mkdir()
        for rank, each in enumerate(samples):
            run.write(f"ranks/{rank}.report.json", report(rank, group_steps=10, group_samples=each))
        sides.append(ran_with(run, PLAN, Verdict("measured"), {}, batch_of(run)))
    wanted = [expected] * bool(expected)
    assert [fact.key for fact, *_ in differences("compare", *([side] for side in sides))] == wanted
    assert [fact.key for fact in unlike("point", sides)] == wanted, "nor are launches of one point or one side repeats"
    assert [fact.key for fact in [first_difference("repeats", *sides)] if fact] == wanted


@pytest.mark.parametrize(("second", "expected"), [("20", []), ("100", ["trained"]), ("", []), ("x", [])])
def test_a_sample_is_of_the_mean_size_of_all_ranks(tmp_path: Path, second: str, expected: list[str]) -> None:
    """The first rank's part of the texts is no longer than one GPU's; the second one's is."""
    one = dataclasses.replace(ONE, trained={"mean size of a sample": "20"})
    run = run_of(tmp_path / "run", "c1", "")
    (run.path / "ranks").mkdir()
    for rank, size in enumerate(("20", second)):
        run.write(f"ranks/{rank}.report.json", report(rank, trained={"mean size of a sample": size}))
    both = dataclasses.replace(ONE, trained=ran_with(run, PLAN, None, {}).trained)
    assert [fact.key for fact in unlike("sizes", [one, both])] == expected


def test_every_fact_decides_something_and_has_a_case() -> None:
    assert {fact.key for fact in FACTS} == {key for _, keys in CASES.values() for key in keys.split()}
    for question, keys in DECIDES.items():
        assert {fact.key for fact in facts_for(question)} == set(keys.split())  # type: ignore[arg-type]


def test_secret_parts_of_ordinary_variables_are_not_shown() -> None:
    first = changed(PLAN, env=(("PROXY", "http://me:planted@proxy"), ("KEY", f"hf_{'planted0' * 4}")))
    assert plan_differences(first, changed(PLAN, env=(("PROXY", "http://me:also-planted@proxy"),))) == (
        Difference("environment", "PROXY", "http://***@proxy", "http://***@proxy (another value)"),
        Difference("environment", "KEY", "***", "none"),
    )


@pytest.mark.parametrize("question", ["study", "repeats"])
@pytest.mark.parametrize(
    "other",
    [
        {"code": {**ONE.code, "sources": "s", "commit": "f00d"}},  # of documentation
        {"changes": None},  # git did not answer
        {"code": {**ONE.code, "sources": "t", "other_sources": "o", "commit": "f00d"}},  # of other scripts
        {"changes": {**(ONE.changes or {}), "src/plot.py": "1"}},
        {"changes": {"net.py": "1"}, **with_inputs(written=("results.csv",))},
        {"changes": {"net.py": "1"}, **with_inputs(written=("/repository/out/results.csv",))},
    ],
)
def test_what_changes_no_program_makes_no_other_one(question: Any, other: dict[str, Any]) -> None:
    one = dataclasses.replace(ONE, code={**ONE.code, "sources": "s", "other_sources": "o"})
    assert first_difference(question, one, dataclasses.replace(one, **{"code": one.code, **other})) is None


@pytest.mark.parametrize("question", ["study", "repeats", "sizes", "point"])
@pytest.mark.parametrize(
    "own",
    [
        {"read": {"a.json": ("text 1", 110.0)}},  # another time, or not all files that are no text
        {"read": {**READ, "state.json": ("text 2", 110.0)}},  # which both wrote
        {"modules": {"net.py": "1", "_version.py": "2"}, "written": ("state.json", "_version.py")},
        {"read": {**READ, "c.bin": ("2", 110.0), "/data/list.txt": ("text 2", 110.0)}},
        {"read": {**READ, "made.yaml": ("text 2", 110.0)}, "written": ("state.json", "made.yaml")},
        {"read": {**READ, "cache.txt": ("text 2", 150.0)}, **LATER},  # which the other has made
        {"read": {**READ, "tokenizer.json": ("text 2", 150.0)}, **LATER},
        {"read": {**READ, "data/2.jsonl": ("text 2", 50.0)}},
        {"read": {**READ, **{f"data/{number}.json": ("text 2", 50.0) for number in range(9)}}},
        {"sources": {**SOURCES, "made.sh": ("2", False), "again.sh": ("2", True), "last.sh": ("", True)}},
        {"modules": {"net.py": "1", "/v2/layers.py": "1"}},
        {"installed": {**INSTALLED, "*": {"0": "2"}}},
        {"sources": {}},  # of a launcher that recorded none
        {"read": {**READ, "net.py": ("text 1", 50.0)}},  # of which a launcher of before had the module alone
        {"modules": {"other.py": "1"}, "installed": {"horovod": {"x": "text 1"}, "torch": {"optim": "text 1"}}},
        {"read": {**READ, "data.bin": ("", 50.0), "b.bin": ("", 60.0)}},  # large
        {"installed": {"big": {"a": "9 state 2", "b": "9 state 2"}, "torch": {"nn": "7 state 1"}}},  # anew, and larger
    ],
)
def test_what_programs_do_with_files_makes_no_other_one(question: Any, own: dict[str, Any]) -> None:
    assert unlike(question, [ONE, dataclasses.replace(ONE, **with_inputs(**own))]) == ()


@pytest.mark.parametrize("question", ["study", "repeats", "sizes", "point"])
@pytest.mark.parametrize(("made", "differs"), [("cache.json", False), ("cache.bin", False), ("b.bin", True)])
def test_what_only_the_maker_of_a_cache_read_is_data(question: Any, made: str, differs: bool) -> None:
    later = with_inputs(read={name: CACHED[name] for name in (*READ, made)}, **LATER)
    first = with_inputs(read={**later["ran_with"].first.read, "corpus.json": ("text 2", 50.0)})
    runs = [dataclasses.replace(ONE, **each) for each in (first, later, later)]
    assert bool(unlike(question, runs)) is (differs and question != "study")
    runs[2] = dataclasses.replace(ONE, **with_inputs(read={**CACHED, "other.json": ("text 2", 50.0)}, **LATER))
    assert bool(unlike(question, runs)) is (question != "study"), "it reads something instead"
    rewritten = {name: ("text 2" if name == made else digest, at) for name, (digest, at) in CACHED.items()}
    runs[2] = dataclasses.replace(ONE, **with_inputs(read=rewritten, **LATER))
    assert bool(unlike(question, runs)) is (question != "study"), "they have not the same cache"


@pytest.mark.parametrize(("name", "written"), [("step20.json", ()), ("hparams.yaml", ("state.json", "hparams.yaml"))])
def test_what_another_launch_made_is_no_difference_of_those_that_read_it(name: str, written: tuple[str, ...]) -> None:
    """As a checkpoint of the launch of another size, at which one of these went on."""
    maker = dataclasses.replace(ONE, **with_inputs(written=written, began_s=210.0, ended_s=290.0))
    reader = dataclasses.replace(ONE, **with_inputs(read={**READ, name: ("text 2", 250.0)}, **LATER))
    assert [fact.key for fact in unlike("point", [ONE, reader])] == ["read"]
    one, _, other = beside_each_other([ONE, maker, reader])
    assert unlike("point", [one, other]) == ()


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        ("--seed 1 --lr=1", "--seed 2 --lr=1", False),
        ("--run-name=a trainer.seed=1", "--run-name=b trainer.seed=2", False),
        ("--master_port 1", "--master_port 2", False),
        ("--output-dir a --logdir=a", "--output-dir b --logdir=b", False),
        ("--data-dir a", "--data-dir b", True),
        ("--seed --lr", "--seed --wd", True),
        ("--export 1", "--export 2", True),
        ("seed 1", "seed 2", True),
        ("--job-name a", "--job-name a --lr 1", True),
    ],
)
def test_what_names_a_launch_among_its_arguments_is_no_other_program(first: str, second: str, differs: bool) -> None:
    one, two = (dataclasses.replace(ONE, plan=changed(PLAN, program=("x", *each.split()))) for each in (first, second))
    assert [fact.key for fact in unlike("repeats", [one, two])] == ["command"] * differs
    seeds = [dataclasses.replace(one, plan=changed(one.plan, env=(("RUN_SEED", each),))) for each in "12"]
    assert unlike("repeats", seeds) == unlike("sizes", seeds) == ()


def test_what_sizes_have_of_their_own() -> None:
    given = {**RAN_WITH.given, "NCCL_IB_HCA": frozenset("2"), "OWN": frozenset("0123")}
    variables = {**RAN_WITH.variables, "sys.argv": frozenset("2")}
    by_site = msgspec.structs.replace(ONE.plan, env=(("NCCL_IB_HCA", "mlx5"),))
    two = dataclasses.replace(ONE, plan=by_site, **with_inputs(given=given, cpus=frozenset((4,)), variables=variables))
    assert unlike("sizes", [ONE, two]) == ()
    assert [fact.with_names([ONE, two]) for fact in unlike("point", [ONE, two])] == [
        "environment", "set of variables (sys.argv)", "number of processors of a rank (4, 8)",
    ]  # fmt: skip
    assert unlike("point", [ONE, dataclasses.replace(ONE, ran_with=None)]) == ()


def test_means_of_windows_vary_and_a_larger_batch_may_be_accumulated() -> None:
    longer = {"mean size of a sample": "10.9"}
    assert not unlike("point", [ONE, dataclasses.replace(ONE, trained=longer)])
    accumulates = dataclasses.replace(ONE, batch=40, trained={"forward passes of a step": "4"})
    assert not unlike("sizes", [ONE, accumulates])


def test_a_copy_of_the_code_is_known_without_documentation(tmp_path: Path) -> None:
    contents = {"train.py": "1", "a/README.md": "1"}
    copies = []
    for name, change in (("1", {}), ("2", {"a/README.md": "2"}), ("3", {"train.py": "2"})):
        run = run_of(tmp_path / name, "c1", "")
        run.write("code-files.json", CopiedFiles("", contents | change))
        copies.append(code_facts(run)["program"])
    assert [each == copies[0] for each in copies] == [True, True, False]


def test_what_a_program_left_beside_its_recipe_is_none_of_it(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, "", "") for name in "12"]
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "main.py").write_text("train()\n")
    for run in runs:
        shutil.copytree(recipe, run.path / "recipe")
        run.ranks.mkdir()
        run.write("ranks/0.start.json", start(0, program_sha256="1" * 64))
        (run.path / "recipe/config.py").write_text(f"work_dir = {run.run_id!r}\n")
        assert recipe_difference(run, recipe) == ()
    one, other = map(code_facts, runs)
    assert one == other and one["files"] == "1" * 64


def test_what_was_not_recorded_and_copies_of_a_launch() -> None:
    unknown = dataclasses.replace(ONE, code={})
    assert first_difference("study", ONE, unknown, recorded=True) is None
    assert first_difference("repeats", ONE, unknown) is not None
    older = dataclasses.replace(ONE, code={**ONE.code, "files": ""})
    assert first_difference("repeats", ONE, older) is None
    one, other = (("41", "t", 1.0), "1a2b"), (("42", "t", 1.0), "3c4d")
    assert copy_among([("a", one), ("b", ()), ("c", other), ("d", ()), ("e", one[:1])]) == ("a", "e")
    assert copy_among([("a", one), ("b", other), ("c", one[1:])]) == ("a", "c")
    assert copy_among([("a", one), ("b", other), ("c", ()), ("d", ())]) is None
