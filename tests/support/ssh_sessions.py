"""ssh into jobs of a box whose nodes have Debian's openssh-server."""

import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from runner.box import Box
from tests.support.commands import Output, Runner, extended, ran
from tests.support.daemons import own_box
from tests.support.rank_records import has_started
from tests.support.sshd import free_port
from tests.support.waiting import until

SERVES = "python3 -m http.server --bind 127.0.0.1 --directory / {port}"
LISTENING = ("grep", "-c", " 0A ", "/proc/net/tcp")  # sockets, in the network of the box's nodes


@contextmanager
def nodes_with_sshd(**spec: Any) -> Iterator[Box]:
    """Their user is root, whose sshd wants a directory that its service would make."""
    with own_box("ssh", packages=("openssh-server",), **spec) as box:
        ran([box.bin_dir / "srun", "--nodes=2", "mkdir", "-p", "/run/sshd"])
        yield box


def allowing(box: Box, directory: Path) -> Runner:
    """The command line at a site that allows its users an sshd."""
    site = extended(box.site, directory, user_sshd=True, runtimes=["charliecloud", "native"])
    return Runner.at(site, directory, box.bin_dir, runs="my 100% runs")


def serves(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return b"Directory listing" in answer.read()
    return False


def directory_of_ssh(run: Path) -> Path:
    """What `shell --ssh` has written for rank 0 of a run."""
    return run.with_name(f".ssh-{run.name}") / "0"


def ssh_into(runner: Runner, run: Path, program: str = "ssh") -> Callable[..., Output]:
    """The real program, with the configuration that ``shell --ssh`` has written."""
    config = directory_of_ssh(run) / "config"

    def call(*words: str, code: int = 0) -> Output:
        return ran([program, "-F", config, *words], code=code, timeout_s=120, env=runner.environment())

    return call


def waiting_job(runner: Runner, *options: str) -> Path:
    words = ("--gpus", "1", *options, "--", "sleep", "900")
    run = runner.submitted(has_started(1), "submit", *words, timeout_s=120)
    said = runner("shell", "--ssh", run.name, code=0)
    assert said.out.startswith(f"Host {run.name}\n")
    assert f"ssh -F '{directory_of_ssh(run)}/config' {run.name}" in said.err
    return run


def assert_ssh_scp_and_a_tunnel(runtime: str, box: Box, image: str, directory: Path) -> None:
    allowed = allowing(box, directory)
    run = waiting_job(allowed, "--runtime", runtime, *(("--image", image) if runtime != "native" else ()))
    name, ssh, scp = run.name, ssh_into(allowed, run), ssh_into(allowed, run, "scp")
    before = ran([box.bin_dir / "in-box", *LISTENING]).out
    said = ssh(name, "echo $RUNNER_RANK $PWD '$x'; cat; exit 3", code=3)
    assert said == Output(f"0 {Path.cwd() if runtime == 'native' else '/workspace'} $x\n", "")
    assert ran([box.bin_dir / "in-box", *LISTENING]).out == before  # it opens no port

    content = os.urandom(3_000_000)
    (directory / "a b").write_bytes(content)
    scp(str(directory / "a b"), f"{name}:/tmp/there")
    scp(f"{name}:/tmp/there", str(directory / "back"))
    assert (directory / "back").read_bytes() == content
    assert ssh(name, "stat -c %s /tmp/there; rm /tmp/there").out == "3000000\n"  # in the container, where there is one

    here, there = free_port(), free_port()
    config, forward = str(directory_of_ssh(run) / "config"), f"{here}:127.0.0.1:{there}"
    words = ["ssh", "-F", config, "-L", forward, name, SERVES.format(port=there)]
    with subprocess.Popen(words, env=allowed.environment(), stdin=subprocess.DEVNULL) as tunnel:
        try:
            until(partial(serves, f"http://127.0.0.1:{here}"), "it serves through the tunnel")
        finally:
            tunnel.terminate()
    allowed("cancel", name, code=0)
