"""A run is repeated with its own options, and with those that the user changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.preparation.repetition import image_of, repeated
from tests.support.plans import PLAN

RECORDED = {
    "gpus": "2",
    "env": ["A=1", "B=2", "-C"],
    "mounts": ["/x:/data", "/y:/out:ro"],
    "options": ["model=resnet50"],
    "scheduler_options": ["mem=0"],
    "force": ["image-unusable"],
    "stage": True,
    "arguments": ("python", "train.py", "--lr", "1"),
}


def again(changes: dict[str, Any], *, without: tuple[str, ...] = (), image: str = "", site: str = "") -> dict[str, Any]:
    return repeated(RECORDED, changes, without=without, image=image, site=site)


def test_without_changes_it_is_the_same() -> None:
    assert again({}) == RECORDED


def test_what_is_given_again_replaces_and_what_is_new_is_added() -> None:
    found = again(
        {
            "gpus": "8",
            "env": ["C=3", "A=9"],
            "mounts": ["/z:/data:ro"],
            "options": ["model=resnet18", "batch=1"],
            "scheduler_options": ["qos=x"],
            "force": ["image-unusable", "mig-slices"],
            "arguments": ("python", "other.py"),
            "nodes": "1",
        }
    )
    assert found == {
        "gpus": "8",
        "env": ["B=2", "C=3", "A=9"],
        "mounts": ["/y:/out:ro", "/z:/data:ro"],
        "options": ["model=resnet18", "batch=1"],
        "scheduler_options": ["mem=0", "qos=x"],
        "force": ["image-unusable", "mig-slices"],
        "stage": True,
        "arguments": ("python", "other.py"),
        "nodes": "1",
    }


def test_an_option_is_left_out() -> None:
    assert "stage" not in again({}, without=("stage",))
    assert again({"env": ["D=1"]}, without=("env",))["env"] == ["D=1"]


def test_options_without_a_program_are_refused() -> None:
    with pytest.raises(UsageError, match="--lr is no program") as caught:
        again({"arguments": ("--lr", "2")})
    assert "-- python ..." in caught.value.fix
    assert again({"recipe": "probe", "arguments": ("--sleep", "2")})["arguments"] == ("--sleep", "2")


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ({}, "x@sha256:00"),
        ({"image": "y"}, "y"),
        ({"env_name": "e"}, None),
        ({"runtime": "native"}, None),
        ({"runtime": "enroot"}, "x@sha256:00"),
    ],
)
def test_the_image_is_the_one_that_ran_unless_another_is_requested(changes: dict[str, Any], image: str | None) -> None:
    assert again(changes, image="x@sha256:00").get("image") == image


def test_the_image_of_a_plan_is_named_by_its_digest_or_its_file() -> None:
    def of(image: PlannedImage, runtime: str = "pyxis") -> str:
        return image_of(msgspec.structs.replace(PLAN, image=image, runtime=runtime))

    digest = "sha256:" + "0" * 64
    assert image_of(PLAN) == "/i.sqsh"
    assert of(PlannedImage("a/b:1", digest, "/s/x.sqsh")) == f"a/b:1@{digest}"
    assert of(PlannedImage("./x.sqsh", digest, "/s/x.sqsh")) == "/s/x.sqsh"
    assert of(PlannedImage("env", "", "/e"), "native") == ""


def test_the_site_is_the_same_one() -> None:
    assert again({}, site="technion")["site"] == "technion"
    assert again({"site": "local"}, site="technion")["site"] == "local"
    assert "site" not in again({"hosts": "a:2"}, site="hosts")
