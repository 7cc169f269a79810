"""``shell --ssh`` on the real Slurm of a box whose nodes have Debian's openssh-server: ssh, scp, tunnels into a job."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Output, Runner, extended, ran
from tests.support.daemons import own_box
from tests.support.rank_records import has_started
from tests.support.shells import typed_into
from tests.support.sshd import free_port
from tests.support.users import ALICE, AS_ROOT, become, open_directory
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, AS_ROOT]
SERVES = "python3 -m http.server --bind 127.0.0.1 --directory / {port}"
LISTENING = ("grep", "-c", " 0A ", "/proc/net/tcp")  # sockets, in the network of the box's nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Box]:
    """Its user is root, whose sshd wants a directory that its service would make."""
    with own_box("ssh", packages=("openssh-server",)) as box:
        ran([box.bin_dir / "srun", "--nodes=2", "mkdir", "-p", "/run/sshd"])
        yield box


@pytest.fixture
def allowed(nodes: Box, tmp_path: Path) -> Runner:
    site = extended(nodes.site, tmp_path, user_sshd=True, runtimes=["charliecloud", "native"])
    return Runner.at(site, tmp_path, nodes.bin_dir, runs="my 100% runs")


def serves(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return b"Directory listing" in answer.read()
    return False


def ssh_into(runner: Runner, run: Path, program: str = "ssh") -> Callable[..., Output]:
    """The real program, with the configuration that ``shell --ssh`` has written."""
    config = run / "ssh/0/config"

    def call(*words: str, code: int = 0) -> Output:
        return ran([program, "-F", config, *words], code=code, timeout_s=120, env=runner.environment())

    return call


def job_held(runner: Runner, *options: str) -> Path:
    words = ("--gpus", "1", *options, "--", "sleep", "900")
    run = runner.submitted(has_started(1), "submit", *words, timeout_s=120)
    said = runner("shell", "--ssh", run.name, code=0)
    assert said.out.startswith(f"Host {run.name}\n") and f"ssh -F '{run}/ssh/0/config' {run.name}" in said.err
    return run


@pytest.mark.parametrize("runtime", ["native", "charliecloud"])
def test_ssh_scp_and_a_tunnel(runtime: str, allowed: Runner, nodes: Box, squashfs: StoredImage, tmp_path: Path) -> None:
    run = job_held(allowed, "--runtime", runtime, *(("--image", squashfs.digest) if runtime != "native" else ()))
    name, ssh, scp = run.name, ssh_into(allowed, run), ssh_into(allowed, run, "scp")
    before = ran([nodes.bin_dir / "in-box", *LISTENING]).out
    said = ssh(name, "echo $RUNNER_RANK $PWD '$x'; cat; exit 3", code=3)
    assert said == Output(f"0 {Path.cwd() if runtime == 'native' else '/workspace'} $x\n", "")
    assert ran([nodes.bin_dir / "in-box", *LISTENING]).out == before  # it opens no port

    content = os.urandom(3_000_000)
    (tmp_path / "a b").write_bytes(content)
    scp(str(tmp_path / "a b"), f"{name}:/tmp/there")
    scp(f"{name}:/tmp/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content
    assert ssh(name, "stat -c %s /tmp/there; rm /tmp/there").out == "3000000\n"  # in the container, where there is one

    here, there = free_port(), free_port()
    words = ["ssh", "-F", str(run / "ssh/0/config"), "-L", f"{here}:127.0.0.1:{there}", name, SERVES.format(port=there)]
    with subprocess.Popen(words, env=allowed.environment(), stdin=subprocess.DEVNULL) as tunnel:
        try:
            until(partial(serves, f"http://127.0.0.1:{here}"), "it serves through the tunnel")
        finally:
            tunnel.terminate()
    allowed("cancel", name, code=0)


def test_another_key_user_or_host_is_refused(allowed: Runner) -> None:
    run = job_held(allowed, "--runtime", "native")
    name, directory, ssh = run.name, run / "ssh/0", ssh_into(allowed, run)
    assert {path.stat().st_mode & 0o077 for path in (run / "ssh", directory)} == {0}
    assert {path.name for path in directory.iterdir() if path.stat().st_mode & 0o077} <= {"key.pub", "host_key.pub"}
    ran(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", run / "other"])
    (directory / "config").write_text((directory / "config").read_text().replace("/ssh/0/key", "/other"))
    assert "Permission denied (publickey)" in ssh(name, "true", code=255).err
    (directory / "config").write_text((directory / "config").read_text().replace("/other", "/ssh/0/key"))
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
    run = job_held(runner, "--runtime", "native")
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
    of_user = ("-F", f"{run}/ssh/0/config", "-i", f"{tmp_path}/user", "-o", "StrictHostKeyChecking=no")
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
    assert says in runner("shell", "--ssh", run.name, code=3).err and not (run / "ssh").exists()
    runner("cancel", run.name, code=0)
    for words in (("--ssh", "--", "ls"), ("--stdio",), ("--ssh", "--stdio")):
        assert "--ssh takes no command" in runner("shell", *words, code=2).err
