"""Whether all ranks ran one software on one kind of hardware, by what each rank reported itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from runner.jobs.collect import Evidence
from runner.jobs.failure_causes import format_ranks

# Names of a report's fields: ranks that differ in these do not run one program.
_SOFTWARE = {
    "framework": "framework",
    "framework_version": "version of the framework",
    "horovod_version": "version of Horovod",
    "cuda_version": "CUDA",
    "image_checksum": "image",
}


def faults(evidence: Evidence) -> Iterable[str]:
    """A sentence for each part of the software that ranks have of several kinds."""
    for field, words in _SOFTWARE.items():
        if len(kinds := _kinds(evidence, field)) > 1:
            yield f"the ranks did not run the same software: {words}: {_named(kinds)}; fix: one image or environment"


def hardware(evidence: Evidence) -> str:
    """What of the hardware differs among ranks and nodes; empty for nothing that is known."""
    drivers: dict[str, list[int]] = {}
    for record in evidence.watched.values():
        if record.driver:
            drivers.setdefault(record.driver, []).append(record.rank)
    kinds = {"device": _kinds(evidence, "device_name"), "driver": drivers}
    return "; ".join(f"{words}: {_named(each)}" for words, each in kinds.items() if len(each) > 1)


def reported(evidence: Evidence) -> dict[str, str]:
    """What the ranks ran on, by their own reports, for people."""
    framework, version, devices = (
        ", ".join(_kinds(evidence, field)) for field in ("framework", "framework_version", "device_name")
    )
    seen = {
        "framework": f"{framework} {version}".strip() if version else "",
        "CUDA": ", ".join(_kinds(evidence, "cuda_version")),
        "Horovod": ", ".join(_kinds(evidence, "horovod_version")),
        "device": devices,
        "driver": ", ".join(dict.fromkeys(record.driver for record in evidence.watched.values() if record.driver)),
    }
    return {name: value for name, value in seen.items() if value}


def _kinds(evidence: Evidence, field: str) -> dict[str, list[int]]:
    """The ranks of each value that is known."""
    kinds: dict[str, list[int]] = {}
    for rank, report in sorted(evidence.reports.items()):
        if value := getattr(report, field):
            kinds.setdefault(value, []).append(rank)
    return kinds


def _named(kinds: dict[str, list[int]]) -> str:
    return ", ".join(f"{value} on {format_ranks(ranks)}" for value, ranks in kinds.items())
