"""``shell --ssh`` on the real Slurm of a box whose nodes have Debian's openssh-server: ssh, scp, tunnels into a job."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, extended, ran
from tests.support.rank_records import has_started
from tests.support.shells import typed_into
from tests.support.ssh_sessions import (
    allowing,
    assert_ssh_scp_and_a_tunnel,
    directory_of_ssh,
    nodes_with_sshd,
    ssh_into,
    waiting_job,
)
from tests.support.sshd import free_port
from tests.support.users import ALICE, AS_ROOT, become, open_directory
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, AS_ROOT]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Box]:
    with nodes_with_sshd() as box:
        yield box


@pytest.fixture
def allowed(nodes: Box, tmp_path: Path) -> Runner:
    return allowing(nodes, tmp_path)


@pytest.mark.parametrize("runtime", ["native", "charliecloud"])
def test_ssh_scp_and_a_tunnel(runtime: str, nodes: Box, squashfs: StoredImage, tmp_path: Path) -> None:
    assert_ssh_scp_and_a_tunnel(runtime, nodes, squashfs.digest, tmp_path)


def test_the_session_of_the_page(allowed: Runner, squashfs: StoredImage, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    shown = dedent(page[page.index("    $ ssh ") :].partition("\n\n")[0])
    run = waiting_job(allowed, "--name", "train", "--runtime", "charliecloud", "--image", squashfs.digest)
    (tmp_path / "model.pt").write_bytes(b"weights")
    config = shlex.quote(str(directory_of_ssh(run) / "config"))
    lines = [f'{name}() {{ command {name} -F {config} "$@"; }}' for name in ("ssh", "scp")]
    for line in shown.splitlines():
        if line.startswith("$ "):
            lines.append(f"echo {shlex.quote(line)}; {line[2:].replace('20261127-160000-train-1', run.name)}")
    said = ran(["bash", "-ec", "\n".join(lines)], cwd=tmp_path, env=allowed.environment(), timeout_s=120)
    assert said.out.strip() == shown
    allowed("cancel", run.name, code=0)


def test_another_key_user_or_host_is_refused(allowed: Runner) -> None:
    run = waiting_job(allowed, "--runtime", "native")
    name, directory, ssh = run.name, directory_of_ssh(run), ssh_into(allowed, run)
    assert {path.stat().st_mode & 0o077 for path in (directory.parent, directory)} == {0}
    assert {path.name for path in directory.iterdir() if path.stat().st_mode & 0o077} <= {"key.pub", "host_key.pub"}
    ran(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", run / "other"])
    (directory / "config").write_text((directory / "config").read_text().replace("/0/key", "/other"))
    assert "Permission denied (publickey)" in ssh(name, "true", code=255).err
    (directory / "config").write_text((directory / "config").read_text().replace("/other", "/0/key"))
    assert "Permission denied (publickey)" in ssh("-l", "daemon", name, "true", code=255).err
    (directory / "known_hosts").write_text(f"{name} {(run / 'other.pub').read_text()}")
    assert "Host key verification failed" in ssh(name, "true", code=255).err
    with open_directory() as cwd:
        shutil.copytree(run, copy := cwd / run.name)
        words = (*become(ALICE, reads=True), *allowed.argv("shell", "--ssh", "--stdio", str(copy)))
        said = ran(words, code=3, cwd=cwd, env={**allowed.environment(), "RUNNER_STATE": f"{cwd}/s", "HOME": str(cwd)})
    assert "this run directory belongs to root" in said.err
    allowed("cancel", name, code=0)


def test_in_a_job_of_its_own(allowed: Runner, tmp_path: Path) -> None:
    shell = typed_into(allowed, tmp_path, "--ssh", "--runtime", "native", "--name", "mine")
    shell.until("Ctrl-C here ends its job")
    run = allowed.newest()
    assert ssh_into(allowed, run)(run.name, "echo $RUNNER_RANK").out == "0\n"
    shell.type("\x03")
    assert shell.end() == 130
    allowed("wait", run.name, code=5)


def test_by_the_sshd_of_the_site(nodes: Box, tmp_path: Path) -> None:
    """The user's key and the node's sshd, which here is root's own, are the site's; scp gets what the node has."""
    site = extended(nodes.site, tmp_path, ssh_to_nodes=True)
    runner = Runner.at(site, tmp_path, nodes.bin_dir, runs="my runs")
    run = waiting_job(runner, "--runtime", "native")
    for key in ("user", "host"):
        ran(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key])
    port = free_port()
    options = (f"Port={port}", f"HostKey={tmp_path}/host", f"AuthorizedKeysFile={tmp_path}/user.pub", "StrictModes=no",
               "SetEnv=SHLVL=1", "PidFile=none")  # fmt: skip
    sshd = ("/usr/sbin/sshd", "-D", *(word for option in options for word in ("-o", option)))
    job = json.loads((run / "job.json").read_text())["job_id"]
    server = subprocess.Popen(
        [nodes.bin_dir / "srun", f"--jobid={job}", "--overlap", "--ntasks=1", *sshd], stdin=subprocess.DEVNULL
    )
    of_user = ("-F", f"{directory_of_ssh(run)}/config", "-i", f"{tmp_path}/user", "-o", "StrictHostKeyChecking=no")
    client = [f"{nodes.bin_dir}/in-box", "env", f"HOME={tmp_path}"]
    try:
        until(lambda: f":{port:04X} " in ran([nodes.bin_dir / "in-box", "cat", "/proc/net/tcp"]).out, "it listens")
        words = [*client, "ssh", *of_user, "-p", str(port), run.name]
        said = subprocess.run(words, input=b"echo =$RUNNER_RANK=; exit\n", capture_output=True, timeout=60, check=True)
        assert re.search(rb"^=0=\r?$", said.stdout, re.MULTILINE)
        ran([*client, "scp", *of_user, "-P", str(port), run / "plan.json", f"{run.name}:{tmp_path}/copy"])
        assert (tmp_path / "copy").read_bytes() == (run / "plan.json").read_bytes()
    finally:
        server.terminate()
        server.wait(30)
        runner("cancel", run.name, code=0)


def test_a_site_that_says_nothing_of_it_refuses(nodes: Box, tmp_path: Path) -> None:
    runner = Runner.at(nodes.site, tmp_path, nodes.bin_dir)
    own = ("shell", "--ssh", "--site", str(runner.site), "--runs", str(runner.runs), "--runtime", "native")
    says = "the site box says neither `user_sshd: true` nor `ssh_to_nodes: true`"
    assert says in runner(*own, code=3).err and not runner.runs.exists()
    run = runner.submitted(has_started(1), "submit", "--gpus", "1", "--runtime", "native", "--", "sleep", "60")
    assert says in runner("shell", "--ssh", run.name, code=3).err and not directory_of_ssh(run).exists()
    runner("cancel", run.name, code=0)
    for words in (("--ssh", "--", "ls"), ("--stdio",), ("--ssh", "--stdio")):
        assert "--ssh takes no command" in runner("shell", *words, code=2).err
