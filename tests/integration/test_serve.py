"""``serve`` on the real Slurm of the box: a server on a node, and a tunnel to it through a login node's real sshd."""

import pytest

from runner.box import Box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.tunnels import SERVER, served
from tests.support.users import AS_ROOT

pytestmark = [pytest.mark.integration, AS_ROOT]


@pytest.mark.parametrize(
    ("listens", "runtime", "ssh", "tunnel"),
    [
        (("{socket}",), "charliecloud", True, "/serve/socket -J root@"),
        (("{address}", "{port}"), "charliecloud", None, ":10.0.0.1"),
        (("{address}", "{port}"), "native", True, ":127.0.0.1:"),
    ],
    ids=["socket", "address", "loopback"],
)
def test_a_server_on_a_node_and_the_tunnel_to_it(
    listens: tuple[str, ...], runtime: str, ssh: bool, tunnel: str, runner: Runner, squashfs: StoredImage, cluster: Box
) -> None:
    image = () if runtime == "native" else ("--image", squashfs.digest)
    with served(cluster, runner, runtime, ssh, *image, "--", "python3", "-c", SERVER, *listens) as here:
        assert tunnel in here.line and "warning" not in here.seen
        assert here.get(here.url) == (200, here.job)
        here.assert_closed_to_others(1, 403, here.url)


@pytest.mark.parametrize(("exits", "code"), [("--idle=1", 0), ("--time=9:00", 7)])
def test_it_ends_with_its_server_or_for_want_of_connections(exits: str, code: int, runner: Runner) -> None:
    """This server asks for no token, and says so, too."""
    words = "timeout 4 python3 -m http.server --bind {address} {port}; exit 7"
    words = words.replace("timeout 4 ", "") if code == 0 else words
    site = ("--site", str(runner.site), "--runs", str(runner.runs), "--runtime", "native")
    said = runner("serve", *site, exits, "--", "sh", "-c", words, code=code)
    assert "asks for no token" in said.err and "?token=$(cat " in said.out
