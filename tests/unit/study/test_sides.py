"""Studies compared and exported: point by point, by settings, and only what is measured."""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run as runner
from runner.core.errors import Exit
from runner.figures.compare.references import against
from runner.figures.compare.text import reference_lines
from runner.jobs.directory import LOG, Run, index
from runner.jobs.seals import judgements
from runner.model.expectation import Reference
from runner.model.figure import in_words
from runner.model.job import CommandLine, ExitMarker, Sweep
from runner.model.study import Launch
from runner.model.verdict import Verdict
from runner.study.directory import StudyDirectory, create_sweep
from runner.study.readers import side
from tests.support.bundles import Members, edited, forged
from tests.support.commands import Call
from tests.support.documented import commands
from tests.support.documents import result
from tests.support.evidence import keep_verdict, leave
from tests.support.measured_runs import BEGAN_S, LAUNCH_S, PROGRAM, measured_run
from tests.support.studies import on_disk, study

SETTINGS = ((("fp16", "false"),), (("fp16", "true"),))


def launched(tmp_path: Path, name: str, speeds: dict[str, float], first: int = 0, **changes: Any) -> StudyDirectory:
    """A study on four GPUs whose launches ran in the order of their settings ABBABA, at these speeds."""
    settings = changes.pop("settings", SETTINGS)
    turns = ((1, 0), (1, 1), (2, 1), (2, 0), (3, 1), (3, 0)) if len(settings) == 2 else ((1, 0), (2, 0), (3, 0))
    wanted = [(settings[index], repeat) for repeat, index in turns]
    launches = tuple(
        Launch(f"g0004-full-{'-'.join(value for _, value in setting)}-r{repeat}", 4, "full", repeat, place, (), setting)
        for place, (setting, repeat) in enumerate(wanted)
    )
    of = on_disk(tmp_path, study((4,), 3, settings=settings, launches=launches, **changes), name)
    for launch in launches:
        speed = speeds[dict(launch.settings).get("fp16", "")] * (1.0 + 0.002 * (-1) ** launch.repeat)
        own = () if of.study.strong else launch.settings  # of a whole batch PROGRAM has its share
        program = (*PROGRAM, *(f"--{name}={value}" for name, value in own))
        run = measured_run(of.launches(launch.key), first + 2 * launch.place, speed=speed, program=program)
        of.note("launched", launch.key, [run])
    return of


def compared(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert runner(["compare", *words, "--json"]) == code
    return result(capsys.readouterr().out)


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """A measured study, train, beside one of another size, small, and one without runs, empty."""
    root = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_STATE", str(root / "state"))
        on_disk(root, study(), "empty")
        launches = tuple(Launch(f"g2-{place}", 2, "full", 1, 0, (), setting) for place, setting in enumerate(SETTINGS))
        small = on_disk(root, study((2,), 1, settings=SETTINGS, launches=launches), "small")
        for place, launch in enumerate(launches):
            run = measured_run(small.launches(launch.key), place)
            leave(run, "plan.json", msgspec.structs.replace(run.needed_plan(), tasks_per_node=(1, 1), gpus_per_node=1))
            small.note("launched", launch.key, [run])
        return launched(root, "train", {"false": 1.0, "true": 1.2})


@pytest.fixture
def train(studies: StudyDirectory, monkeypatch: pytest.MonkeyPatch) -> StudyDirectory:
    """Of those three, the first; it is only read."""
    monkeypatch.setenv("RUNNER_STATE", str(studies.path.parent / "state"))
    return studies


def test_two_settings_of_a_study_are_compared(train: StudyDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (point,) = compared(capsys, "train:fp16=false", f"{train.path.name}:fp16=true")["points"]
    assert (point["order"], point["verdict"]) == ("ABBABA", "faster")
    assert point["change"] == pytest.approx(0.2, abs=0.01)


def test_studies_are_compared_point_by_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, they get no verdict; a launch that is not measured is counted."""
    launched(tmp_path, "before", {"false": 1.0, "true": 1.2})
    second = launched(tmp_path, "after", {"false": 0.5, "true": 0.6}, first=20)
    run = second.runs("g0004-full-true-r2")[0]
    run.write("verdict.json", Verdict("not-proven", ("why",)))
    found = compared(capsys, "before", "after")
    assert [point["settings"] for point in found["points"]] == [["fp16=false"], ["fp16=true"]]
    assert [point["second"]["not_proven"] for point in found["points"]] == [0, 1]
    assert {point["verdict"] for point in found["points"]} == {"no verdict"}
    assert [round(point["change"], 1) for point in found["points"]] == [-0.5, -0.5]


def test_a_point_is_its_settings_in_any_order_and_no_other_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, second) = ((("batch-size", "10"), ("fp16", "")), (("fp16", ""), ("batch-size", "10")))
    launched(tmp_path, "before", {"": 1.0}, settings=(first,))
    launched(tmp_path, "after", {"": 0.5}, first=20, settings=(second,))
    (point,) = compared(capsys, "before", "after")["points"]
    assert point["settings"] == ["batch-size=10", "fp16="]
    for name, lost in (("one", "true"), ("other", "false")):
        of = launched(tmp_path, name, {"false": 1.0, "true": 1.2}, first=40)
        for repeat in (1, 2, 3):
            of.runs(f"g0004-full-{lost}-r{repeat}")[0].write("verdict.json", Verdict("not-proven", ("why",)))
    assert runner(["compare", "one", "other"]) == Exit.USAGE
    assert "A has 4 GPUs with fp16=false; B has 4 GPUs with fp16=true" in capsys.readouterr().err


def test_studies_that_ran_in_turns_get_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launched(tmp_path, "old", {"": 1.0}, settings=((),))
    launched(tmp_path, "new", {"": 0.8}, first=1, settings=((),))
    (point,) = compared(capsys, "old", "new", "--fail-below", "0.95", code=Exit.BELOW_REFERENCE)["points"]
    assert (point["order"], point["verdict"]) == ("ABABAB", "slower")


def test_the_commands_of_the_page_compare_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two studies of one program, their runs for A and B, and the page's references with their names."""
    whole = (Path(__file__).parents[3] / "docs/compare.md").read_text()
    page = tmp_path / "compare.md"
    page.write_text(whole.partition("\n## `recipe expect`")[0])
    settings = ((("fp16-allreduce", "false"),), (("fp16-allreduce", "true"),))
    ran = {
        name: launched(tmp_path, name, {"": 1.0}, first, settings=settings) for name, first in (("S1", 0), ("S2", 20))
    }
    a, b = (
        ",".join(str(ran["S1"].runs(f"g0004-full-{setting}-r{repeat}")[0].path) for repeat in (1, 2, 3))
        for setting in ("false", "true")
    )
    references = re.findall(r"^ {4}((?:references:|-| ).*)$", page.read_text(), re.MULTILINE)
    text = "\n".join(references).replace("technion", "s").replace(": horovod-pytorch\n", ": r\n").replace(": 16", ": 4")
    (tmp_path / "references.yaml").write_text(text.replace("model: resnet50, batch-size: 256", ""))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    of = {"A1,A2,A3": a, "B1,B2,B3": b, "A": a.split(",")[0], "B": b.split(",")[0], "RUN": a.split(",")[0]}
    codes = []
    for words in (each for each in commands(page) if each[0] == "compare"):
        given = [of.get(word, word.replace("STUDY:", "S1:").replace("STUDY", "S")) for word in words]
        codes.append(runner(given))
    assert codes == [0, 0, 0, 0, Exit.UNKNOWN, Exit.BELOW_REFERENCE]


# what the second side is; the exit code, and what is said
WRONG: dict[str, tuple[str, int, str]] = {
    "a setting that it has not": ("train:fp61=true", Exit.USAGE, "did you mean 'fp16=true'?"),
    "no setting": ("train:fp16", Exit.USAGE, "is no setting of a study"),
    "no name": (",", Exit.USAGE, "no run is named"),
    "a run's": ("RUN:fp16=true", Exit.USAGE, "only a study has settings"),
    "none measured": ("empty", Exit.NOT_PROVEN, "no launch of"),
    "no size in common": ("small", Exit.USAGE, "A has 4 GPUs with fp16=false, 4 GPUs with fp16=true; B"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_side_is_explained(case: str, train: StudyDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    other, code, says = WRONG[case]
    other = other.replace("RUN", str(train.runs("g0004-full-true-r1")[0].path))
    assert runner(["compare", "train", other]) == code
    assert says in capsys.readouterr().err


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a study that is gone, one of whose launches was not measured."""
    root = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_STATE", str(root / "state"))
        of = launched(root, "train", {"false": 1.0, "true": 1.2})
        of.runs("g0004-full-true-r2")[0].write("verdict.json", Verdict("failed", ("why",)))
        assert runner(["export", "train", "--bundle", str(root / "b.tar")]) == Exit.GOOD
        of.path.rename(root / "gone")
    return root / "b.tar"


def test_the_table_of_a_study_is_proven_by_its_bundle(original: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(["verify", str(original), "--json"]) == Exit.GOOD
    study = result(capsys.readouterr().out)["study"]
    assert [(point["proven"], point["wanted"]) for point in study["points"]] == [(3, 3), (2, 3)]
    assert study["points"][1]["images_per_s"]["value"] == pytest.approx(480.0, rel=0.01)
    assert [key for key, run in study["runs"].items() if not run] == ["g0004-full-true-r2"]
    assert runner(["verify", str(original)]) == Exit.GOOD
    assert "5 of 6 launches proven" in capsys.readouterr().out


def test_the_log_of_a_study_is_in_its_bundle_and_says_what_was_launched_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one whose slow first run was removed, and measured again at the end."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    first = of.study.launches[0].key
    slow = of.runs(first)[0].path
    log = (of.path / LOG).read_bytes().splitlines()
    begun, lines = log[0], log[1:]
    again = slow.rename(slow.with_name(slow.name + ".9"))
    keep_verdict(Run(again))
    of.note("launched", first, [Run(again)])
    bundle = tmp_path / "b.tar"
    assert runner(["export", "train", "--bundle", str(bundle)]) == Exit.GOOD
    capsys.readouterr()
    assert runner(["verify", str(bundle), "--json"]) == Exit.GOOD
    told = result(capsys.readouterr().out)["study"]["log"]
    assert told == [
        f"{first}: {slow.name} was launched, too, and is no run of the figures",
        f"{first}: {again.name} was launched after launches that were planned behind it",
    ]
    forged(bundle, lambda payload: payload.update({LOG: b"\n".join([begun, *lines[1:]]) + b"\n"}))
    assert runner(["verify", str(bundle)]) == Exit.NOT_PROVEN
    assert "study.log" in capsys.readouterr().err

    def lose(payload: Members) -> None:
        del payload[LOG]
        edited("study.json", lambda study: study.update(logged=False))(payload)
        edited("bundle.json", lambda about: about["study"].__delitem__("log"))(payload)

    forged(bundle, lose)
    assert runner(["verify", str(bundle)]) == Exit.GOOD, "as an earlier version made it"
    assert "its log of launches is not there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "lacks", "words"),
    [
        ("", False, ""),
        ("failed", False, "an earlier run of its launch gave no figure (failed): it may have been slow"),
        ("", True, "1 more launch of its point not proven, which may have been slow"),
    ],
)
def test_what_was_launched_beside_a_run_goes_with_it_out_of_its_study(
    before: str, lacks: bool, words: str, tmp_path: Path, call: Call
) -> None:
    """Else the fast ones of several would look like all."""
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    other = launched(tmp_path, "other", {"": 1.0}, first=40, settings=((),))
    first, slow, _ = (of.runs(launch.key)[0] for launch in of.study.launches)
    if before:
        slow = measured_run(first.path.parent, 30)
        of.note("launched", first.path.parent.name, [slow])
    if before or lacks:
        (judgements() / slow.run_id).unlink()
        slow.write("verdict.json", Verdict("failed", ("a time limit",)))
    exported = json.loads(call("export", "train", "--format", "json").out)["runs"]
    assert [words in in_doubts(each["figure"]) for each in exported] == (
        [True, True] if lacks else [True, not words, not words]
    )
    assert call("export", "train", "--format", "reframe").out.count("replaced") == (2 if lacks else 1 if before else 0)
    (point,) = result(call("compare", str(first.path), other.path.name, "--json").out)["points"]
    report = result(call("report", str(first.path), "--json", "-o", str(tmp_path / "page")).out)
    (row, *_) = result(call("report", "train", "--json", "-o", str(tmp_path / "page")).out)["rows"]
    shown = result(call("show", str(first.path), "--json").out)["figure"]
    for made in (report, point["first"], row["figure"], shown):
        assert words in in_doubts(made) and ("replaced" in in_doubts(made)) == bool(words)
    for number, subjects in enumerate((["train"], ["train", other.path.name], [str(first.path)])):
        bundle = str(tmp_path / f"{number}.tar")
        refused = lacks and number > 0
        said = call("export", *subjects, "--bundle", bundle, code=Exit.USAGE if refused else Exit.GOOD)
        if refused:
            assert "of a point of its study that lacks 1 proven launch" in said.err
            continue
        verified = result(call("verify", bundle, "--json").out)
        figures = {each["run"]: each["figure"] for each in verified["runs"]}
        doubted = [run for run, each in figures.items() if "replaced" in in_doubts(each)]
        assert doubted == ([first.run_id] if before else [*figures] if lacks else [])
        if number == 0:
            (point,) = verified["study"]["points"]
            assert (point["proven"], "replaced" in in_doubts(point)) == (2 if lacks else 3, bool(before))


@pytest.mark.parametrize("second_one", ["at once", "at once, and failed", "faster"])
def test_what_the_launches_of_a_point_are_unequal_in_goes_with_each_out_of_its_study(
    second_one: str, tmp_path: Path, call: Call
) -> None:
    """As where a queue gives a node to several launches at once, which may have waited for each other."""
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    other = launched(tmp_path, "other", {"": 1.0}, first=40, settings=((),))
    first, second, third = (of.runs(launch.key)[0] for launch in of.study.launches)
    words, measured = f"{first.run_id} and {second.run_id} ran at the same time", [first, second, third]
    if second_one == "faster":
        assert second.verdict is not None
        second.write("verdict.json", msgspec.structs.replace(second.verdict, images_per_s=720.0))
        words = "rates of its launches differ by 8"
    else:
        leave(first, "exit.json", ExitMarker("41", 0, BEGAN_S + 2.5 * LAUNCH_S))
    if second_one == "at once, and failed":
        (judgements() / second.run_id).unlink()
        second.write("verdict.json", Verdict("failed", ("out of memory",)))
        measured = [first, third]
    runs = json.loads(call("export", "train", "--format", "json").out)["runs"]
    now = result(call("status", "train", "--json").out)
    of_study = result(call("report", "train", "--json", "-o", str(tmp_path / "page")).out)
    several = ",".join(str(run.path) for run in measured)
    compared = [call("compare", own, other.path.name, "--json").out for own in (str(first.path), several)]
    points = [result(each)["points"][0]["first"] for each in compared]
    report = result(call("report", str(first.path), "--json", "-o", str(tmp_path / "page")).out)
    shown = result(call("show", str(first.path), "--json").out)["figure"]
    assert words in call("status", str(first.path)).out and words in call("wait", str(first.path)).out
    figures = [each["figure"] for each in (*runs, *of_study["rows"]) if each["figure"]]
    assert len(figures) == 2 * len(measured)
    for made in (*figures, *now["points"], of_study, *points, report, shown):
        assert in_doubts(made).count(words) == 1
    refused = call("export", str(first.path), "--bundle", str(tmp_path / "b.tar"), code=Exit.USAGE)
    assert (words if second in measured else "lacks 1 proven launch") in refused.err
    if second_one == "faster":  # which its records do not give
        return
    call("export", "train", "--bundle", str(tmp_path / "whole.tar"))
    verified = result(call("verify", str(tmp_path / "whole.tar"), "--json").out)["study"]
    assert in_doubts(verified["points"][0]).count(words) == 1, "also without the records of the failed one"


@pytest.mark.parametrize("name", ["", "good"])
def test_a_copy_of_a_run_or_of_a_study_counts_once(name: str, tmp_path: Path, call: Call) -> None:
    """Also under its own id, as `cp -a` makes it."""
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    run = of.runs(of.study.launches[0].key)[0]
    for path in (run.path, of.path):
        copy = shutil.copytree(path, tmp_path / "copies" / (name or path.name))
        for command in (["export", "--format", "json"], ["report", "-o", str(tmp_path / "page")])[
            : 2 if path == run.path else 1
        ]:
            call(*command, str(path), str(path))
            assert "are one launch" in call(*command, str(path), str(copy), code=Exit.USAGE).err
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("name", "values"),
    [("max-tokens", ("2048", "131072")), ("auth-token", ("ab", "cd")), ("password", ("measured", "strong"))],
)
def test_runs_that_secrets_tell_from_one_another_are_in_no_report_or_bundle(
    name: str, values: tuple[str, str], tmp_path: Path, call: Call
) -> None:
    """As an older version took them; a number of something is none."""
    launched(tmp_path, "train", {"": 1.0}, settings=tuple(((name, value),) for value in values))
    file, run = str(tmp_path / "b.tar"), str(next(tmp_path.rglob(f"launches/*{values[0]}-r1/*")))
    is_number = values[0].isdigit()
    code = Exit.GOOD if is_number else Exit.USAGE
    for subjects in (["train"], [run]):
        for command in (["report", "-o", str(tmp_path / "page")], ["export", "--bundle", file]):
            done = call(*command, *subjects, code=code)
            assert is_number or f"the values of {name}, and they look secret" in done.err


@pytest.mark.parametrize("name", ["plan.json", "job.json"])
def test_a_run_that_was_changed_hides_no_other_of_its_study(name: str, tmp_path: Path, call: Call) -> None:
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    first, second, _third = (of.runs(launch.key)[0] for launch in of.study.launches)
    index().mkdir(parents=True, exist_ok=True)
    (index() / second.run_id).symlink_to(second.path)
    second.write(name, record := second.read(name, dict) or {"job_id": "7"})
    (second.path / name).write_text(json.dumps({**record, "more": 1}))
    words = f"its run {second.run_id} was launched, and its {name} was changed since"
    for command in (["status"], ["wait"], ["show"], ["report", "-o", str(tmp_path / "page")]):
        assert "its study has 1 gap" in call(*command, str(first.path)).out, command
    assert words in call("status", "train").out
    (point,) = result(call("status", "train", "--json").out)["points"]
    assert point["proven"] == 2


@pytest.mark.parametrize("what", ["its run", "its log", "its line", "its number", "its last line"])
def test_what_a_sweep_cannot_show_any_more_may_have_been_slow(what: str, tmp_path: Path, call: Call) -> None:
    values = {f"{number}": {"seed": f"{number}"} for number in range(1, 4)}
    sweep = create_sweep(tmp_path, "seeds", Sweep(values, CommandLine(("submit",), "/")), time.time())
    for number, key in enumerate(values):
        sweep.note("launched", key, [measured_run(sweep.launches(key), number)])
        if number == 1:
            before = [(each, each.read_bytes()) for each in sweep.path.glob("launches.*")]
    (point,) = side(str(sweep.path)).points.values()
    assert (sweep.missing, point.not_proven) == ("", 0)
    shutil.rmtree(sweep.runs("3" if what == "its last line" else "2")[0].path)
    log, asked = sweep.path / LOG, sweep.path / "sweep.json"
    match what:
        case "its log":
            log.unlink()
        case "its line":
            log.write_bytes(
                b"".join(line for line in log.read_bytes().splitlines(True) if b'"launch": "2"' not in line)
            )
        case "its last line":
            for file, content in before:
                file.write_bytes(content)
        case "its number":
            question = json.loads(asked.read_text())
            question["runs"].pop("2")
            asked.write_text(json.dumps(question))
    left = sweep.runs("1")[0]
    index().mkdir(parents=True, exist_ok=True)
    (index() / left.run_id).symlink_to(left.path)
    copy = shutil.copytree(left.path, tmp_path / "copy" / left.run_id)
    for path in (left.path, copy):
        (figure,) = json.loads(call("export", str(path), "--format", "json").out)["runs"]
        assert "gap: its study has" in in_doubts(figure["figure"])
        refused = call("export", str(path), "--bundle", str(tmp_path / "b.tar"), code=Exit.USAGE)
        assert "of a sweep with a gap" in refused.err
    if what == "its run":
        (point,) = side(str(sweep.path)).points.values()
        assert re.search("its run .* was launched, and its directory is gone", sweep.missing) and point.not_proven == 1
        waited = json.loads(call("wait", str(sweep.path), "--json", code=Exit.NOT_ACCEPTED).out)
        assert waited["exit_code"] == Exit.NOT_ACCEPTED and waited["error"]["what"] == sweep.missing
    moved = sweep.path.rename(tmp_path / "moved")
    (figure,) = json.loads(call("export", str(*moved.glob("launches/1/*")), "--format", "json").out)["runs"]
    assert "gap: its study has" in in_doubts(figure["figure"])
    shutil.rmtree(moved)
    leave(Run(copy), "plan.json", {**(Run(copy).read("plan.json", dict) or {}), "swept": [["seed", "1"]]})
    keep_verdict(Run(copy))
    (figure,) = json.loads(call("export", str(copy), "--format", "json").out)["runs"]
    assert "gap: its study has" in in_doubts(figure["figure"]), "nothing shows what its sweep had"


@pytest.mark.parametrize("is_chain", [False, True])
def test_two_sweeps_that_ask_the_same_are_two_and_neither_stands_for_the_other(
    is_chain: bool, tmp_path: Path, call: Call
) -> None:
    def gaps(run: Path) -> int:
        return str(json.loads(call("export", str(run), "--format", "json").out)["runs"]).count("its study has")

    values, command = {"1": {"seed": "1"}, "2": {"seed": "2"}}, CommandLine(("submit",), "/")
    one, other = (create_sweep(tmp_path, "seeds", Sweep(values, command, is_chain), 0.0) for _ in range(2))
    for sweep, first in ((one, 1), (other, 7)):
        for number, key in enumerate(values):
            run = measured_run(sweep.launches(key), first + number)
            own = {"attempt": number + 1} if is_chain else {"swept": [["seed", key]]}
            leave(run, "plan.json", {**(run.read("plan.json", dict) or {}), **own})
            keep_verdict(run)
            if key == "1" or not is_chain:  # the script of an attempt submits the next one
                sweep.note("launched", key, [run])
    assert [gaps(run.path) for sweep in (one, other) for key in values for run in sweep.runs(key)] == [0] * 4
    moved = one.path.rename(tmp_path / "moved")
    assert [gaps(run) for key in values for run in moved.glob(f"launches/{key}/*")] == [0, 0]
    if not is_chain:
        left = next(moved.glob("launches/1/*")).rename(tmp_path / next(moved.glob("launches/1/*")).name)
        other.path.rename(one.path)
        assert gaps(left) == 1, "the sweep at its place never had it"


def in_doubts(figure: Any) -> str:
    return "; ".join(f"{each['code']}: {each['words']}" for each in figure["doubts"])


def of_study(**changes: Any) -> Any:
    """An edit of the question."""
    return edited("study.json", lambda study: study.update(changes))


def of_launches(change: Callable[[list[Any]], list[Any]]) -> Any:
    return edited("study.json", lambda study: study.update(launches=change(study["launches"])))


def of_table(change: Callable[[dict[str, Any]], object]) -> Any:
    """An edit of the table, and of which run each launch is proven by."""
    return edited("bundle.json", lambda about: change(about["study"]))


def first(**changes: Any) -> Any:
    """An edit of the first launch."""
    return of_launches(lambda each: [each[0] | changes, *each[1:]])


ONE, TWO = "g0004-full-false-r1", "g0004-full-true-r1"
FORGED: dict[str, tuple[Any, str]] = {
    "a point": (of_table(lambda table: table["points"][0]["images_per_s"].update(value=1.0)),
                "points.0.images_per_s.value differs"),
    "launches swapped": (of_table(lambda of: of["runs"].update({ONE: of["runs"][TWO], TWO: of["runs"][ONE]})),
                         "it has another fp16"),
    "a launch hidden": (of_table(lambda table: table["runs"].update({TWO: ""})), "are not the runs of the bundle"),
    "a launch more": (of_table(lambda table: table["runs"].update(x="")), "runs.x differs"),
    "one allocation": (of_study(way="one-allocation"), "it has way separate"),
    "another arm": (first(arm="uncoupled"), "it has arms full"),
    "one GPU alone": (first(arm="solo"), "one GPU alone has no 4 GPUs"),
    "no study": (edited("bundle.json", lambda about: about.update(study=None)), "do not belong together"),
    "no question": (lambda payload: payload.pop("study.json"), "question cannot be read"),
    "fewer launches wanted": (of_launches(lambda each: each[:3]), "has no such launch"),
    "one launch less wanted": (of_launches(lambda all: [one for one in all if "true-r2" not in one["key"]]), "differs"),
    "launches of one repeat": (of_launches(lambda each: [one | {"repeat": 1} for one in each]), "launches are one"),
    "another question": (of_study(created="2026-11-22T00:00:00+00:00"), "study.log differs"),
    "other GPUs": (of_launches(lambda each: [one | {"gpus": 8} for one in each]), "it has GPUs 4, the launch 8"),
    "another site": (of_study(site="elsewhere"), "it has site s"),
    "its log hidden": (of_table(lambda table: table.__delitem__("log")), "study.log differs"),
    "another recipe": (of_study(recipe="x"), "it has recipe r"),
    "settings that it has not": (of_study(settings=[]), "no table can be made"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_study_is_found_by_its_runs(
    case: str, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(shutil.copy(original, tmp_path))
    change, says = FORGED[case]
    forged(Path(bundle), change)
    assert runner(["verify", bundle]) == Exit.NOT_PROVEN
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("whole", "code"), [("40", Exit.GOOD), ("50", Exit.NOT_PROVEN)])
def test_of_a_whole_batch_each_gpu_has_its_share(tmp_path: Path, whole: str, code: Exit) -> None:
    launched(tmp_path, "train", {"": 1.0}, settings=((("batch-size", whole),),), strong=True)
    assert runner(["export", "train", "--bundle", str(tmp_path / "b.tar")]) == code
    assert code or runner(["verify", str(tmp_path / "b.tar")]) == Exit.GOOD


def test_a_report_brings_its_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And none is written of what is not measured."""
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    file = tmp_path / "b.tar"
    assert runner(["report", "train", "-o", str(tmp_path / "page"), "--bundle", str(file)]) == Exit.GOOD
    assert f"bundle {file}, " in capsys.readouterr().err
    assert (tmp_path / "page").is_dir()
    assert runner(["verify", str(file), "--json"]) == Exit.GOOD
    assert result(capsys.readouterr().out)["study"]["study"] == of.path.name
    run = of.runs("g0004-full--r1")[0]
    run.write("verdict.json", Verdict("failed", ("why",)))
    capsys.readouterr()
    assert runner(["export", "train", "--format", "reframe"]) == Exit.GOOD
    assert capsys.readouterr().out.count(" outcome=measured ") == 2
    alone = measured_run(tmp_path / "alone", 9)
    alone.write("verdict.json", Verdict("failed", ("why",)))
    words = ["report", str(alone.path), "-o", str(tmp_path / "other"), "--bundle", str(tmp_path / "none.tar")]
    assert runner(words) == Exit.NOT_PROVEN
    assert not (tmp_path / "none.tar").exists() and not (tmp_path / "other").exists()
    assert runner(["report", "train", "--sign", "key"]) == Exit.USAGE
    assert "only a bundle is signed" in capsys.readouterr().err


def test_no_launch_of_a_demonstration_is_exported_as_a_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = launched(tmp_path, "train", {"": 1.0}, settings=((),))
    run = of.runs(of.study.launches[0].key)[0]
    assert run.verdict is not None
    run.write("verdict.json", msgspec.structs.replace(run.verdict, demonstration="a short warm-up"))
    assert runner(["export", "train", "--format", "json"]) == Exit.GOOD
    exported = json.loads(capsys.readouterr().out)["runs"]
    assert {(each["demonstration"], each["figure"]["demonstration"]) for each in exported} == {("a short warm-up",) * 2}


def test_points_of_a_study_without_a_reference_are_left_out(
    train: StudyDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "references.yaml"
    of = "site: s, recipe: r, gpus: 4, options: {fp16: OPTION}"
    entry = f"- {{{of}, value: 480, unit: images/s, lower: -0.05, source: x, date: 2026-11-22}}\n"
    file.write_text("references:\n" + entry.replace("OPTION", '"true"'))
    (found,) = compared(capsys, "train", "--reference", str(file))["references"]
    assert (found["judgement"], found["interval_of"], len(found["runs"])) == ("good", "launches", 3)
    assert found["settings"] == ["fp16=true"]
    file.write_text("references:\n" + entry.replace("OPTION", "other"))
    assert runner(["compare", "train", "--reference", str(file)]) == Exit.USAGE
    assert "no reference fits recipe r on 4 GPUs" in capsys.readouterr().err


def test_a_figure_against_a_reference_names_the_launches_that_are_missing_and_how_far_apart_they_are(
    studies: StudyDirectory, tmp_path: Path
) -> None:
    """Whose slow ones may have run into their limit."""
    point = side(str(studies.path)).points[4, SETTINGS[0]]
    reference = Reference("s", "r", 4, 1.0, "images/s", -0.05, "x", "2026-11-22")
    found = [against(replace(point, not_proven=lacks), reference, tmp_path) for lacks in (0, 1)]
    words = "1 more launch of its point not proven, which may have been slow"
    assert [words in in_words(each.doubts) for each in found] == [False, True]
    assert words in "".join(reference_lines(found[1]))
    first, *others = point.launches
    far = replace(first, figure=msgspec.structs.replace(first.figure, value=2 * first.figure.value))
    apart = against(replace(point, launches=(far, *others)), reference, tmp_path)
    assert "rates of its launches differ by 1" in in_words(apart.doubts)
    began = [replace(each, began_s=10.0 * number, ended_s=10.0 * number + 11) for number, each in enumerate(others, 1)]
    at_once = against(replace(point, launches=tuple(began)), reference, tmp_path)
    assert f"{began[0].run} and {began[1].run} ran at the same time" in in_words(at_once.doubts)
    elsewhere = [replace(each, nodes=frozenset([each.run])) for each in began]
    of_queue = replace(point, launches=tuple(elsewhere)).doubts
    assert "at the same time" not in in_words(of_queue), "a queue runs them at once"
