"""The user's configuration over the machine's, and what lies beside them."""

from pathlib import Path

import pytest

from runner.core.errors import UsageError
from runner.core.paths import site_of_shell
from runner.model.request import Request
from runner.preparation.site import read_user_site
from runner.recipes import loader as recipes
from runner.sites.loader import every_name, read_config, read_site, set_value
from tests.support.users import ALICE, AS_ROOT, open_directory, outcome_as


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the machine's settings; the user's file is ``tmp_path/own/config.yaml``."""
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"relative:{tmp_path}/xdg")
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "own/config.yaml"))
    directory = tmp_path / "xdg/gpu-runner"
    for name in ("sites", "recipes/ours"):
        (directory / name).mkdir(parents=True)
    return directory


def test_a_users_values_go_over_the_machines(machine: Path, tmp_path: Path) -> None:
    (machine / "config.yaml").write_text("site: theirs\naccount: centre\nsites: {theirs: {scratch: /s}}\n")
    assert (read_config().site, read_config().account) == ("theirs", "centre")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.yaml").write_text("account: mine\nsites: {theirs: {project: p}}\n")
    merged = read_config()
    assert (merged.site, merged.account) == ("theirs", "mine")
    assert (merged.sites["theirs"].scratch, merged.sites["theirs"].project) == ("/s", "p")
    (machine / "config.yaml").write_text("\nacount: x\n")
    with pytest.raises(UsageError) as caught:
        read_config()
    assert caught.value.where == f"{machine}/config.yaml:2: acount"


def test_a_site_that_there_is_not_is_reported_where_it_was_named(machine: Path, tmp_path: Path) -> None:
    (machine / "config.yaml").write_text("# the centre's\nsite: theirs\n")
    for name, where in ((None, f"{machine}/config.yaml:2: site"), ("none", "--site")):
        with pytest.raises(UsageError, match="no site named") as caught:
            read_user_site(name, Request(gpus=1), for_job=True)
        assert caught.value.where == where


@AS_ROOT
@pytest.mark.parametrize("closed", [".", "config.yaml"])
def test_settings_that_are_closed_to_a_user_are_reported_with_what_opens_them(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_directory() as directory:
        settings = directory / "gpu-runner/config.yaml"
        settings.parent.mkdir(mode=0o755)
        settings.write_text("account: centre\n")
        (settings.parent / closed).chmod(0o600)
        monkeypatch.setenv("XDG_CONFIG_DIRS", str(directory))
        monkeypatch.setenv("RUNNER_CONFIG", str(directory / "none"))
        outcome = outcome_as(ALICE, read_config)
    assert (outcome.what, outcome.where) == ("cannot be read: Permission denied", str(settings))
    assert f"chmod a+r {settings}" in outcome.fix


def test_a_sites_file_and_a_recipe_of_the_machine_have_names(machine: Path) -> None:
    (machine / "sites/theirs.yaml").write_text(
        "name: theirs\ndescription: x\nextends: slurm\nnode: {gpus: 4, cores: 8, memory_mb: 1000}\n"
    )
    (machine / "recipes/ours/recipe.yaml").write_text(
        "name: ours\ndescription: x\nimage: i:1\nprogram: [python3, a.py]\n"
    )
    assert every_name()[-1] == "theirs" and read_site("theirs").node.gpus == 4
    assert recipes.every_name()[-1] == "ours" and recipes.read_recipe("ours").directory == machine / "recipes/ours"
    with pytest.raises(UsageError, match="no recipe"):
        recipes.read_recipe("our*")


@pytest.mark.parametrize("value", ["lab42", 'it\'s "$x" # no: comment', "yes", "007"])
def test_a_value_is_set_and_every_other_line_stays(value: str, machine: Path, tmp_path: Path) -> None:
    path = tmp_path / "own/config.yaml"
    set_value("account", value)
    assert read_config().account == value
    path.write_text("# mine\naccount: old   # this one\nsite: box\n")
    set_value("account", value)
    set_value("field", "nlp")
    lines = path.read_text().splitlines()
    assert lines[0] == "# mine" and lines[2:] == ["site: box", 'field: "nlp"'] and read_config().account == value
    path.write_text("{account: old}\n")
    with pytest.raises(UsageError, match="not valid YAML"):
        set_value("account", value)
    assert path.read_text() == "{account: old}\n"


def test_a_sites_file_that_is_a_default_is_not_another_one_in_each_working_directory(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "config.yaml").write_text("site: theirs.yaml\n")
    assert read_config().site == str(machine / "theirs.yaml")
    monkeypatch.setenv("RUNNER_SITE", "./mine.yaml")
    with pytest.raises(UsageError, match="from where a command is called"):
        site_of_shell()
    monkeypatch.setenv("RUNNER_SITE", "mine")
    assert site_of_shell() == "mine"


def test_a_value_is_set_below_comments_and_where_a_link_leads(machine: Path, tmp_path: Path) -> None:
    (machine / "config.yaml").write_text("# account: ask the centre\n")
    own = tmp_path / "own/config.yaml"
    own.parent.mkdir()
    own.symlink_to(tmp_path / "dotfiles/config.yaml")
    set_value("account", "mine")
    assert own.is_symlink() and read_config().account == "mine"
