"""A C compiler for libraries that tests look into: this machine's, installed in continuous integration."""

import os
import shutil

import pytest

from runner.setup.machine import Package, install_packages

_WHY = "compiles libraries that tests look into"


def c_compiler() -> str:
    """``gcc``; the test skips where it is not installed, but for continuous integration."""
    if shutil.which("gcc") is None:
        if not os.environ.get("CI"):
            pytest.skip("gcc is not installed")
        install_packages([Package(name, (), _WHY) for name in ("gcc", "libc6-dev")], lambda _line: None)
    return "gcc"
