"""Can the Horovod that is installed here meet in our rendezvous? Read from its libraries, which are not loaded."""

from __future__ import annotations

import glob
import importlib.util
import mmap
import os

# A variable that Horovod's code for Gloo reads, and that is compiled in with that code alone (gloo_context.cc, 0.28.1).
_OF_GLOO = b"HOROVOD_GLOO_RENDEZVOUS_ADDR"


def library_without_gloo() -> str:
    """A library of Horovod where none of them has Gloo; empty where one has, or where there is no Horovod."""
    try:
        spec = importlib.util.find_spec("horovod")
    except (ImportError, ValueError):
        return ""
    roots = [] if spec is None else spec.submodule_search_locations or []
    libraries = [
        path for root in roots for path in sorted(glob.glob(os.path.join(glob.escape(root), "*", "mpi_lib*.so")))
    ]
    return libraries[0] if libraries and not any(_has_gloo(path) for path in libraries) else ""


def _has_gloo(path: str) -> bool:
    """Whether it has; a library that cannot be read is taken to have it."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(_OF_GLOO) >= 0
    except (OSError, ValueError):
        return True
