"""By which sshd ``shell --ssh`` may get into a job of a site."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner.cli.shell import _access_to
from runner.core.errors import RefusedError
from runner.jobs import ssh
from runner.jobs.directory import REQUEST, Run
from runner.jobs.ssh import access_of
from runner.model.request import Request, RequestRecord
from runner.sites.loader import read_site


@pytest.mark.parametrize(
    ("site", "own", "nodes", "access"),
    [
        ("technion", True, None, "own sshd"),
        ("technion", True, True, "own sshd"),  # which is in the container with scp, too
        ("technion", False, True, "site's sshd"),
        ("hosts", False, None, "site's sshd"),
    ],
)
def test_how_ssh_may_get_into_a_job(site: str, own: bool, nodes: bool | None, access: str) -> None:
    assert access_of(msgspec.structs.replace(read_site(site), user_sshd=own, ssh_to_nodes=nodes)) == access


@pytest.mark.parametrize("nodes", [False, None])
def test_what_is_unknown_is_refused_with_the_question_for_support(nodes: bool | None) -> None:
    with pytest.raises(RefusedError, match="technion says neither") as raised:
        access_of(msgspec.structs.replace(read_site("technion"), ssh_to_nodes=nodes))
    assert "May I run `sshd -i` as myself" in raised.value.fix


def test_a_file_called_as_the_site_where_it_was_submitted_is_not_its_file(tmp_path: Path) -> None:
    (tmp_path / "local").write_text("extends: local\nuser_sshd: true\n")  # of another user, who may write there
    run = Run(tmp_path)
    run.write(REQUEST, RequestRecord(Request(1, directory=str(tmp_path)), "local"))
    with pytest.raises(RefusedError, match="the site local says neither"):
        _access_to(run)
    (tmp_path / "local.yaml").write_text("extends: local\nname: mine\nuser_sshd: true\n")
    run.write(REQUEST, RequestRecord(Request(1, directory=str(tmp_path), site="local.yaml")))
    assert _access_to(run) == "own sshd"


def test_what_lies_where_ssh_is_called_is_not_run_as_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner/__main__.py").write_text("print('another user')")
    with monkeypatch.context() as alone:
        alone.setattr(sys, "executable", str(tmp_path / "python3"))  # no gpu-runner beside it
        _, option, text = ssh._own_program()
    called = subprocess.run([sys.executable, option, text, "--version"], cwd=tmp_path, capture_output=True, check=True)
    assert "gpu-runner, version" in called.stdout.decode()
