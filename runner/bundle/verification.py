"""Verifies a bundle: every byte by its hash, every figure and verdict by its records, and who signed it.

It needs this package and Python, no run directory, scheduler or network. Nothing is written outside a temporary
directory of its own, and only under names that a bundle may have.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runner.bundle import archive, bag, signature
from runner.bundle.making import ABOUT, RUNS, SCHEMA, TOP
from runner.bundle.members import is_member, missing
from runner.bundle.proof import difference, proven_run
from runner.errors import NotProvenError, UsageError
from runner.files import file_system
from runner.files.hashes import sha256
from runner.model.bundle import Bundle, BundledRun, VerifiedBundle

_MOST_BYTES = 1 << 33
_MOST_TAG_BYTES = 1 << 27


def verify(file: Path, allowed: Path | None = None) -> VerifiedBundle:
    """What a bundle proves.

    Args:
        allowed: file of allowed signers (ssh-keygen(1)); the bundle must then be signed by one of them.

    Raises:
        NotProvenError: it is no bundle, or was altered, or does not give what it says.
        UsageError: it cannot be read, or ``allowed`` not be used.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-runner-") as directory:
        data, tags, digests, size = Path(directory), {}, {}, 0  # type: Path, dict[str, bytes], dict[str, str], int
        try:
            with file_system.open_regular(file) as opened:
                whole = file.stat().st_size
                if whole > _MOST_BYTES:
                    raise NotProvenError(f"it is longer than a bundle may be ({_MOST_BYTES} bytes)", where=str(file))
                for member, content in archive.read(opened, whole):
                    name = member.removeprefix(f"{TOP}/")
                    if name == member:
                        raise NotProvenError(f"the bundle was altered: {member} is not below {TOP}", where=member)
                    if not name.startswith(bag.DATA):
                        if len(content) > _MOST_TAG_BYTES:
                            raise NotProvenError(f"the bundle was altered: {name} is too long", where=name)
                        tags[name] = content
                        continue
                    name = name.removeprefix(bag.DATA)
                    _check_name(name)
                    digests[name], size = sha256(content), size + len(content)
                    path = data / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        except FileNotFoundError:
            raise UsageError("there is no such file", where=str(file)) from None
        except file_system.UnusableFileError as error:
            raise UsageError(f"it cannot be read: {error.strerror}", where=str(file)) from None
        bag.check(digests, size, tags)
        state, signer = signature.verify(tags[bag.TAG_MANIFEST], tags.get(bag.SIGNATURE), allowed)
        about = _about(data)
        runs = _runs(data, digests, {run.run: run for run in about.runs})
        key = difference(msgspec.to_builtins(about), msgspec.to_builtins(Bundle(SCHEMA, runs)))
        if key:
            raise NotProvenError(f"{ABOUT} is not what the records give: {key} differs", where=f"{bag.DATA}{ABOUT}")
    return VerifiedBundle(str(file), sha256(tags[bag.TAG_MANIFEST]), state, signer, runs)


def _check_name(name: str) -> None:
    folder, _, rest = name.partition("/")
    _run, _, of_run = rest.partition("/")
    if name != ABOUT and not (folder == RUNS and is_member(of_run)):
        raise NotProvenError(f"the bundle was altered: {name} does not belong in a bundle", where=f"{bag.DATA}{name}")


def _about(data: Path) -> Bundle:
    try:
        return msgspec.convert(json.loads((data / ABOUT).read_bytes()), Bundle, strict=True)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        raise NotProvenError(f"{ABOUT} cannot be read", where=f"{bag.DATA}{ABOUT}") from None


def _runs(data: Path, digests: Mapping[str, str], said: Mapping[str, BundledRun]) -> tuple[BundledRun, ...]:
    files: dict[str, set[str]] = {}
    for name in digests:
        folder, _, rest = name.partition("/")
        if folder == RUNS:
            files.setdefault(rest.partition("/")[0], set()).add(rest.partition("/")[2])
    runs: list[BundledRun] = []
    for run_id in sorted(files):
        if run_id not in said:
            raise NotProvenError(f"{ABOUT} does not name the run {run_id}", where=f"{bag.DATA}{RUNS}/{run_id}")
        lacking = missing(files[run_id])
        if lacking:
            raise NotProvenError(f"{run_id} has no {lacking}", where=f"{bag.DATA}{RUNS}/{run_id}")
        redacted = said[run_id].redacted
        if not set(redacted) <= files[run_id]:
            raise NotProvenError(f"{run_id}: a file that is not there was redacted", where=f"{bag.DATA}{ABOUT}")
        made = proven_run(data / RUNS / run_id, redacted)
        # Which version made the bundle is for people: it cannot be known from the records.
        runs.append(msgspec.structs.replace(made, version=said[run_id].version))
    if not runs:
        raise NotProvenError("the bundle has no run")
    return tuple(runs)
