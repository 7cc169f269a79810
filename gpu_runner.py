"""gpu-runner from Python: ``from gpu_runner import submit, runs``; all of ``runner.api``, and its ``errors``.

It is the package ``runner`` beside this file, whatever else of that name Python would find first, as a runner.py in the
working directory.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.api import *  # noqa: F403
    from runner.core import errors

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


_load()
from runner import api as _api  # noqa: E402
from runner.core import errors  # noqa: E402

__all__ = [*_api.__all__, "errors"]  # noqa: PLE0604
globals().update({name: getattr(_api, name) for name in _api.__all__})
