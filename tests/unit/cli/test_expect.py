"""``expect``: its answer for people and for programs, and what it says to those who ask for the impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli.expect import expectation_lines
from runner.core.errors import Exit
from runner.jobs.expected import OneGpu, expect
from runner.sites.loader import read_site
from tests.support.commands import Call
from tests.support.documents import document

ANSWER = expect(read_site("technion"), "horovod-pytorch", (), (1, 16, 1024))
HERE = ("recipe", "expect", "--site", "technion", "--recipe", "horovod-pytorch")


@pytest.mark.parametrize("width", [40, 80, 132, None])
def test_no_line_is_wider_than_its_terminal(width: int | None) -> None:
    text = expectation_lines(ANSWER, width)
    assert all(len(line) <= (width or 10_000) for line in text)
    whole = "\n".join(text)
    for name in ("1024", "between-gb-s", "what 20 % of an input does".capitalize(), "coordination-us"):
        assert name in whole or name in whole.replace("\n", " ")


def test_a_pipe_gets_one_line_for_each_point_and_input() -> None:
    text = expectation_lines(ANSWER, None)
    assert len([line for line in text if line.split()[:1] in (["1"], ["16"], ["1024"])]) == 3
    assert all(any(line.startswith(f"{each.name} ") for line in text) for each in ANSWER.inputs)


def test_the_answer_as_json_is_whole(call: Call) -> None:
    result = document(call(*HERE, "--gpus", "1,2,16", "--images-per-s", "2400", "--json").out).result
    assert [each["gpus"] for each in result["points"]] == [1, 2, 16]
    assert result["points"][0]["images_per_s"] == {"low": 2400.0, "value": 2400.0, "high": 2400.0}
    assert {"between-gb-s", "spread"} <= {each["name"] for each in result["inputs"]}
    assert result["points"][2]["sensitivities"]


def test_a_step_in_milliseconds_is_a_rate_of_the_batch(call: Call) -> None:
    printed = call(*HERE, "--gpus", "1", "--step-ms", "100", "--set", "batch-size=128", "--json").out
    assert document(printed).result["points"][0]["images_per_s"]["value"] == pytest.approx(1280.0)


def test_measured_times_of_nccl_tests_decide(tmp_path: Path, call: Call) -> None:
    def exposed(time_us: int) -> float:
        path = tmp_path / "all_reduce.csv"
        path.write_text(f"size,time\n1024,{time_us}\n134217728,{100 * time_us}\n")
        command = [*HERE, "--gpus", "16,32", "--images-per-s", "2400", "--nccl-tests", str(path), "--nccl-gpus", "16"]
        result = document(call(*command, "--json").out).result
        assert [each["measured_allreduce"] for each in result["points"]] == [True, False]
        assert any("extrapolated" in note for note in result["notes"])
        return float(result["points"][0]["allreduce_s"])

    assert exposed(1000) > 5 * exposed(100)


@pytest.mark.parametrize(("largest", "noted"), [(2 << 20, True), (1 << 30, False)])
def test_messages_beyond_the_measured_ones_are_named(largest: int, noted: bool, tmp_path: Path, call: Call) -> None:
    path = tmp_path / "all_reduce.csv"
    path.write_text(f"size,time\n1048576,100\n{largest},{largest // 10_000}\n")
    command = [*HERE, "--gpus", "16", "--images-per-s", "2400", "--nccl-tests", str(path), "--nccl-gpus", "16"]
    notes = document(call(*command, "--json").out).result["notes"]
    assert any("messages have up to 102228128 bytes" in note for note in notes) is noted


WRONG: dict[str, tuple[list[str], Exit, str]] = {
    "no GPUs": (["--gpus", "0"], Exit.USAGE, "0 GPUs are not possible"),
    "no number": (["--gpus", "٣"], Exit.USAGE, "is no list of numbers"),
    "less than none": (["--gpus", "-1"], Exit.USAGE, "is no list of numbers"),
    "an empty place": (["--gpus", "1,,2"], Exit.USAGE, "is no list of numbers"),
    "too many points": (["--gpus", ",".join(["1"] * 65)], Exit.USAGE, "65 numbers of GPUs are more than 64"),
    "too many GPUs": (["--gpus", "999999999"], Exit.REFUSED, "more than 10000 nodes"),
    "too few nodes": (["--gpus", "16", "--nodes", "1"], Exit.REFUSED, "16 GPUs do not fit on 1 node of"),
    "two rates": (["--gpus", "8", "--images-per-s", "1", "--step-ms", "1"], Exit.USAGE, "exclude each other"),
    "a rate of 0": (["--gpus", "8", "--images-per-s", "0"], Exit.USAGE, "no rate of one GPU"),
    "no rate": (["--gpus", "8", "--images-per-s", "nan"], Exit.USAGE, "no rate of one GPU"),
    "a step of 0": (["--gpus", "8", "--step-ms", "0"], Exit.USAGE, "no rate of one GPU"),
    "a negative step": (["--gpus", "8", "--step-ms=-5"], Exit.USAGE, "no rate of one GPU"),
    "no ceiling": (["--gpus", "8", "--input-images-per-s", "-1"], Exit.USAGE, "input-images-per-s is not a number"),
    "no input": (["--gpus", "8", "--assume", "sprad=1"], Exit.USAGE, "no input 'sprad'"),
    "no value": (["--gpus", "8", "--assume", "spread"], Exit.USAGE, "is not NAME=VALUE or NAME=LOW:VALUE:HIGH"),
    "two values": (["--gpus", "8", "--assume", "spread=1:2"], Exit.USAGE, "is not NAME=VALUE or"),
    "no file": (["--gpus", "8", "--nccl-tests", "/nowhere"], Exit.USAGE, "No such file"),
    "GPUs of no file": (["--gpus", "8", "--nccl-gpus", "8"], Exit.USAGE, "give the file: --nccl-tests FILE"),
    "no run": (["--gpus", "8", "--one-gpu", "no-such-run"], Exit.USAGE, "no-such-run"),
    "no such run": (["--gpus", "8", "--allreduce", "no-such-run"], Exit.USAGE, "no-such-run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_impossible_is_refused_in_words(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path))
    arguments, code, says = WRONG[case]
    printed = call(*HERE, *arguments, code=code)
    assert says in " ".join(printed.err.split()) and not printed.out


def test_a_site_without_gpus_expects_nothing(call: Call) -> None:
    assert (
        "nothing is expected of the site box" in call("expect", "--site", "box", "--gpus", "8", code=Exit.REFUSED).err
    )


def test_hostile_text_in_a_source_cannot_reach_the_terminal() -> None:
    hostile = OneGpu(2400.0, 2400.0, 2400.0, "a run \x1b[31mred\x1b[0m")
    text = "\n".join(expectation_lines(expect(read_site("technion"), "horovod-pytorch", (), (8,), hostile), 80))
    assert "\x1b" not in text
