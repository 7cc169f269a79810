"""What the request leaves open is settled from the site and this machine's programs, or refused with a fix."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from runner.core.errors import RefusedError, UsageError
from runner.model.request import Request
from runner.model.site import AtSite, UserConfig
from runner.preparation.choices import Choices, FindProgram, choose_all, pin
from runner.preparation.site import with_user_values
from runner.recipes.loader import recipe_of
from runner.setup.machine import missing_modules
from runner.sites.loader import Machine, fit_to_machine, read_site
from tests.support.shell_files import stand_in
from tests.support.squashfs import SUPERBLOCK, published
from tests.support.users import open_directory

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
    request = Request(gpus=1)
    for device, programs, chosen in (("cuda", ("ch-run", "python3"), "native"), ("cpu", ("python3",), "native"),
                                     ("cpu", ("ch-run", "python3"), "charliecloud")):  # fmt: skip
        user_site = with_user_values(msgspec.structs.replace(read_site("local"), device=device), request, CONFIG)
        assert choose_all(user_site, request, installed(*programs)).runtime == chosen
    with pytest.raises(RefusedError, match="is installed on this machine") as caught:
        choose_all(user_site, request, installed())
    assert "apt-get install" in caught.value.fix


def test_an_environment_is_native() -> None:
    chosen = choices("local", Request(gpus=1, env_name="mine"), "python3")
    assert (chosen.runtime, chosen.environment) == ("native", "mine")


def test_an_image_file_that_another_user_could_exchange_is_refused() -> None:
    """Of a store's own file its rules say what is believed; in a closed directory no other user comes to it."""
    with open_directory() as directory:
        (place := directory / "shared").mkdir()
        (image := place / "x.sqsh").write_bytes(SUPERBLOCK)
        stored = published(SUPERBLOCK, place / "store").path
        cases = ((0o777, 0o755, True), (0o1777, 0o755, False), (0o755, 0o755, False), (0o777, 0o700, False))
        for mode, above, is_refused in cases:
            place.chmod(mode)
            directory.chmod(above)
            pinned = pin(str(image), "squashfs")
            assert bool(pinned.problem) == is_refused, (mode, pinned)
            assert not is_refused or f"below {place}, which is everybody's to write to" in pinned.problem
            assert not is_refused or pinned.fix.endswith(f"chmod +t {place}")
            assert not pin(str(stored), "squashfs").problem


def test_listed_hosts_give_the_site_its_shape() -> None:
    site = choices("hosts", Request(gpus=3, hosts=(("a", 2), ("b", 4)))).site
    assert (site.node.gpus, site.node.count, dict(site.ssh.hosts)) == (4, 2, {"a": 2, "b": 4})


@pytest.mark.parametrize(
    ("gpu_type", "queue", "chosen", "left", "capability", "cpus"),
    [
        (None, None, None, None, "8.0", 8),
        ("v100", None, "cas_v100nv_8", None, "7.0", 4),
        ("V100", None, "cas_v100nv_8", None, "7.0", 4),
        ("a100", None, "amd_a100nv_8", None, "8.0", 8),
        (None, "cas_v100nv_8", "cas_v100nv_8", None, "7.0", 4),
        ("v100", "cas_v100nv_8", "cas_v100nv_8", None, "7.0", 4),
        ("mi300", None, None, "mi300", "8.0", 8),  # the scheduler gets a type that no queue has
    ],
)
def test_a_type_of_gpu_picks_its_queue_and_a_queue_its_nodes(
    gpu_type: str | None, queue: str | None, chosen: str | None, left: str | None, capability: str, cpus: int
) -> None:
    made = choices("neuron", Request(gpus=16, gpu_type=gpu_type, queue=queue))
    assert (made.request.queue, made.request.gpu_type) == (chosen, left)
    assert (made.site.hardware.compute_capability, made.site.node.cpus_per_gpu) == (capability, cpus)


def test_a_type_of_gpu_in_another_queue_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="v100 are in cas_v100nv_8") as caught:
        choices("neuron", Request(gpus=1, gpu_type="v100", queue="amd_a100nv_8"))
    assert "leave out --queue" in caught.value.fix


def test_with_gpus_it_measures_and_without_it_demonstrates() -> None:
    site = read_site("local")
    bare = msgspec.structs.replace(site, device="cuda", demonstration="", options={}, env={})
    full = fit_to_machine(bare, Machine(cpus=64, memory_mb=1000, gpus=4))
    assert (full.device, full.demonstration, full.node.gpus, full.node.count) == ("cuda", "", 4, 1)
    assert full.options == {}
    none = fit_to_machine(bare, Machine(cpus=2, memory_mb=1000, gpus=0))
    assert (none.device, none.node.gpus, none.node.cpus) == ("cpu", 8, 2)
    assert "no performance claim" in none.demonstration
    assert none.options["horovod-pytorch"]["demonstration"] is True


def test_what_a_python_lacks_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_modules(()) == missing_modules(("json", "os")) == ("", "")
    lacks, fix = missing_modules(("json", "no_such_module", "horovod"))
    assert lacks.endswith("has no no_such_module and no horovod")
    assert "env create NAME --framework pytorch" in fix
    assert missing_modules(("json", "no_such_module"))[1].endswith("pip install no_such_module")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert missing_modules(())[0] == "no python3 is in PATH"


def test_modules_in_the_users_directory_are_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "importlib.py").write_text("raise SystemExit('run as another user')")
    monkeypatch.chdir(tmp_path)
    stand_in(tmp_path, "python3", f'exec {sys.executable} -S "$@"')  # no package has imported it before
    assert missing_modules(("json",), tmp_path / "python3") == ("", "")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "train.py", "--lr", "1"), "train"),
        (("python3", "-u", "my code/train it.v2.py"), "train-it.v2"),
        (("./run.sh", "x"), "run"),
        (("/opt/app/bin/solver",), "solver"),
        (("...",), "program"),
    ],
)
def test_a_program_gives_the_job_its_name(words: tuple[str, ...], name: str) -> None:
    recipe = recipe_of(words)
    assert (recipe.name, recipe.program, recipe.result) == (name, words, "if-left")
