"""Makes a bundle: copies of the records of runs without secrets, with what they prove."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.core import files
from runner.core.errors import NotProvenError, UsageError
from runner.core.files import sha256
from runner.core.hide import REDACTED, hidden_command, hidden_value, is_secret, redacted
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
from runner.model.figure import OfStudy, figure_of
from runner.model.output import Bundle, BundledRun, MadeBundle
from runner.model.plan import Plan
from runner.model.study import Span
from runner.render import quote_always

_LEAST_LENGTH = 6  # of a value that is looked for everywhere: a shorter one is part of other words
_COMMANDS = frozenset(("program", "argv", "arguments"))
# Of records: what tells one job step from another. It is no key to anything once the job is over.
_NO_SECRET = frozenset(("token",))


def secrets_of(plan: Plan, least: int = _LEAST_LENGTH) -> tuple[str, ...]:
    """Values of the job's secret variables and arguments, also as scripts and JSON quote them; the longest first.
    ``least``: characters of the shortest.
    """
    values = [value for name, value in plan.env if is_secret(name, value)]
    values += [
        word.removeprefix(before)  # all of it, or what follows --api-key=
        for word, shown in zip(plan.program, hidden_command(plan.program), strict=True)
        if shown.endswith(REDACTED) and word.startswith(before := shown.removesuffix(REDACTED))
    ]
    forms = {form for value in values for form in (value, *value.splitlines(), *_quoted(value))}
    return tuple(sorted({form for form in forms if len(form) >= least}, key=len, reverse=True))


def redacted_text(text: str, secrets: Iterable[str]) -> str:
    """A script or log without secrets."""
    return redacted(_without(text, secrets))[0]


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text


def redacted_json(value: Any, secrets: Sequence[str], key: str = "") -> Any:
    """A JSON value without secrets: by the names of keys and variables, and by its form."""
    if isinstance(value, dict):
        return {name: _by_name(name, each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        if key in _COMMANDS and all(isinstance(each, str) for each in value):
            return [hidden_value(_without(each, secrets)) for each in hidden_command(value)]
        if len(value) == 2 and isinstance(value[0], str):
            return [value[0], _by_name(value[0], value[1], secrets)]
        return [redacted_json(each, secrets) for each in value]
    return hidden_value(_without(value, secrets)) if isinstance(value, str) else value


def redacted_file(name: str, content: bytes, secrets: Sequence[str]) -> bytes:
    """A file of a run directory without secrets; the same bytes where it has none. JSON that is none is text."""
    text = content.decode("utf-8", "surrogateescape")
    if name.endswith(".json"):
        try:
            value = json.loads(text)
            clean = redacted_json(value, secrets)
        except (ValueError, RecursionError):
            pass
        else:
            return content if clean == value else (json.dumps(clean, indent=2) + "\n").encode("ascii")
    clean = redacted_text(text, secrets)
    return content if clean == text else clean.encode("utf-8", "surrogateescape")


def _quoted(value: str) -> Iterator[str]:
    """A value as it stands between quotes: in the job's script, in a command that a shell or Python shows, in JSON."""
    yield quote_always(value)[1:-1]
    yield shlex.quote(value)[1:-1] if shlex.quote(value) != value else value
    yield repr(value)[1:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]


def _by_name(name: str, value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str) and value and name not in _NO_SECRET and is_secret(name, value):
        return REDACTED
    return redacted_json(value, secrets, name)


TOP = "gpu-runner-bundle"
ABOUT = "bundle.json"
SCHEMA: Final = "gpu-runner-bundle/1"


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
        bundled = tuple(_copied(run, data) for run in sorted(runs, key=lambda run: run.run_id))
        if len({run.run for run in bundled}) != len(bundled):
            raise UsageError("two of these runs have the same id", fix="put them into two bundles")
        check_different(data / RUNS / run.run for run in bundled)
        together, of_figures = None, OfStudy()
        if study is not None:
            secrets = sorted({each for run in runs for each in secrets_of(run.needed_plan())}, key=len, reverse=True)
            (data / STUDY).write_bytes(redacted_file(STUDY, study.question, secrets))
            if study.log is not None:
                (data / LOG).write_bytes(study.log)
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


def _copied(run: Run, data: Path) -> BundledRun:
    """The run below ``data/runs``, without secrets, and what its records give there."""
    target = data / RUNS / run.run_id
    if not bag.is_plain_name(run.run_id) or "/" in run.run_id:
        raise UsageError(
            "a run directory of this name cannot be in a bundle", where=str(run.path), fix="give it its id"
        )
    secrets = secrets_of(run.needed_plan())
    redacted: dict[str, str] = {}
    for name, content in files_of(run.path):
        clean = redacted_file(name, content, secrets)
        if any(secret.encode("utf-8", "surrogateescape") in clean for secret in secrets):
            raise NotProvenError("a secret value cannot be taken out of this file", where=str(run.path / name))
        if clean != content:
            redacted[name] = sha256(content)
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
