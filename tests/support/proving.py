"""What jobs of a ladder leave, and the rungs before them, for tests of judgements."""

from typing import Any

from runner.model.records import ProvingRecord
from runner.model.verdict import ProvenValue, RungRecord
from runner.proving.ladder import JobOutcome


def earlier_rungs(**figures: ProvenValue) -> dict[str, RungRecord]:
    """The first rung, passed on two H100."""
    known: dict[str, ProvenValue] = {"devices": 2, "capability": "9.0", "memory_bytes": 80 * 10**9, "mig": False}
    return {"devices": RungRecord("devices", "passed", figures={**known, **figures})}


def step_outcome(name: str, facts: dict[str, Any], ranks: int = 2, kind: Any = "cuda", **changes: Any) -> JobOutcome:
    """A step that ran, with the same facts on every rank."""
    records = tuple(ProvingRecord("2", rank, name, kind, facts) for rank in range(ranks))
    values: dict[str, Any] = {"outcome": "ran", "facts": records, "nccl_processes": ranks, "proven": ("ran well",)}
    return JobOutcome(**{**values, **changes})
