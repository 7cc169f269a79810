"""Which code a run ran, by what may differ: what was copied for it, its commit and changes, its software."""

from __future__ import annotations

import json
from pathlib import Path

from runner.core.files import sha256, tree_hash
from runner.jobs.code_record import changes_in, is_documentation
from runner.jobs.directory import CODE_FILES, Run, recipe_programs
from runner.jobs.snapshot_copy import CopiedFiles
from runner.model.job import CodeRecord
from runner.model.records import ExitRecord


def copied_code(run: Run) -> str:
    """Hash of the code that was copied for a run: its snapshot, else the programs of its recipe; empty for neither."""
    if (snapshot := run.read(CODE_FILES, CopiedFiles)) is not None:
        contents = sorted(each for each in snapshot.contents.items() if not is_documentation(each[0]))
        return f"sha256 {sha256(json.dumps(contents).encode())[:12]}"
    return programs_of(run.path / "recipe")


def programs_of(recipe: Path, beside: Path | None = None) -> str:
    """``beside``: without what that does not have, which a program may have left."""
    sources = [(name, path) for name, path in recipe_programs(recipe) if beside is None or (beside / name).exists()]
    return f"sha256 {tree_hash(sources)[:12]}" if sources else ""


def code_facts(run: Run) -> dict[str, str]:
    """What ran, by what may differ: the copied code, else commit and changes of the user's; and gpu-runner itself."""
    copied = copied_code(run)
    record, start, ended = run.code, run.records.start(0), run.records.records("exit", ExitRecord).get(0)
    of_start = (start and start.program_sha256) or (ended and ended.program and ended.program.sources)
    # Of a recipe the files that were known as it began tell: its program may have left others beside them.
    facts = {} if of_start and not run.content(CODE_FILES) else {"program": copied}
    if not copied and record is not None:
        facts = commit_facts(record)
    facts |= {"files": start.program_sha256 or ""} if start else {}
    return facts | {"gpu-runner": run.provenance.gpu_runner, "software": software_of(run)}


def commit_facts(record: CodeRecord) -> dict[str, str]:
    """Of the code's commit; empty where it has none."""
    known = {"commit": record.commit, "sources": record.sources, "other_sources": record.other_sources}
    return known if record.commit else {}


def changes_of(record: CodeRecord | None, diff: bytes) -> dict[str, str] | None:
    """File -> digest of what differs from the code's commit; None where that is not known."""
    if record is None or not record.commit or record.dirty is None:
        return None
    return {name: "" for name in record.changed} | {name: sha256(text) for name, text in changes_in(diff)}


def software_of(run: Run) -> str:
    """Of the first rank, as it reported it; empty where it is unknown."""
    if (report := run.records.report(0)) is None or not report.framework_version:
        return ""
    others = {"Horovod": report.horovod_version, "CUDA": report.cuda_version}
    named = (f"{name} {value}" for name, value in others.items() if value)
    return ", ".join((f"{report.framework} {report.framework_version}", *named))
