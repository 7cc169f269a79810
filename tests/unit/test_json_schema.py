"""The JSON Schema of what ``--json`` prints: it has every command, and docs/json-schema.json is it."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from runner.cli import ALIASES, VERBS, cli
from runner.cli.results import RESULTS, json_schema
from runner.model.output import RunFacts
from tests.support.json_schema import faults

DOCUMENTED = Path(__file__).resolve().parents[2] / "docs/json-schema.json"


def commands(group: click.Group, names: Iterable[str], above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in names:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield f"{above}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, command.commands, f"{above}{name} ")


def test_it_has_exactly_the_commands_that_take_json() -> None:
    every = commands(cli, (*VERBS, *ALIASES))
    takes = {name for name, each in every if any(option.name == "as_json" for option in each.params)}
    assert takes == set(RESULTS), "RESULTS in runner/cli/results.py says what the result of each command is"


def test_the_documented_one_is_this_one() -> None:
    is_same = json.loads(DOCUMENTED.read_text()) == json.loads(json.dumps(json_schema()))
    assert is_same, "gpu-runner --json-schema >docs/json-schema.json"


WRONG: dict[str, tuple[Any, str]] = {
    "a key too many": (lambda run: run | {"more": 1}, "more is unknown"),
    "a key too few": (lambda run: {name: each for name, each in run.items() if name != "state"}, "state is missing"),
    "another type": (lambda run: run | {"gpus": "2"}, "gpus is no integer"),
    "another word": (lambda run: run | {"state": "gone"}, "state is none of"),
    "something else": (lambda run: [run], "no object"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_schema_accepts_nothing_else(case: str) -> None:
    values: dict[str, Any] = {name: None for name in RunFacts.__struct_fields__} | {
        "verdict": None,
        "findings": [],
        "unconfirmed": [],
        "rank_gpus": [],
    }
    texts = dict.fromkeys(("run", "directory", "name", "job", "site", "recipe", "runtime", "image"), "x")
    numbers = dict.fromkeys(("gpus", "nodes", "ranks", "ranks_started", "ranks_ended"), 2)
    whole = values | texts | numbers | {"state": "pending"}
    envelope = {"schema": "gpu-runner/1", "command": "wait", "exit_code": 0, "error": None}
    assert faults(envelope | {"result": whole}, json_schema()) == []
    change, says = WRONG[case]
    assert says in "\n".join(faults(envelope | {"result": change(whole)}, json_schema()))
