"""What registries say of images: read strictly, whichever family it is of."""

from __future__ import annotations

import json

import pytest

from runner.errors import InfrastructureError, RefusedError, UsageError
from runner.images.sources import manifests
from runner.images.sources.manifests import Descriptor, Index, Manifest, Platform

A, B = ("sha256:" + letter * 64 for letter in "ab")


def encoded(**document: object) -> bytes:
    return json.dumps(document).encode()


def test_manifest_and_index_are_distinguished_by_what_they_hold() -> None:
    raw = encoded(schemaVersion=2, config={"digest": A, "size": 1}, layers=[{"digest": B, "size": 5, "new": {}}])
    assert manifests.parse(raw, "x") == Manifest(Descriptor(A, 1), (Descriptor(B, 5),))
    found = manifests.parse(encoded(schemaVersion=2, mediaType="application/json", manifests=[{"digest": A}]), "x")
    assert found == Index((Descriptor(A),))


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"\xff", encoded(schemaVersion=2), encoded(config={"digest": A}),
        encoded(manifests=[{"digest": "sha256:../../etc/passwd"}]),
        encoded(manifests=[{"digest": A + "0"}]),
        encoded(manifests=[{"digest": A.replace("sha256", "sha512")}]),
        encoded(manifests=[{"digest": A, "size": -1}]),
        encoded(config={"digest": A}, layers={"digest": A}),
    ],
)  # fmt: skip
def test_what_is_neither_is_refused_as_such(raw: bytes) -> None:
    with pytest.raises(InfrastructureError) as caught:
        manifests.parse(raw, "host/name:1")
    assert caught.value.where == "host/name:1"


def test_schema_1_is_refused() -> None:
    with pytest.raises(RefusedError, match="schema 1"):
        manifests.parse(encoded(schemaVersion=1, fsLayers=[]), "x")


def test_a_configuration_must_be_that_of_the_layers() -> None:
    raw = encoded(architecture="arm64", os="linux", config={"Env": ["A=1"], "Volumes": {"/v": {}}, "Cmd": None},
                  rootfs={"type": "layers", "diff_ids": [A]})  # fmt: skip
    found = manifests.configuration(raw, 1, "x")
    assert (str(found.platform), found.rootfs.diff_ids) == ("linux/arm64", (A,))
    assert found.config is not None
    assert (found.config.env, found.config.cmd) == (("A=1",), None)
    for layers, document in ((2, raw), (1, b"{}"), (1, encoded(rootfs={"diff_ids": ["md5:1"]}))):
        with pytest.raises(RefusedError, match="no container image"):
            manifests.configuration(document, layers, "x")


@pytest.mark.parametrize(
    ("of_image", "wanted", "serves"),
    [
        ("linux/amd64", "linux/amd64", True),
        ("linux/arm64/v8", "linux/arm64", True),
        ("linux/arm64", "linux/arm64/v8", True),
        ("linux/arm/v6", "linux/arm/v7", False),
        ("windows/amd64", "linux/amd64", False),
    ],
)
def test_which_platform_serves(of_image: str, wanted: str, serves: bool) -> None:
    assert manifests.platform(of_image).serves(manifests.platform(wanted)) == serves


def test_platforms_are_written_as_go_does() -> None:
    assert str(manifests.platform("linux/arm/v7")) == "linux/arm/v7"
    assert manifests.platform(None).os == "linux"
    for wrong in ("amd64", "linux/", "linux/amd64/v1/x", "Linux/amd64", ""):
        with pytest.raises(UsageError, match="not a platform"):
            manifests.platform(wrong)


def test_the_first_that_serves_is_taken_and_attestations_are_not_offered() -> None:
    unknown = Platform("unknown", "unknown")
    of = [Descriptor(A, platform=unknown), Descriptor(B, platform=Platform("linux", "arm64", "v8"))]
    assert manifests.choose(Index(tuple(of)), Platform("linux", "arm64"), "x").digest == B
    with pytest.raises(RefusedError, match="only for linux/arm64/v8") as caught:
        manifests.choose(Index(tuple(of)), Platform("linux", "amd64"), "x")
    assert "unknown" not in str(caught.value)
    with pytest.raises(RefusedError, match="only for platforms that it does not name"):
        manifests.choose(Index(()), Platform("linux", "amd64"), "x")
    assert manifests.choose(Index((Descriptor(A),)), Platform("linux", "amd64"), "x").digest == A
