"""TensorFlow through the whole chain: image, squashfs, a job of four ranks on two nodes, and a verdict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.commands import Runner
from tests.support.rank_records import records
from tests.support.schema import check

if TYPE_CHECKING:
    import docker

    from runner.images.building.build import BuiltImage
    from runner.images.store.stored_image import StoredImage

pytestmark = pytest.mark.integration
JOB = ("submit", "--recipe", "horovod-tensorflow", "--nodes", "2", "--wait")


@pytest.fixture(scope="module")
def image(engine_client: docker.DockerClient) -> BuiltImage:
    """The TensorFlow image on its stand-in base, by the very Dockerfile that is used on NGC."""
    from runner.core.progress import Silent
    from runner.images.building.build import build

    return build("tensorflow", "standin", engine_client, Silent())


@pytest.fixture(scope="module")
def stored(engine_client: docker.DockerClient, image: BuiltImage) -> StoredImage:
    from runner.core.progress import Silent
    from runner.images.conversion.squashfs import convert_engine_image

    return convert_engine_image(image.reference, engine_client, Silent()).image


def test_the_image_says_what_it_is(engine_client: docker.DockerClient, image: BuiltImage, stored: StoredImage) -> None:
    about = stored.about
    assert (about["framework"], about["framework_version"]) == ("tensorflow", "2.21.0")
    assert about["keras"].startswith("2."), "legacy Keras, which Horovod's optimizer knows"
    assert about["horovod"]["frameworks"] == ["tensorflow"]
    assert about["horovod"]["proven"] == ["gloo", "mpi"]
    assert about["horovod"]["fixes"] == ["cxx-standard", "xla-ops-left-out"]
    assert (about["mpi"]["flavour"], about["mpi"]["pmi"], about["mpi"]["abi"]) == ("openmpi", ["pmix"], "libmpi.so.40")
    assert about["base_digest"] == image.base_digest
    assert image.labels["gpu-runner.framework.version"] == "2.21.0"
    base = engine_client.images.get(image.base)
    assert image.size_bytes - int(base.attrs["Size"]) < 60_000_000, "what Horovod adds to the base"


def test_tensorflow_is_measured(runner: Runner, stored: StoredImage) -> None:
    done = runner(*JOB, "--gpus", "4", "--set", "steps=20", code=0)
    run = runner.newest()
    verdict = json.loads((run / "verdict.json").read_text())
    result = json.loads((run / "result.json").read_text())
    reports = records(run, "report")
    assert verdict["outcome"] == "measured"
    for record in (*reports.values(), result):
        check(record)
    assert len({report["gradient_checksum"] for report in reports.values()}) == 4
    assert len({report["parameter_checksum"] for report in reports.values()}) == 1
    assert (result["recipe"], result["training_mode"], result["proven"]) == ("horovod-tensorflow", "tape", True)
    assert result["image"]["framework_version"] == "2.21.0"
    assert json.loads((run / "plan.json").read_text())["image"]["about"]["framework"] == "tensorflow"
    assert "images/s" in done.out


def test_keras_3_trains_unsynchronised_in_silence_and_is_reported(runner: Runner, stored: StoredImage) -> None:
    """No fault is planted: this is what Horovod 0.28.1 does with Keras 3's own training step."""
    short = ("--set", "steps=4", "--set", "warmup-steps=1")  # each of the first steps is traced anew
    done = runner(*JOB, "--gpus", "2", *short, "--set", "mode=fit", "--env", "TF_USE_LEGACY_KERAS=0", code=6)
    verdict = json.loads((runner.newest() / "verdict.json").read_text())
    assert verdict["outcome"] == "not-proven"
    assert any("not synchronised: 2 different sets of parameters" in reason for reason in verdict["reasons"]), verdict
    assert verdict["images_per_s"] is None
    assert "images/s" not in done.out
