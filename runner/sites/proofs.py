"""What has been proven of a site: by the project's own runs, kept in ``proofs.yaml``, and by records of ``prove``.

Records of ``prove`` remove the word UNPROVEN for their own machine alone. They lie in the user's state directory, and
in ``runner/sites/proofs``, as the project ships them. A record is believed as far as its machine can be recognised and
it fits its own digest; that detects an edited file, and no forger who computes the digest anew: whoever can write the
user's files can write records, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import files, paths, strict_yaml
from runner.core.files import sha256
from runner.core.text import gpus_text
from runner.model.backends import SCHEDULERS
from runner.model.site import Site
from runner.model.verdict import BETWEEN_GPUS, REQUIRED, ProofRecord

_SHIPPED = Path(__file__).parent / "proofs"
_RUNS = Path(__file__).resolve().parent / "proofs.yaml"
_MOST_BYTES = 1 << 20


class RecordedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One proof: what ran, when, with which versions, by which command, and its result; each as Markdown in one line.

    ``about``: its table on the page. ``versions``: besides those that the page names for all rows. ``suite``: the
    command that repeats it, as ``make test-sites``; ``command``: what else was called. ``id``: for what refers
    to it.
    """

    date: str
    about: Literal["gpu", "jobs", "images", "environments", "figures"]
    path: str
    result: str
    versions: str = ""
    command: str = ""
    id: str = ""
    suite: str = ""


class ProvenWay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way of one site. ``ran``, ``accepted``: the run in which a job ran so, or a scheduler took its script."""

    site: str
    runtime: str
    wireup: str
    ran: str = ""
    accepted: str = ""
    besides: str = ""

    @property
    def state(self) -> str:
        """What the recorded runs make of it."""
        return "run" if self.ran else "accepted" if self.accepted else "golden only"


class Proofs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the project has recorded of its own runs; ``unproven``: what has no run at all, as Markdown."""

    runs: tuple[RecordedRun, ...]
    ways: tuple[ProvenWay, ...]
    unproven: tuple[str, ...]

    def runs_by_id(self) -> dict[str, RecordedRun]:
        """The runs that something refers to."""
        return {run.id: run for run in self.runs if run.id}


def recorded() -> Proofs:
    """The project's own record."""
    return strict_yaml.load(_RUNS, Proofs)


def with_recorded(site: Site) -> Site:
    """A shipped site with the runs that proved its runtimes."""
    proofs = recorded()
    runs = proofs.runs_by_id()
    ran = {way.runtime: runs[way.ran] for way in proofs.ways if way.site == site.name and way.ran}
    proven = {runtime: f"{run.date}: {run.path}; {run.versions}" for runtime, run in ran.items()}
    return msgspec.structs.replace(site, proven=proven | site.proven)


@dataclass(frozen=True)
class Proven:
    """What records prove of one site or machine.

    Attributes:
        runtimes: runtime -> one line on the GPU run that proved it.
        nccl_between_gpus: one line on the run that proved NCCL between GPUs; empty for none.
        ignored: file -> why a record of this site proves nothing here.
    """

    runtimes: dict[str, str]
    nccl_between_gpus: str
    ignored: dict[str, str]


def user_records() -> Path:
    """Where ``prove`` keeps the records of this user."""
    return paths.state("proofs")


def read_records(directories: Iterable[Path] | None = None) -> dict[str, ProofRecord | None]:
    """Every record by its path; None for one that cannot be read as such."""
    found: dict[str, ProofRecord | None] = {}
    for directory in directories if directories is not None else (_SHIPPED, user_records()):
        for name in sorted(files.names_in(directory)):
            if name.endswith(".json"):
                found[str(directory / name)] = _read(directory / name)
    return found


def digest_of(record: ProofRecord) -> str:
    """The digest that belongs to a record."""
    return sha256(msgspec.json.encode(msgspec.structs.replace(record, digest=""), order="sorted"))


def proven_by(records: dict[str, ProofRecord | None], site: Site, here: frozenset[str]) -> Proven:
    """What the records prove of the site. Pure.

    Args:
        here: UUIDs of this machine's GPUs, for a site that is this machine.
    """
    runtimes: dict[str, str] = {}
    between, ignored = "", {}
    whole = {path: record for path, record in records.items() if record is not None and record.site == site.name}
    for path, record in sorted(whole.items(), key=lambda item: item[1].date):
        why = why_nothing(record, site, here)
        if why:
            ignored[path] = why
            continue
        line = _line(record, path)
        runtimes[record.runtime] = line
        if record.state_of(BETWEEN_GPUS) == "passed" and len(record.gpus) > 1:
            between = line
    return Proven(runtimes, between, ignored)


def why_nothing(record: ProofRecord, site: Site, here: frozenset[str]) -> str:
    """Why a record proves nothing of this site; empty where it proves something. Pure."""
    uuids = {gpu.uuid for gpu in record.gpus if gpu.uuid.startswith(("GPU-", "MIG-"))}
    open_rungs = [rung for rung in REQUIRED if record.state_of(rung) != "passed"]
    reasons = (
        (record.pretend, "its jobs ran on processors (--pretend-cpu)"),
        (record.digest != digest_of(record), "it was changed after it was written"),
        (not uuids or not record.driver, "it names no GPU and driver"),
        (bool(open_rungs), f"not passed: {', '.join(open_rungs)}"),
        (record.runtime not in site.runtimes, f"the site has no runtime {record.runtime}"),
        (
            SCHEDULERS[site.scheduler].nodes == "this-machine" and not here & uuids,
            "it is of another machine: its GPUs are not those here",
        ),
        (
            SCHEDULERS[site.scheduler].nodes == "this-machine" and not here <= uuids,
            f"it names {len(here & uuids)} of this machine's {gpus_text(len(here))}: "
            "CUDA must show all of them to `prove`",
        ),
    )
    return next((why for holds, why in reasons if holds), "")


def _line(record: ProofRecord, path: str) -> str:
    names = sorted({gpu.name for gpu in record.gpus})
    passed = ", ".join(each.rung for each in record.rungs if each.state == "passed")
    figures = "; short measurements: every figure is UNPROVEN" if record.quick else ""
    return (
        f"{record.date[:10]}: `prove` on {len(record.gpus)} x {', '.join(names)}, driver {record.driver}, "
        f"{record.image}; passed, and all else UNPROVEN: {passed}{figures} ({path})"
    )


def _read(path: Path) -> ProofRecord | None:
    try:
        return msgspec.json.decode(files.read_bytes(path, _MOST_BYTES), type=ProofRecord)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
