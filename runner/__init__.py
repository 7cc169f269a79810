"""From a Dockerfile to a multi-node throughput figure that can be believed.

``from runner import submit, runs`` is gpu-runner from Python; docs/python.md is the page on it.
"""

__version__ = "0.1.0"

_API = ("CheckRefusedError", "Options", "Run", "runs", "submit")


def __getattr__(name: str) -> object:
    """The functions of ``runner.api``, imported only when they are used: the command line imports none of them."""
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module("runner.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *_API))
