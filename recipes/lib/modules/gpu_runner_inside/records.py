"""Records that a job leaves in its run directory: written whole or not at all. Format: schema.json beside this file."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from typing import Any, Mapping

SCHEMA = "2"


def rank_record(run_dir: str, rank: int, kind: str) -> str:
    """Where the record of this kind (``start``, ``exit``, ``report``, ``node``) of a rank lies."""
    return os.path.join(run_dir, "ranks", f"{rank}.{kind}.json")


def result_path(run_dir: str) -> str:
    """Where the result of a measurement lies."""
    return os.path.join(run_dir, "result.json")


def write(path: str, kind: str, fields: Mapping[str, Any]) -> None:
    """Write a record atomically, for its owner alone (0600, less the umask).

    A float that is not finite becomes null: JSON cannot express it.

    Raises:
        OSError: disk full, no permission; the file of that name is then as it was before.
    """
    record: dict[str, Any] = {"schema": SCHEMA, "kind": kind}
    record.update((name, _finite(value)) for name, value in fields.items())
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    temporary = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # Arguments and variables may hold any byte; what is not UTF-8 goes out as \udcXX escapes.
            file.write(text.encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return value
