"""What is a recipe and what a program, and which site a list of hosts is."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.errors import UsageError
from runner.preparation.request import make_options


@pytest.mark.parametrize(
    ("recipe", "arguments", "chosen", "directory"),
    [
        (None, ("python", "t.py"), None, True),
        (None, ("--model", "x"), "horovod-pytorch", False),
        (None, (), "horovod-pytorch", False),
        ("probe", ("python", "t.py"), "probe", False),
    ],
)
def test_arguments_are_a_program_unless_a_recipe_is_named_or_they_are_options(
    recipe: str | None, arguments: tuple[str, ...], chosen: str | None, directory: bool
) -> None:
    asked = make_options(site="s", recipe=recipe, runs=Path("runs"), gpus=1, arguments=arguments)
    assert asked.recipe == chosen
    assert (asked.request.directory is not None) is directory
    assert (asked.program, asked.request.arguments) == ((arguments, ()) if directory else ((), arguments))


def test_a_list_of_hosts_is_the_site_unless_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\n")
    for options in (make_options(gpus=1, hosts="a:2"), make_options(gpus=1, hostfile=str(tmp_path / "hosts"))):
        assert (options.site, options.request.hosts) == ("hosts", (("a", 2),))
    assert make_options(gpus=1, hosts="a:2", site="mine.yaml").site == "mine.yaml"
    assert make_options(gpus=1).site is None


def test_hosts_are_named_once_and_in_a_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hosts are given twice"):
        make_options(gpus=1, hosts="a:2", hostfile=str(tmp_path / "hosts"))
    with pytest.raises(UsageError, match="No such file"):
        make_options(gpus=1, hostfile=str(tmp_path / "hosts"))
