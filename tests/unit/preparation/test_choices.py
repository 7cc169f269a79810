"""What the request leaves open is settled from the site and this machine's programs, or refused with a fix."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.core.errors import RefusedError, UsageError
from runner.model.request import Request
from runner.model.site import AtSite, UserConfig
from runner.preparation.choices import Choices, FindProgram, choose_all
from runner.preparation.site import with_user_values
from runner.sites.loader import read_site

CONFIG = UserConfig(account="m1234", sites={"perlmutter": AtSite(account="there", scratch="/s/elvis")})


def choices(site: str, request: Request, *programs: str) -> Choices:
    user_site = with_user_values(read_site(site), request, CONFIG)
    return choose_all(user_site, request, installed(*programs))


def installed(*programs: str) -> FindProgram:
    return lambda name: Path("/bin", name) if name in programs else None


def test_a_scheduler_gets_the_sites_first_runtime_and_the_users_account() -> None:
    chosen = choices("perlmutter", Request(gpus=1))
    assert (chosen.runtime, chosen.request.account) == (read_site("perlmutter").runtimes[0], "there_g")
    assert choices("perlmutter", Request(gpus=1, runtime="podman-hpc")).runtime == "podman-hpc"


def test_this_machine_gets_the_first_runtime_that_is_installed() -> None:
    local = read_site("local")
    request = Request(gpus=1)
    user_site = with_user_values(msgspec.structs.replace(local, device="cpu"), request, CONFIG)
    for programs, runtime in ((("ch-run", "python3"), "charliecloud"), (("python3",), "native")):
        assert choose_all(user_site, request, installed(*programs)).runtime == runtime
    with pytest.raises(RefusedError, match="is installed on this machine") as caught:
        choose_all(user_site, request, installed())
    assert "apt-get install" in caught.value.fix


def test_an_environment_is_native_and_excludes_an_image() -> None:
    chosen = choices("local", Request(gpus=1, env_name="mine"), "python3")
    assert (chosen.runtime, chosen.environment) == ("native", "mine")
    with pytest.raises(UsageError, match="either in an environment or in an image"):
        choices("local", Request(gpus=1, env_name="mine", image="i"), "python3")
    with pytest.raises(UsageError, match="pyxis runs images, not environments"):
        choices("technion", Request(gpus=1, env_name="mine", runtime="pyxis"))


def test_listed_hosts_give_the_site_its_shape() -> None:
    site = choices("hosts", Request(gpus=3, hosts=(("a", 2), ("b", 4)))).site
    assert (site.node.gpus, site.node.count, dict(site.ssh.hosts)) == (4, 2, {"a": 2, "b": 4})


@pytest.mark.parametrize(
    ("asked", "queue", "capability", "cpus"),
    [
        ({}, None, "8.0", 8),
        ({"gpu_type": "v100"}, "cas_v100nv_8", "7.0", 4),
        ({"gpu_type": "V100"}, "cas_v100nv_8", "7.0", 4),
        ({"gpu_type": "a100"}, "amd_a100nv_8", "8.0", 8),
        ({"queue": "cas_v100nv_8"}, "cas_v100nv_8", "7.0", 4),
        ({"queue": "cas_v100nv_8", "gpu_type": "v100"}, "cas_v100nv_8", "7.0", 4),
    ],
)
def test_a_type_of_gpu_picks_its_queue_and_a_queue_its_nodes(
    asked: dict[str, str], queue: str | None, capability: str, cpus: int
) -> None:
    chosen = choices("neuron", Request(gpus=16, **asked))  # type: ignore[arg-type]
    assert chosen.request.queue == queue
    assert chosen.request.gpu_type is None, "the partition decides it"
    assert (chosen.site.hardware.compute_capability, chosen.site.node.cpus_per_gpu) == (capability, cpus)


def test_a_type_of_gpu_in_another_queue_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="v100 are in cas_v100nv_8") as caught:
        choices("neuron", Request(gpus=1, gpu_type="v100", queue="amd_a100nv_8"))
    assert "leave out --queue" in caught.value.fix


def test_the_scheduler_gets_a_type_that_no_queue_has() -> None:
    chosen = choices("neuron", Request(gpus=1, gpu_type="h200"))
    assert (chosen.request.queue, chosen.request.gpu_type) == (None, "h200")
