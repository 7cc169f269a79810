"""What `make install` refuses."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import ran
from tests.support.shell_files import stand_in
from tests.support.users import AS_ROOT, BOB

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
    stand_in(tmp_path, old.name, "[ $1 = --version ] && echo Python 3.9.2")
    given = {name: value.format(tmp_path) for name, value in variables.items()}
    environment = {"PATH": os.environ["PATH"], **given}
    refused = ran(("sh", "runner/setup/install.sh"), code=3, cwd=CHECKOUT, env=environment).err
    assert says in refused and "\n  fix:   " in refused
    assert list(tmp_path.iterdir()) == [old]


@AS_ROOT
def test_nothing_is_installed_where_another_user_could_exchange_it(tmp_path: Path) -> None:
    taken = tmp_path / "modulefiles/gpu-runner"
    taken.mkdir(parents=True)
    os.chown(taken, BOB, BOB)
    environment = {"PATH": os.environ["PATH"], "PREFIX": str(tmp_path), "PYTHON": sys.executable}
    refused = ran(("sh", "runner/setup/install.sh"), code=3, cwd=CHECKOUT, env=environment).err
    assert f"{taken} is user {BOB}'s" in refused
    assert [*taken.iterdir()] == []
