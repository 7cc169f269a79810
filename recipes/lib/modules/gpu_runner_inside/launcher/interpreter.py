"""Is this node's Python the one that the job was submitted with? Without a container each node brings its own."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

from gpu_runner_inside.launcher.failure import LaunchError


def check(plan: Mapping[str, Any]) -> None:
    """Compare the interpreter's environment and version with those of ``python`` in the plan, if it has one.

    Raises:
        LaunchError: ``environment-differs``.
    """
    planned = plan.get("python")
    if not isinstance(planned, dict):
        return
    prefix, version = planned.get("prefix", ""), planned.get("version", "")
    here = ".".join(map(str, sys.version_info[:3]))
    if here == version and os.path.realpath(sys.prefix) == os.path.realpath(prefix):
        return
    missing = "" if os.path.isdir(prefix) else ", which this node does not see"
    raise LaunchError(
        "environment-differs",
        f"the job is for the environment {prefix} (Python {version}){missing}; here python3 is {sys.executable} of "
        f"{sys.prefix} (Python {here})",
    )
