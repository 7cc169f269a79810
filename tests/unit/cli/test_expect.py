"""``expect``: its answer for people and for programs, and what it says to those who ask for the impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.cli.expect import expectation_lines
from runner.core.errors import Exit
from runner.jobs.expected import OneGpu, expect
from runner.sites.loader import read_site
from tests.support.commands import Call
from tests.support.documents import result

HERE = ("recipe", "expect", "--site", "technion", "--recipe", "horovod-pytorch")


@pytest.mark.parametrize("width", [40, 80, 132, None])
def test_no_line_is_wider_than_its_terminal_and_a_pipe_gets_one_for_each_point_and_input(width: int | None) -> None:
    hostile = OneGpu(2400.0, 2400.0, 2400.0, "a run \x1b[31mred\x1b[0m")
    answer = expect(read_site("technion"), "horovod-pytorch", (), (1, 16, 1024), hostile)
    text = expectation_lines(answer, width)
    assert all(len(line) <= (width or 10_000) and "\x1b" not in line for line in text)
    whole = "\n".join(text)
    for name in ("1024", "between-gb-s", "What 20 % of an input does", "coordination-us"):
        assert name in whole or name in whole.replace("\n", " ")
    if width is None:
        assert len([line for line in text if line.split()[:1] in (["1"], ["16"], ["1024"])]) == 3
        assert all(any(line.startswith(f"{each.name} ") for line in text) for each in answer.inputs)


def test_the_answer_as_json_is_whole(call: Call) -> None:
    answer = result(call(*HERE, "--gpus", "1,2,16", "--images-per-s", "2400", "--json").out)
    assert [each["gpus"] for each in answer["points"]] == [1, 2, 16]
    assert answer["points"][0]["images_per_s"] == {"low": 2400.0, "value": 2400.0, "high": 2400.0}
    assert {"between-gb-s", "spread"} <= {each["name"] for each in answer["inputs"]}
    assert answer["points"][2]["sensitivities"]


def test_a_step_in_milliseconds_is_a_rate_of_the_batch(call: Call) -> None:
    printed = call(*HERE, "--gpus", "1", "--step-ms", "100", "--set", "batch-size=128", "--json").out
    assert result(printed)["points"][0]["images_per_s"]["value"] == pytest.approx(1280.0)


def test_measured_times_of_nccl_tests_decide_as_far_as_they_reach(tmp_path: Path, call: Call) -> None:
    def answer(*rows: tuple[int, int]) -> Any:
        path = tmp_path / "all_reduce.csv"
        path.write_text("size,time\n" + "".join(f"{size},{time_us}\n" for size, time_us in rows))
        command = [*HERE, "--gpus", "16,32", "--images-per-s", "2400", "--nccl-tests", str(path), "--nccl-gpus", "16"]
        return result(call(*command, "--json").out)

    fast, slow = (answer((1024, time_us), (134217728, 100 * time_us)) for time_us in (100, 1000))
    assert slow["points"][0]["allreduce_s"] > 5 * fast["points"][0]["allreduce_s"]
    assert [each["measured_allreduce"] for each in fast["points"]] == [True, False]
    assert any("extrapolated" in note for note in fast["notes"])
    small, large = (answer((1 << 20, 100), (largest, largest // 10_000)) for largest in (2 << 20, 1 << 30))
    noted = [any("messages have up to 102228128 bytes" in note for note in each["notes"]) for each in (small, large)]
    assert noted == [True, False]


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
    "no GPUs at the site": (["--site", "box", "--gpus", "8"], Exit.REFUSED, "nothing is expected of the site box"),
    "no such run": (["--gpus", "8", "--allreduce", "no-such-run"], Exit.USAGE, "no-such-run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_impossible_is_refused_in_words(case: str, call: Call) -> None:
    arguments, code, says = WRONG[case]
    printed = call(*HERE, *arguments, code=code)
    assert says in " ".join(printed.err.split()) and not printed.out
