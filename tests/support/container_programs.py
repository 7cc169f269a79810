"""The programs that build and prove Horovod inside a base, imported as they import each other."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

CONTAINERS = Path(__file__).parents[2] / "containers" / "horovod"
Programs = dict[str, ModuleType]
_NAMES = ("frameworks", "fixes", "install", "cuda", "wheel_record", "rank", "prove", "describe", "build", "collect",
          "more_packages")  # fmt: skip


@contextmanager
def imported() -> Iterator[Programs]:
    """Each program under its name; no other test finds them afterwards."""
    sys.path.insert(0, str(CONTAINERS))
    try:
        yield {name: importlib.import_module(name) for name in _NAMES}
    finally:
        sys.path.remove(str(CONTAINERS))
        for name in _NAMES:
            sys.modules.pop(name, None)


with imported() as _modules:
    PROGRAMS = SimpleNamespace(**_modules)  # for tests that call their functions
