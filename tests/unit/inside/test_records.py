"""Records: whole or not at all, and as schema.json says."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from gpu_runner_inside import records, world_report

from tests.support.commands import ran
from tests.support.json_schema import check
from tests.support.launchers import by_srun, command
from tests.support.limits import largest_file

ROOT = Path(__file__).resolve().parents[3]


def test_a_record_is_written_whole_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ranks" / "3.exit.json"
    records.write(str(path), "exit", {"rank": 3, "elapsed_s": float("nan"), "message": "\udcff ü"})
    result = json.loads(path.read_text())
    assert result == {"schema": "2", "kind": "exit", "rank": 3, "elapsed_s": None, "message": "\udcff ü"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["3.exit.json"]


def test_a_record_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """For what it holds, or as the disk is full."""
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        records.write(str(path), "result", {"x": object()})
    with largest_file(20), pytest.raises(OSError, match="File too large"):
        records.write(str(path), "result", {})
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_what_is_written_is_as_the_schema_says(tmp_path: Path) -> None:
    programs = {"good": ["tests/recipes/faults/main.py"], "seen": ["recipes/probe/main.py", "--env", "PATH"]}
    for name, words in programs.items():
        ran(command(tmp_path / name, "--", sys.executable, *words), cwd=ROOT, env={"PATH": os.environ["PATH"]})
    left = list(tmp_path.rglob("*.json"))
    assert len(left) == 10
    for path in left:
        check(json.loads(path.read_text()))


def test_a_start_record_does_not_grow_with_the_number_of_nodes(tmp_path: Path) -> None:
    sizes = {}
    for nodes in (2, 2048):
        run, tasks, spread = tmp_path / str(nodes), 8 * nodes, f"8(x{nodes})"
        env = {
            "PATH": os.environ["PATH"],
            **by_srun(0, [8]),
            "SLURM_NTASKS": str(tasks),
            "SLURM_STEP_TASKS_PER_NODE": spread,
        }
        ran(command(run, "--wireup", "env", "--", "true"), env=env)
        record = run / "ranks" / "0.start.json"
        fields = json.loads(record.read_text())
        check(fields)
        assert fields["local_sizes"] == spread
        sizes[nodes] = record.stat().st_size
    assert sizes[2048] - sizes[2] < 32
    check(fields | {"local_sizes": [8, 8]})  # as older records have it


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ({"kind": "what"}, "no kind of record: 'what'"),
        ({"kind": "exit", "schema": "1"}, "schema is not '2'"),
        ({"kind": "exit", "rank": -1}, "rank is under 0: -1"),
        ({"kind": "exit", "signals_forwarded": ["15"]}, "signals_forwarded[0] is no integer: '15'"),
        ({"kind": "start", "environment": {"A": 1}}, "environment.A is no string: 1"),
        ({"kind": "report", "ends_s": [0.0]}, "ends_s[0] is not over 0: 0.0"),
    ],
)
def test_the_schema_check_itself_sees_faults(record: dict[str, object], fault: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(fault)):
        check(record)


def test_a_report_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RUNNER_RANK", "3")
    monkeypatch.setenv("RUNNER_HOST", "n1")
    world_report.leave("horovod", (0, 1, 0), "cpu", 0.5, framework_version="2")
    record = json.loads((tmp_path / "ranks" / "3.report.json").read_text())
    check(record)
    assert (record["rank"], record["world_rank"], record["world_size"]) == (3, 0, 1), (
        "Horovod fell back to a world of 1"
    )
    assert (record["host"], record["framework_version"]) == ("n1", "2")
    monkeypatch.delenv("RUNNER_RUN_DIR")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    world_report.leave("horovod", (0, 1, 0), "cpu", 0.5)
    assert not list((tmp_path / "elsewhere").iterdir()), "outside of a job there is none"
