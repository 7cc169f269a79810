"""An image that is built from collected packages by a real engine, whose steps have no network: Horovod is compiled."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.core.errors import RefusedError
from runner.core.package_directory import opened
from runner.core.progress import Silent
from runner.environments.collect import collect
from runner.environments.script import packages_of_images
from runner.images.building.build import build
from runner.sites.loader import read_site
from tests.support.framework_matrix import base_of
from tests.support.heard import Heard
from tests.support.package_directories import collected

pytestmark = pytest.mark.integration
BASE = "offline-base:1"


@pytest.fixture(scope="module")
def base(engine_client: docker.DockerClient) -> Iterator[str]:
    """The stand-in under another name, as an image that was loaded."""
    engine_client.images.get(base_of(engine_client)).tag(*BASE.split(":"))
    yield BASE
    engine_client.images.remove(BASE)


def test_horovod_is_compiled_and_proven_without_a_network(
    engine_client: docker.DockerClient, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))  # no wheel is kept
    collect(packages_of_images(read_site("local"), "pytorch", ""), tmp_path / "it's wheéls", Silent())
    shutil.copytree(tmp_path / "it's wheéls", tmp_path / "copy")
    subprocess.run(["chmod", "-R", "a-w", str(tmp_path / "copy")], check=True)
    progress = Heard()
    built = build("pytorch", base, engine_client, progress, packages=opened(tmp_path / "copy"))
    try:
        print(f"\nbuilt without a network in {built.seconds:.0f} s")
        log = "\n".join(progress.lines)
        assert "horovod: compiled in" in log
        assert "PROVEN" in log
        listed = engine_client.containers.run(
            built.reference, ["-c", "ls -R /opt/runner; env"], entrypoint=["bash"], network_mode="none", remove=True
        ).decode()
        assert "image.json" in listed
        assert "packages" not in listed.splitlines(), "what is left of the packages in the image"
        assert "PIP_NO_INDEX" not in listed
        again = build("pytorch", base, engine_client, Silent(), packages=opened(tmp_path / "copy"))
        assert again.up_to_date
    finally:
        engine_client.images.remove(built.reference)


def test_a_base_that_the_engine_lacks_or_that_has_another_python_is_refused(
    engine_client: docker.DockerClient, base: str, tmp_path: Path
) -> None:
    collected(tmp_path / "p", pythons=("3.7",))
    with pytest.raises(RefusedError, match=r"no image example/none:1, and --wheels uses no network") as caught:
        build("pytorch", "docker.io/example/none:1", engine_client, Silent(), packages=opened(tmp_path / "p"))
    assert "docker load -i base.tar" in caught.value.fix
    with pytest.raises(RefusedError, match=r"they are for Python 3\.7, and this is Python 3\.11") as caught:
        build("pytorch", base, engine_client, Silent(), packages=opened(tmp_path / "p"))
    assert "--image --framework pytorch" in caught.value.fix
    with pytest.raises(RefusedError, match="the Keras of TensorFlow is not among them"):
        build("tensorflow", base, engine_client, Silent(), packages=opened(tmp_path / "p"))
