"""What ``submit --meter`` runs in each Python of the program, before that: PYTHONPATH begins with this directory.

Python has one ``sitecustomize``, so the one that would have been imported without this is imported after it.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _hook() -> None:
    modules = os.path.join(os.path.dirname(_HERE), "modules")
    sys.path.append(modules)
    from gpu_runner_inside.meter import hook

    hook.install()


def _next() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    import importlib

    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # there is no other: Python looks for this one when it has run


try:
    _hook()
except Exception as error:  # the program runs without a meter
    print(f"runner_meter: --meter measures nothing: {error!r}", file=sys.stderr)
_next()
