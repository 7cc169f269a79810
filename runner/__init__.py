"""From a Dockerfile to a multi-node throughput figure that can be believed.

``from runner import submit, runs`` is gpu-runner from Python; docs/python.md is the page on it.
"""
# A Python that is too old for the rest must be able to read this file: runner/__main__.py then says so.

__version__ = "0.1.0"

_API = ("Chain", "CheckRefusedError", "Options", "Run", "Study", "runs", "submit")


def __getattr__(name):  # type: (str) -> object
    """The functions of ``runner.api``, imported only when they are used: the command line imports none of them."""
    if name not in _API:
        raise AttributeError("module 'runner' has no attribute " + repr(name))
    import importlib

    value = getattr(importlib.import_module("runner.api"), name)
    globals()[name] = value
    return value


def __dir__():  # type: () -> list[str]
    return sorted(set(globals()).union(_API))
