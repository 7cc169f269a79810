"""gpu-runner from Python: ``from gpu_runner import submit, runs``; all of ``runner.api``, and its ``errors``.

It is the package ``runner`` beside this file, whatever else of that name Python would find first, as a runner.py in the
working directory.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.api import *  # noqa: F403

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner", "__init__.py")  # noqa: PTH118, PTH100, PTH120


def _load() -> None:
    known = sys.modules.get("runner")
    if known is not None:
        place = getattr(known, "__file__", None) or "elsewhere"
        if not os.path.exists(place) or not os.path.samefile(place, _PACKAGE):  # noqa: PTH110, PTH121
            raise ImportError(f"gpu_runner is the package runner, and another one is imported already, from {place}: "
                              "import gpu_runner before it, or give it another name")  # fmt: skip
        return
    spec = importlib.util.spec_from_file_location("runner", _PACKAGE)
    if spec is None or spec.loader is None:
        raise ImportError(f"gpu_runner's package is not there: {_PACKAGE}")
    sys.modules["runner"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def __getattr__(name: str) -> object:
    """``runner.api`` is imported only when something of it is used: the command line imports none of it."""
    if name == "errors":
        return importlib.import_module("runner.core.errors")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'gpu_runner' has no attribute {name!r}")
    api = importlib.import_module("runner.api")
    if name != "__all__" and name not in api.__all__:
        raise AttributeError(f"module 'gpu_runner' has no attribute {name!r}")
    return [*api.__all__, "errors"] if name == "__all__" else getattr(api, name)


def __dir__() -> list[str]:
    return [*__getattr__("__all__")]  # type: ignore[misc]


def _main() -> None:
    """The command ``gpu-runner``: whatever PYTHONPATH has, it imports this package and what was installed with it."""
    for named in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        try:
            place = os.path.abspath(named)  # noqa: PTH100  (before anything is imported)
        except OSError:  # the working directory is gone
            continue
        if os.path.isabs(named):  # noqa: PTH117
            sys.path.sort(key=place.__eq__)  # a module's, for another Python: counts last
        else:  # by the working directory, where anybody may have put it
            sys.path[:] = [each for each in sys.path if each != place]
    importlib.import_module("runner.cli").main()


_load()
