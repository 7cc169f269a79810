"""What `make install` refuses."""

import os
from pathlib import Path

import pytest

from tests.support.commands import ran

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "absolute directories, not ''"),
        ({"PREFIX": "opt"}, "absolute directories, not 'opt'"),
        ({"PREFIX": "{}/opt", "MODULEFILE": "modules"}, "absolute directories, not 'modules'"),
        ({"PREFIX": "{}/my opt"}, "letters, digits"),
        ({"PREFIX": "{}/$(touch x)"}, "letters, digits"),
        ({"PREFIX": "{}/opt", "PYTHON": "{}/python3.9"}, "is no Python 3.10 or newer (Python 3.9.2)"),
        ({"PREFIX": "{}/opt", "PYTHON": "{}/none"}, "is no Python 3.10 or newer (it does not start)"),
    ],
)
def test_an_installation_that_cannot_serve_is_refused(variables: dict[str, str], says: str, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\n[ $1 = --version ] && echo Python 3.9.2\n")
    old.chmod(0o755)
    given = {name: value.format(tmp_path) for name, value in variables.items()}
    environment = {"PATH": os.environ["PATH"], **given}
    refused = ran(("sh", "runner/setup/install.sh"), code=3, cwd=CHECKOUT, env=environment).err
    assert says in refused and "\n  fix:   " in refused
    assert list(tmp_path.iterdir()) == [old]
