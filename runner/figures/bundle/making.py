"""Makes a bundle of runs: their files without secrets, judged once more as a stranger will, then written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from runner.core import files
from runner.core.errors import NotProvenError, UsageError
from runner.core.files import sha256
from runner.figures.bundle import archive, bag, signature
from runner.figures.bundle.members import files_of
from runner.figures.bundle.proof import canonical_json, check_different, proven_run
from runner.figures.bundle.proven_study import RUNS, STUDY, Figures, proven_study
from runner.figures.bundle.redaction import redacted_file, secrets_of
from runner.jobs.directory import RunDirectory
from runner.model.output import Bundle, BundledRun, MadeBundle

TOP = "gpu-runner-bundle"
ABOUT = "bundle.json"
SCHEMA: Final = "gpu-runner-bundle/1"


@dataclass(frozen=True)
class StudyToBundle:
    """A study: ``study.json``, the run by which each launch is proven by the launch's key, and what makes its table;
    what was launched and is not there any more.
    """

    question: bytes
    runs: Mapping[str, RunDirectory]
    figures: Figures
    gaps: tuple[str, ...] = ()


def make(
    runs: Sequence[RunDirectory], file: Path, key: Path | None = None, study: StudyToBundle | None = None
) -> MadeBundle:
    """Write a bundle of these runs. The same runs give the same bytes; a signature is the key's.

    Args:
        key: of the user's, to sign with. study: that the runs are of, all of them.

    Raises:
        NotProvenError: a run is not measured, or its records do not give its verdict.
        UsageError: it cannot be made of these runs, or the key cannot sign.
        OSError: a file cannot be read or written.
    """
    check_replaceable(file)
    with tempfile.TemporaryDirectory(prefix="gpu-runner-") as directory:
        data = Path(directory)
        bundled = tuple(_copied(run, data) for run in sorted(runs, key=lambda run: run.run_id))
        if len({run.run for run in bundled}) != len(bundled):
            raise UsageError("two of these runs have the same id", fix="put them into two bundles")
        check_different(data / RUNS / run.run for run in bundled)
        together = None
        if study is not None:
            secrets = secrets_of(runs[0].needed_plan())
            (data / STUDY).write_bytes(redacted_file(STUDY, study.question, secrets))
            together = proven_study(data, {each: run.run_id for each, run in study.runs.items()}, study.figures)
            together = msgspec.structs.replace(together, gaps=study.gaps)
        (data / ABOUT).write_bytes(canonical_json(Bundle(SCHEMA, bundled, together)))
        paths = {path.relative_to(data).as_posix(): path for path in data.rglob("*") if path.is_file()}
        digests = {name: sha256(path) for name, path in paths.items()}
        tags = bag.tag_files(digests, sum(path.stat().st_size for path in paths.values()))
        if key is not None:
            tags[bag.SIGNATURE] = signature.sign(tags[bag.TAG_MANIFEST], key)
        members: list[tuple[str, Path | bytes]] = [(f"{TOP}/{name}", content) for name, content in tags.items()]
        members += [(f"{TOP}/{bag.DATA}{name}", path) for name, path in paths.items()]
        with files.replacement(file) as temporary, temporary.open("wb") as out:
            archive.write(out, members)
    return MadeBundle(
        str(file), file.stat().st_size, sha256(tags[bag.TAG_MANIFEST]), key is not None, bundled, together
    )


def check_replaceable(file: Path) -> None:
    """Whether a bundle may be written there: where nothing is, an empty file, or an earlier bundle.

    Raises:
        UsageError: something else is there.
    """
    fix = "name a new file, or an earlier bundle, which is replaced"
    try:
        if not file.parent.is_dir():
            raise UsageError("there is no such directory to write a bundle into", where=str(file.parent), fix="make it")
        with files.open_regular(file) as opened:
            begins_so = archive.begins_with(opened, f"{TOP}/{bag.INFO}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"no bundle can be written there: {error.strerror}", where=str(file), fix=fix) from None
    if not begins_so:
        raise UsageError("this file is no bundle, and it would be replaced", where=str(file), fix=fix)


def _copied(run: RunDirectory, data: Path) -> BundledRun:
    """The run below ``data/runs``, without secrets, and what its records give there."""
    target = data / RUNS / run.run_id
    if not archive.is_plain_name(run.run_id) or "/" in run.run_id:
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
    return proven_run(target, redacted)
