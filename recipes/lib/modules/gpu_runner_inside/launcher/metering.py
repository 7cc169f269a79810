"""The variables by which a user's program finds the meter: to import it, or to be measured without a change. Pure."""

from __future__ import annotations

import os
from typing import Any, Mapping

from gpu_runner_inside import IMPORT_DIRECTORY

START = os.path.join(os.path.dirname(IMPORT_DIRECTORY), "meter_start")  # its sitecustomize.py


def variables(env: Mapping[str, str], plan: Mapping[str, Any], wireup: str) -> dict[str, str]:
    """What is added to ``env``: nothing for the shipped recipes, which find their modules by themselves.

    ``runner_meter`` is last in PYTHONPATH, so that it hides nothing of the program's; with ``--meter`` a sitecustomize
    is first, which imports the one that it hides.
    """
    measured = bool(env.get("RUNNER_METER"))
    if not measured and plan.get("result") != "if-left":
        return {}
    own = env.get("PYTHONPATH")
    path = [*([START] if measured else []), *([own] if own else []), IMPORT_DIRECTORY]
    made = {"PYTHONPATH": os.pathsep.join(path)}
    if wireup == "own":
        made["RUNNER_METER_UNWATCHED"] = "1"
    return made
