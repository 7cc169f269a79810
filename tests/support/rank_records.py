"""The records and verdicts that runs leave: reading them, and waiting for them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def has_started(ranks: int) -> Callable[[Path], bool]:
    return lambda run: len(records(run, "start")) == ranks


def records(run: Path, kind: str) -> dict[int, dict[str, Any]]:
    return {
        int(path.name.split(".")[0]): json.loads(path.read_text()) for path in (run / "ranks").glob(f"*.{kind}.json")
    }


def document_of(run: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run's directory: ``plan``, ``verdict``, ``result``."""
    document: dict[str, Any] = json.loads((run / f"{name}.json").read_text())
    return document


def outcome(run: Path) -> str:
    return str(document_of(run, "verdict")["outcome"])


def printed(run: Path, rank: int = 0) -> str:
    return (run / "logs" / f"rank-{rank}.out").read_text()


def ranks_by_node(run: Path) -> list[int]:
    """How many ranks started on each node, the most first."""
    hosts = [start["host"] for start in records(run, "start").values()]
    return sorted((hosts.count(host) for host in set(hosts)), reverse=True)


def arrived(probe: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The arguments of a rank's probe, and the variables that it was asked for."""
    variables = {name: base64.b64decode(raw).decode() for name, raw in probe["environment_base64"].items()}
    return [base64.b64decode(word).decode() for word in probe["argv_base64"]], variables
