"""Records: whole or not at all, and as schema.json says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import records

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "recipes/lib/schema.json").read_text())
TYPES = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None), "object": dict}


def faults_of(record: dict[str, Any], kind: str) -> list[str]:
    """What of a record is not as its definition says: the part of JSON Schema that schema.json uses."""
    definition = SCHEMA["$defs"][kind]
    found = [f"{name} is missing" for name in definition["required"] if name not in record]
    found += [f"{name} is unknown" for name in record if name not in definition["properties"]]
    for name, value in record.items():
        rule = definition["properties"].get(name, {})
        if "const" in rule and value != rule["const"]:
            found.append(f"{name} is not {rule['const']}")
        if "enum" in rule and value not in rule["enum"]:
            found.append(f"{name} is none of {rule['enum']}")
        if "type" in rule and not _is(value, rule["type"]):
            found.append(f"{name} is no {rule['type']}: {value!r}")
        if rule.get("type") == "array" and not all(_is(each, rule["items"]["type"]) for each in value):
            found.append(f"{name} holds something else")
    return found


def _is(value: Any, kinds: str | list[str]) -> bool:
    return any(
        isinstance(value, list)
        if kind == "array"
        else isinstance(value, TYPES[kind])  # type: ignore[arg-type]
        and not (isinstance(value, bool) and kind in ("integer", "number"))
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def test_a_record_is_written_whole_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "ranks" / "3.exit.json"
    records.write(str(path), "exit", {"rank": 3, "elapsed_s": float("nan"), "message": "\udcff ü"})
    told = json.loads(path.read_text())
    assert told == {"schema": "1", "kind": "exit", "rank": 3, "elapsed_s": None, "message": "\udcff ü"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["3.exit.json"]


def test_a_record_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        records.write(str(path), "result", {"x": object()})
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_a_full_disk_leaves_no_half_record() -> None:
    with pytest.raises(OSError, match=r".*"):
        records.write("/dev/full/x.json", "exit", {})


def test_what_is_written_is_as_the_schema_says(tmp_path: Path) -> None:
    programs = {"good": ["tests/recipes/faults/main.py"], "seen": ["recipes/probe/main.py", "--env", "PATH"]}
    for name, words in programs.items():
        argv = [sys.executable, str(ROOT / "recipes/lib/launch.py"), "--run", str(tmp_path / name), "--"]
        done = subprocess.run(
            [*argv, sys.executable, *words], cwd=ROOT, timeout=60, check=True, env={"PATH": os.environ["PATH"]}
        )
        assert done.returncode == 0
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json"))
    assert len(found) == 8
    for name in found:
        record = json.loads((tmp_path / name).read_text())
        assert (name, faults_of(record, record["kind"])) == (name, [])


def test_the_schema_check_itself_sees_faults() -> None:
    assert "rank is missing" in faults_of({}, "exit")
    assert "rank is no integer: True" in faults_of({"rank": True}, "exit")
    assert "what is unknown" in faults_of({"what": 1}, "exit")
