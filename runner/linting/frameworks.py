"""What the calls of frameworks mean, what a rank is called, and what to write: ``frameworks.yaml``, read."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from runner.core import strict_yaml

TABLES: dict[str, Any] = strict_yaml.read(Path(__file__).resolve().with_name("frameworks.yaml")).value
_HOROVOD = re.compile(r"\Ahorovod\.(torch|tensorflow\.keras|tensorflow|keras|mxnet)\.(?=.)")
_KERAS = re.compile(r"\A(tensorflow\.(compat\.v[12]\.)?(python\.)?keras|tf_keras|keras\.api|keras)\.(?=.)")


def canonical(path: str) -> str:
    """One spelling for the names of Horovod, torch.distributed and Keras."""
    if path.startswith("torch.distributed.") and path.count(".") == 2:
        return f"dist.{path.rpartition('.')[2]}"
    return _KERAS.sub("keras.", _HOROVOD.sub("hvd.", path))


@cache
def matches(patterns: str, name: str) -> bool:
    """Whether a name is one of a row of calls, given by its key, or of these patterns."""
    either = TABLES["calls"].get(patterns, patterns).replace(".", r"\.").replace("*", ".*").split()
    return any(re.fullmatch(each, name) for each in either)


@cache
def meaning(name: str) -> frozenset[str]:
    """The tags of a name that nothing else is known of: a rank, a size, or what is true on rank 0."""
    plain = name.lower().removeprefix("get").removeprefix("_")
    tags = {tag for tag, pattern in TABLES["names"].items() if re.fullmatch(pattern, plain)}
    also = {"exact", "else_not_root"} if "root" in tags else {"exact"}
    return frozenset(tags | also if tags else ())


def variable(name: object) -> str:
    """The tag of an environment variable; empty for one of no launcher."""
    return next((tag for tag, names in TABLES["variables"].items() if name in names.split()), "")
