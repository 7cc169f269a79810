"""SIF files: whether a builder is here, what is in one, and which one a reference stands for."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from ipaddress import ip_address
from pathlib import Path

import pytest

from runner.cli import run
from runner.core import loopback, process
from runner.core.errors import Exit, InfrastructureError, RefusedError
from runner.core.progress import Silent
from runner.images import reference as references
from runner.images.conversion import sif as apptainer_build
from runner.images.conversion.publishing import publish
from runner.images.packing.rootfs import Config
from runner.images.store import image_files, store
from runner.images.store.stored_image import StoredImage
from runner.images.writable_root import tree_image
from runner.preparation.choices import pin
from tests.support.shell_files import stand_in
from tests.support.squashfs import published, sif_of
from tests.support.submissions import sound

pytestmark = pytest.mark.skipif(process.find("mksquashfs") is None, reason="squashfs-tools are not installed")


def test_a_builder_takes_no_registry_of_this_machine_that_is_a_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may listen there by then, and would get a login."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = references.parse(f"127.0.0.1:{server.getsockname()[1]}/x:1")
        assert apptainer_build.without_tls(here) == ["--no-https"]
        monkeypatch.setattr(loopback, "_addresses", lambda _: [ip_address("::1"), ip_address("127.0.0.1")])
        with pytest.raises(RefusedError, match="other addresses") as caught:  # which the builder would try first
            apptainer_build.without_tls(references.parse(f"localhost:{server.getsockname()[1]}/x:1"))
        assert caught.value.fix == f"write it as 127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.undo()
    with pytest.raises(InfrastructureError, match="nothing listens"):
        apptainer_build.without_tls(here)
    assert apptainer_build.without_tls(references.parse("nvcr.io/x:1")) == []


def test_a_game_named_singularity_is_no_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stand_in(tmp_path, "singularity", "echo 'Endgame: Singularity 1.00'")
    with pytest.raises(RefusedError, match="apptainer"):
        apptainer_build.apptainer_program()
    stand_in(tmp_path, "singularity", "echo 'singularity-ce version 4.1.0'")
    assert apptainer_build.apptainer_program() == "singularity"
    stand_in(tmp_path, "apptainer", "echo 'apptainer version 1.4.5'")
    assert apptainer_build.apptainer_program() == "apptainer"


@pytest.fixture
def sif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole SIF file of one small tree, beside an empty store."""
    for name in ("RUNNER_STORE", "RUNNER_STATE", "RUNNER_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / name.removeprefix("RUNNER_").lower()))
    (tmp_path / "tree/opt/runner").mkdir(parents=True)
    (tmp_path / "tree/opt/runner/image.json").write_text('{"framework": "pytorch"}')
    process.run(["mksquashfs", tmp_path / "tree", tmp_path / "x.sqsh", "-quiet"], timeout_s=60)
    sif_of(tmp_path / "x.sqsh", tmp_path / "x.sif")
    return tmp_path / "x.sif"


def test_what_is_in_it_is_read_with_no_apptainer(sif: Path) -> None:
    assert image_files.problem(sif, "sif") == ""
    assert image_files.content(sif, "opt/runner/image.json", "sif") == '{"framework": "pytorch"}'
    assert image_files.content(sif, "opt/nothing", "sif") == ""
    assert image_files.entries(sif, "sif")["squashfs-root/opt/runner/image.json"] == 1


def test_a_damaged_sif_is_reported(sif: Path, tmp_path: Path) -> None:
    whole = sif.read_bytes()
    sif.write_bytes(whole[:-1])
    assert "it is cut off" in image_files.problem(sif, "sif")
    broken = (b"", whole[:100], whole[:4100], b"x" * 5000, whole[:32] + b"NO" + whole[34:])
    for raw in (*broken, whole.replace(struct.pack("<i?", 0x4004, True), struct.pack("<i?", 0x4001, True))):
        sif.write_bytes(raw)
        assert "no SIF" in image_files.problem(sif, "sif")
        with pytest.raises(InfrastructureError, match="no SIF"):
            image_files.entries(sif, "sif")


def test_a_broken_one_is_found_and_refused_then(sif: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    image = published(sif, tmp_path / "store", "x/horovod:1", "a", "sif")
    assert run(["images", "verify"]) == Exit.GOOD
    assert run(["images", "list"]) == Exit.GOOD
    said = capfd.readouterr().out
    assert f"good   {image.path}" in said
    assert "  SIF  aaaaaaaaaaaa" in said
    raw = bytearray(sif.read_bytes())
    raw[-100] ^= 1
    image.path.write_bytes(raw)
    assert run(["images", "verify", "x/horovod:1"]) == Exit.INFRASTRUCTURE
    assert "its SHA-256 is" in capfd.readouterr().out
    assert "its SHA-256 is" in pin("x/horovod:1", "sif").problem
    assert run(["images", "prune", "--unused"]) == Exit.GOOD
    assert list((tmp_path / "store").glob("*.sif*")) == []
    assert list((tmp_path / "store/refs").iterdir()) == []


def test_a_reference_stands_for_the_newest_file(sif: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A squashfs of the same name is another form of it, and is never taken for a SIF."""
    target = tmp_path / "store"
    job = sound("--runtime", "apptainer", "--image", "x/horovod:1", "--dry-run")
    site = tmp_path / "site.yaml"
    site.write_text("name: ours\nextends: slurm\nnode: {gpus: 8, cores: 64, memory_mb: 500000}\n")
    job[job.index("--site") + 1] = str(site)
    published(sif, target, "x/horovod:1", "b", "sif")
    store.refer("x/horovod:1", StoredImage(path=target / "x.sqsh", reference="x/horovod:1"))
    (target / "x.sqsh").write_bytes(b"")
    newest = published(sif, target, "x/horovod:1", "c", "sif")
    assert run(job) == Exit.GOOD
    assert str(newest.path) in capfd.readouterr().out
    store.remove(newest.path)
    assert run(job) == Exit.REFUSED
    assert "convert --format sif x/horovod:1" in capfd.readouterr().err


def test_in_a_store_of_several_users_the_builder_writes_where_no_other_renames(sif: Path, tmp_path: Path) -> None:
    shared, wrote = tmp_path / "shared", []
    shared.mkdir()
    shared.chmod(0o2775)

    def write(out: Path) -> None:
        wrote.append(out)
        shutil.copyfile(sif, out)

    source = tree_image(tmp_path / "tree", "x:1", "sha256:" + "a" * 64, "", Config())
    maker = apptainer_build.sif_maker(source, write)
    made = publish(maker, Silent(), store_dir=shared).image
    assert made.path.read_bytes() == sif.read_bytes()
    assert shared not in wrote[0].parents
    assert not wrote[0].parent.is_symlink()


def test_a_builder_gets_an_engine_by_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there may be a login, which no argument shows to all users."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", "unix:///own.sock")
    stand_in(tmp_path, "env", "echo exposed $*")
    stand_in(tmp_path, "apptainer", '[ "$1" != --version ] || echo apptainer version 1.4.5\necho "$DOCKER_HOST"')
    said: list[str] = []
    variables = {"DOCKER_HOST": "tcp://ada:secret@h:1"}
    apptainer_build.apptainer_build(["out.sif"], said.append, where="x", variables=variables)
    assert said == ["tcp://ada:secret@h:1"]
    assert os.environ["DOCKER_HOST"] == "unix:///own.sock"
