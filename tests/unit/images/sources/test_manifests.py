"""What registries and archives say of images: read strictly, whichever family it is of."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.images.sources import manifests
from runner.images.sources.archives import in_archive
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
    ("of_image", "wanted", "suits"),
    [
        ("linux/amd64", "linux/amd64", True),
        ("linux/amd64/v1", "linux/amd64", True),
        ("linux/amd64/v3", "linux/amd64", False),
        ("linux/amd64/v2", "linux/amd64/v3", True),
        ("linux/amd64", "linux/amd64/v3", True),
        ("linux/arm64/v8", "linux/arm64", True),
        ("linux/arm64", "linux/arm64/v8", True),
        ("linux/arm64/v8.2", "linux/arm64", False),
        ("linux/arm64", "linux/arm64/v9", True),
        ("linux/arm/v6", "linux/arm/v7", True),
        ("linux/arm/v6", "linux/arm", True),
        ("linux/arm/v7", "linux/arm/v6", False),
        ("linux/ppc64le/power9", "linux/ppc64le", False),
        ("linux/ppc64le", "linux/ppc64le/power9", True),
        ("linux/arm64", "linux/amd64", False),
    ],
)
def test_which_platform_suits(of_image: str, wanted: str, suits: bool) -> None:
    rank = manifests.platform(of_image).rank(manifests.platform(wanted))
    assert (rank is not None) == suits
    assert Platform("windows", *of_image.split("/")[1:]).rank(manifests.platform(wanted)) is None


def described(digest: str, text: str, **more: object) -> dict[str, object]:
    """An entry of an index; the platform may be empty."""
    names = dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))
    return {"digest": digest, "size": 1, **({"platform": names} if text else {}), **more}


def index(*entries: dict[str, object]) -> Index:
    parsed = manifests.parse(encoded(manifests=entries), "x")
    assert isinstance(parsed, Index)
    return parsed


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        (["linux/amd64/v3", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["linux/amd64/v3", "linux/amd64/v2", "linux/amd64"], "linux/amd64/v3", "linux/amd64/v3"),
        (["linux/amd64/v4", "linux/amd64/v2", "linux/amd64"], "linux/amd64/v3", "linux/amd64/v2"),
        (["linux/arm/v5", "linux/arm/v6", "linux/arm/v7"], "linux/arm", "linux/arm/v7"),
        (["", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["windows/amd64", "linux/amd64"], "linux/amd64", "linux/amd64"),
    ],
)
def test_the_best_variant_is_taken_wherever_it_stands(there: list[str], wanted: str, chosen: str) -> None:
    for order in (there, there[::-1]):
        digests = {text: f"sha256:{number:064x}" for number, text in enumerate(there)}
        made = index(*(described(digests[text], text) for text in order))
        assert manifests.choose(made, manifests.platform(wanted), "x").digest == digests[chosen]


def test_an_image_of_a_later_variant_is_refused_with_the_option() -> None:
    with pytest.raises(RefusedError, match="not made for linux/amd64, only for linux/amd64/v3") as caught:
        manifests.choose(index(described(A, "linux/amd64/v3")), manifests.platform("linux/amd64"), "x")
    assert "--platform linux/amd64/v3" in caught.value.fix


def test_images_for_windows_are_refused_as_such() -> None:
    windows = index(described(A, "windows/amd64"), described(B, "unknown/unknown"))
    with pytest.raises(RefusedError, match="an image for Windows"):
        manifests.choose(windows, manifests.platform("linux/amd64"), "x")
    with pytest.raises(UsageError, match="images for windows cannot be converted") as caught:
        manifests.platform("windows/amd64")
    assert caught.value.fix == "--platform linux/amd64"


def test_attestations_are_no_images_whatever_their_platform() -> None:
    """As BuildKit writes them: unknown/unknown with an annotation; some tools leave the platform out."""
    note = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": B}
    for platform in ("", "unknown/unknown", "linux/amd64"):
        entries = [described(A, platform, annotations=note), described(B, "linux/amd64")]
        assert index(*entries) == Index((Descriptor(B, 1, Platform("linux", "amd64")),))


def test_sha512_beside_sha256_is_passed_over_and_otherwise_refused() -> None:
    foreign = "sha512:" + "c" * 128
    both = index(described(foreign, "linux/amd64"), described(B, "linux/amd64"))
    assert manifests.choose(both, Platform("linux", "amd64"), "x").digest == B
    for entry in (described(foreign, "linux/amd64"), described(foreign, "")):
        with pytest.raises(RefusedError, match="only sha256 can be checked"):
            manifests.choose(index(entry), Platform("linux", "amd64"), "x")
    with pytest.raises(RefusedError, match="digests are of sha512; only sha256 can be checked"):
        manifests.parse(encoded(config={"digest": A}, layers=[{"digest": foreign, "size": 3}]), "x")


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


@pytest.mark.parametrize("raw", [b'{"x":' * 100_000, b'{"x":' + b"[" * 100_000])
def test_documents_that_are_nested_without_end_are_refused(raw: bytes) -> None:
    with pytest.raises(InfrastructureError, match="not a valid image document"):
        manifests.parse(raw, "x")
    with pytest.raises(InfrastructureError, match="not a valid image document"):
        manifests.configuration(raw, 1, "x")


@pytest.mark.parametrize("size", [-512, -1024, -1])
def test_a_negative_size_is_refused_and_not_followed_back_for_ever(tmp_path: Path, size: int) -> None:
    made = bytearray(tarfile.TarInfo("layer.tar").tobuf(tarfile.GNU_FORMAT))
    made[124:136], made[148:156] = (256**12 + size).to_bytes(12, "big"), b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    place = tmp_path / "saved.tar"
    place.write_bytes(tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT) + made + bytes(1024))
    # Newer releases of tarfile refuse the header themselves, and end there in silence.
    told = rf"no plain tar archive: (layer.tar has a size of {size} bytes|the header at byte 512 is damaged)"
    with pytest.raises(RefusedError, match=told):
        in_archive(place)


def test_an_archive_that_goes_on_behind_a_damaged_header_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "saved.tar"
    header = tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT)
    place.write_bytes(header + b"\x01" * 512 + header + bytes(1024))
    with pytest.raises(RefusedError, match="the header at byte 512 is damaged"):
        in_archive(place)


@pytest.mark.parametrize("end", [b"", bytes(512), bytes(10240)])
def test_an_archive_may_end_without_its_two_empty_blocks(tmp_path: Path, end: bytes) -> None:
    place = tmp_path / "saved.tar"
    place.write_bytes(tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT) + end)
    in_archive(place)("first")
