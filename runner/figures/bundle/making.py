"""Makes a bundle: copies of the records of runs without secrets, with what they prove."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.core import files
from runner.core.errors import NotProvenError, UsageError
from runner.core.files import sha256
from runner.core.hide import REDACTED
from runner.core.paths import check_output
from runner.figures.bundle import bag, signature
from runner.figures.bundle.bag import files_of
from runner.figures.bundle.proof import (
    LOG,
    RUNS,
    STUDY,
    Figures,
    beside_study,
    canonical_json,
    check_different,
    proven_run,
    proven_study,
)
from runner.jobs.directory import VERDICT, Run
from runner.jobs.redaction import redacted_file, secrets_of
from runner.model.figure import OfStudy, figure_of
from runner.model.output import Bundle, BundledRun, MadeBundle
from runner.model.study import Span

TOP = "gpu-runner-bundle"
ABOUT = "bundle.json"
SCHEMA: Final = "gpu-runner-bundle/1"
_DIGEST = re.compile(r"\b(?:[0-9a-f]{8}|[0-9a-f]{16})\Z")


@dataclass(frozen=True)
class StudyToBundle:
    """A study: ``study.json``, the run by which each launch is proven by the launch's key, and what makes its table;
    what was launched and is not there any more; its log of launches, None where it has none; when and where runs ran
    that gave no figure.
    """

    question: bytes
    runs: Mapping[str, Run]
    figures: Figures
    gaps: tuple[str, ...] = ()
    log: bytes | None = None
    others: tuple[Span, ...] = ()


def make(runs: Sequence[Run], file: Path, key: Path | None = None, study: StudyToBundle | None = None) -> MadeBundle:
    """Write a bundle of these runs, all of the study if there is one. The same runs give the same bytes; a signature is
    the key's.

    Raises:
        NotProvenError: a run is not measured, or its records do not give its verdict.
        UsageError: it cannot be made of these runs, or the key cannot sign.
        OSError: a file cannot be read or written.
    """
    check_replaceable(file)
    with files.temporary_directory() as data:
        numbers: dict[str, str] = {}
        bundled = tuple(_copied(run, data, numbers) for run in sorted(runs, key=lambda run: run.run_id))
        if len({run.run for run in bundled}) != len(bundled):
            raise UsageError("two of these runs have the same id", fix="put them into two bundles")
        check_different(data / RUNS / run.run for run in bundled)
        together, of_figures = None, OfStudy()
        if study is not None:
            secrets = sorted({each for run in runs for each in secrets_of(run)}, key=len, reverse=True)
            question = redacted_file(STUDY, study.question, secrets)
            (data / STUDY).write_bytes(question)
            if study.log is not None:
                (data / LOG).write_bytes(redacted_log(study.log, secrets, {sha256(study.question): sha256(question)}))
            ids = {each: run.run_id for each, run in study.runs.items()}
            together, of_figures = proven_study(data, ids, study.figures, study.gaps, study.others)
        (data / ABOUT).write_bytes(canonical_json(Bundle(SCHEMA, bundled, together)))
        paths = {path.relative_to(data).as_posix(): path for path in data.rglob("*") if path.is_file()}
        digests = {name: sha256(path) for name, path in paths.items()}
        tags = bag.tag_files(digests, sum(path.stat().st_size for path in paths.values()))
        if key is not None:
            tags[bag.SIGNATURE] = signature.sign(tags[bag.TAG_MANIFEST], key)
        members: list[tuple[str, Path | bytes]] = [(f"{TOP}/{name}", content) for name, content in tags.items()]
        members += [(f"{TOP}/{bag.DATA}{name}", path) for name, path in paths.items()]
        with files.replacement(file) as temporary, temporary.open("wb") as out:
            bag.write(out, members)
    shown = bundled if together is None else beside_study(bundled, together, of_figures)
    return MadeBundle(str(file), file.stat().st_size, sha256(tags[bag.TAG_MANIFEST]), key is not None, shown, together)


def check_replaceable(file: Path) -> None:
    """Whether a bundle may be written there: where nothing is, an empty file, or an earlier bundle.

    Raises:
        UsageError: something else is there, or another user could exchange it.
    """
    check_output(file, new=True)
    fix = "name a new file, or an earlier bundle, which is replaced"
    try:
        if not file.parent.is_dir():
            raise UsageError("there is no such directory to write a bundle into", where=str(file.parent), fix="make it")
        check_output(file.parent)
        with files.open_regular(file) as opened:
            begins_so = bag.begins_with(opened, f"{TOP}/{bag.INFO}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"no bundle can be written there: {error.strerror}", where=str(file), fix=fix) from None
    if not begins_so:
        raise UsageError("this file is no bundle, and it would be replaced", where=str(file), fix=fix)


def _copied(run: Run, data: Path, numbers: dict[str, str]) -> BundledRun:
    """The run below ``data/runs``, without secrets, and what its records give there; ``numbers``: of ``_unhashed``."""
    target = data / RUNS / run.run_id
    if not bag.is_plain_name(run.run_id) or "/" in run.run_id:
        raise UsageError(
            "a run directory of this name cannot be in a bundle", where=str(run.path), fix="give it its id"
        )
    secrets = secrets_of(run)
    originals = {name: _unhashed(name, content, numbers) for name, content in files_of(run)}
    redacted: dict[str, str] = {}
    for name, clean in _without_secrets(originals, secrets).items():
        if any(secret.encode("utf-8", "surrogateescape") in clean for secret in secrets):
            raise NotProvenError("a secret value cannot be taken out of this file", where=str(run.path / name))
        if REDACTED.encode() in clean and clean != originals[name]:
            redacted[name] = sha256(clean)
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(clean)
    verdict = run.verdict
    figure = figure_of(verdict)
    doubts = figure.after_others(run.outcomes_before).doubts if figure else ()
    replaced = [doubt.words for doubt in doubts if doubt.code == "replaced"]
    if verdict is not None and (verdict.anew or replaced):  # doubts, which travel
        stored = json.loads((target / VERDICT).read_bytes()) | {"anew": verdict.anew, "replaced": "; ".join(replaced)}
        (target / VERDICT).write_text(json.dumps(stored, indent=2) + "\n", "ascii")
    return proven_run(target, redacted)


def _without_secrets(originals: Mapping[str, bytes], secrets: Sequence[str]) -> dict[str, bytes]:
    """Files by name without secrets. Where one has the SHA-256 of another, by which a short secret could be guessed, it
    has that of what is left of it.
    """
    clean = {name: redacted_file(name, content, secrets) for name, content in originals.items()}
    changed = {
        sha256(each).encode(): sha256(clean[name]).encode() for name, each in originals.items() if clean[name] != each
    }
    hashes = re.compile(b"|".join(changed) or b"(?!)")
    return {name: hashes.sub(lambda found: changed[found[0]], each) for name, each in clean.items()}


def redacted_log(log: bytes, secrets: Sequence[str], hashes: dict[str, str]) -> bytes:
    """A study's log without secrets, with other ``hashes``: each line has that of what is left of the one before."""
    lines, of_last = list[bytes](), dict[str, str]()
    for line in log.splitlines(keepends=True):
        clean = redacted_file(LOG, line, secrets)
        for before, after in (hashes | of_last).items():
            clean = clean.replace(before.encode(), after.encode())
        lines.append(clean)
        of_last = {sha256(line.rstrip(b"\n")): sha256(clean.rstrip(b"\n"))}
    return b"".join(lines)


def _unhashed(name: str, content: bytes, numbers: dict[str, str]) -> bytes:
    """A run's file without the digests of values and contents that no proof needs, as by them a short secret could be
    guessed: in records of what a program ran with ``numbers`` stand for them, the same for the same.
    """
    if name != VERDICT and not name.endswith(".exit.json"):
        return content
    try:
        document = json.loads(content)
        for key in ("made_of", "seal"):
            document.pop(key, None)
        program = (document.get("program") if name != VERDICT else None) or {}
        for named in (program.get(kind, {}) for kind in ("given", "variables", "modules", "read", "sources")):
            named.update({key: _numbered(value, numbers) for key, value in named.items()})
        unchanged = document == json.loads(content)
    except (ValueError, RecursionError, TypeError, AttributeError, IndexError):
        return content
    return content if unchanged else (json.dumps(document, indent=2) + "\n").encode("ascii")


def _numbered(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_numbered(value[0], numbers), *value[1:]]
    return value and _DIGEST.sub(lambda found: numbers.setdefault(found[0], f"{len(numbers):0{len(found[0])}x}"), value)
