"""The proof record of a climb, and where it goes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec

from runner.core import files
from runner.core.files import key_of
from runner.model.verdict import REQUIRED, ProofRecord, RungRecord
from runner.proving.climb import Climb, program_hash
from runner.proving.ladder import Ladder
from runner.sites.proofs import digest_of, user_records

FILE = "record.json"  # in the ladder's own directory


def record_of(ladder: Ladder, climb: Climb, program: str) -> ProofRecord | None:
    """The record of a climb; None where not even a job could be planned. Pure."""
    if climb.prepared is None:
        return None
    plan = climb.prepared.plan
    by_name = {each.rung: each for each in climb.records}
    devices = by_name.get("devices", RungRecord("devices", "failed"))
    versions = dict(devices.versions)
    last_s = max((each.finished for each in climb.records), default=0.0)
    record = ProofRecord(
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last_s)),
        pretend=ladder.pretend,
        quick=ladder.quick,
        site=plan.site,
        runtime=plan.runtime,
        image=plan.image.pinned,
        program=program,
        driver=versions.pop("driver", ""),
        gpus=devices.gpus,
        versions=versions,
        rungs=climb.records,
    )
    return msgspec.structs.replace(record, digest=digest_of(record))


def write(record: ProofRecord, root: Path) -> Path | None:
    """Write it into the ladder's directory and, if it proves something, where ``site show`` looks; returns that file.

    Never there with ``--pretend-cpu``.
    """
    text = json.dumps(msgspec.to_builtins(record), indent=1) + "\n"
    files.write_private(root / FILE, text)
    if record.pretend or any(record.state_of(rung) != "passed" for rung in REQUIRED):
        return None
    directory = user_records()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    machine = key_of(*sorted(gpu.uuid for gpu in record.gpus))[:8]
    path = directory / f"{record.site}-{record.runtime}-{machine}.json"
    files.write_private(path, text)
    return path


def keep(ladder: Ladder, climb: Climb, root: Path) -> tuple[ProofRecord | None, Path | None]:
    """Make and write the record of a climb; returns it, and where ``site show`` finds it."""
    record = record_of(ladder, climb, program_hash())
    return record, write(record, root) if record is not None else None
