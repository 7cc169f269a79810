"""What registries and archives say of images: read strictly, whichever family it is of."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.images.sources import manifests
from runner.images.sources.archives import in_archive
from runner.images.sources.manifests import Descriptor, Index, Manifest, Platform
from tests.support.layers import header as header_block

A, B = ("sha256:" + letter * 64 for letter in "ab")
FOREIGN = "sha512:" + "c" * 128
AMD64 = Platform("linux", "amd64")
UNKNOWN, ARM64 = (Descriptor(A, platform=Platform(*names)) for names in (("unknown",) * 2, ("linux", "arm64")))


def encoded(**document: object) -> bytes:
    return json.dumps(document).encode()


def test_manifest_and_index_are_distinguished_by_what_they_hold() -> None:
    raw = encoded(schemaVersion=2, config={"digest": A, "size": 1}, layers=[{"digest": B, "size": 5, "new": {}}])
    assert manifests.parse(raw, "x") == Manifest(Descriptor(A, 1), (Descriptor(B, 5),))
    index = encoded(schemaVersion=2, mediaType="application/json", manifests=[{"digest": A}])
    assert manifests.parse(index, "x") == Index((Descriptor(A),))
    with pytest.raises(RefusedError, match="schema 1"):
        manifests.parse(encoded(schemaVersion=1, fsLayers=[]), "x")


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"x":' * 100_000, b'{"x":' + b"[" * 100_000, encoded(schemaVersion=2),
        encoded(config={"digest": A}), encoded(manifests=[{"digest": "sha256:../../etc/passwd"}]),
        encoded(manifests=[{"digest": A + "0"}]), encoded(manifests=[{"digest": A.replace("sha256", "sha512")}]),
        encoded(manifests=[{"digest": A, "size": -1}]), encoded(config={"digest": A}, layers={"digest": A}),
    ],
)  # fmt: skip
def test_what_is_neither_is_refused_as_such(raw: bytes) -> None:
    with pytest.raises(InfrastructureError, match=r"not a valid image document|not an image manifest") as caught:
        manifests.parse(raw, "host/name:1")
    assert caught.value.where == "host/name:1"


def test_a_configuration_must_be_that_of_the_layers() -> None:
    raw = encoded(architecture="arm64", os="linux", config={"Env": ["A=1"], "Volumes": {"/v": {}}, "Cmd": None},
                  rootfs={"type": "layers", "diff_ids": [A]})  # fmt: skip
    read = manifests.configuration(raw, 1, Platform("linux", "arm64"), "x")
    assert (str(read.platform), read.rootfs.diff_ids) == ("linux/arm64", (A,))
    assert read.config is not None
    assert (read.config.env, read.config.cmd) == (("A=1",), None)
    for layers, document in ((2, raw), (1, b"{}"), (0, b"{}"), (1, encoded(rootfs={"diff_ids": ["md5:1"]}))):
        with pytest.raises(RefusedError, match="no container image"):
            manifests.configuration(document, layers, AMD64, "x")
    with pytest.raises(InfrastructureError, match="not a valid image document"):
        manifests.configuration(b'{"x":' * 100_000, 1, AMD64, "x")


@pytest.mark.parametrize(
    ("env", "taken"),
    [
        ((f"A={'x' * 131_069}", "B=1"), True),
        ((f"A={'ü' * 65_535}",), False),
        (("A=" + "x" * 100_000,) * 11, False),
        (tuple(f"A{number}=1" for number in range(100_000)), False),
    ],
)
def test_no_image_brings_more_variables_than_a_program_starts_with(env: tuple[str, ...], taken: bool) -> None:
    if taken:
        assert len(manifests.StartUp(env).of_container("x").environment) == len(env)
        subprocess.run(("true",), env=dict(line.split("=") for line in env), check=True)
        return
    with pytest.raises(RefusedError, match=f"the image has {len(env)} variables of [0-9]+ bytes") as caught:
        manifests.StartUp(env).of_container("x")
    assert caught.value.where == "x" and "(ENV)" in caught.value.fix


def test_platforms_are_written_as_go_does() -> None:
    assert str(manifests.platform("linux/arm/v7")) == "linux/arm/v7"
    assert manifests.platform(None).os == "linux"
    for wrong in ("amd64", "linux/", "linux/amd64/v1/x", "Linux/amd64", ""):
        with pytest.raises(UsageError, match="not a platform"):
            manifests.platform(wrong)
    with pytest.raises(UsageError, match="images for windows cannot be converted") as caught:
        manifests.platform("windows/amd64")
    assert caught.value.fix == "--platform linux/amd64"


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


def index(*platforms: str, digests: Sequence[str] = (A, B), **more: object) -> Index:
    """An index with an entry for each of them; a platform may be empty."""
    entries = []
    for digest, text in zip(digests, platforms, strict=False):
        names = dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))
        entries.append({"digest": digest, "size": 1, **({"platform": names} if text else {}), **more})
    parsed = manifests.parse(encoded(manifests=entries), "x")
    assert isinstance(parsed, Index)
    return parsed


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        ("linux/amd64/v3 linux/amd64", "linux/amd64", "linux/amd64"),
        ("linux/amd64/v3 linux/amd64/v2 linux/amd64", "linux/amd64/v3", "linux/amd64/v3"),
        ("linux/amd64/v4 linux/amd64/v2 linux/amd64", "linux/amd64/v3", "linux/amd64/v2"),
        ("linux/arm/v5 linux/arm/v6 linux/arm/v7", "linux/arm", "linux/arm/v7"),
        (" linux/amd64", "linux/amd64", "linux/amd64"),
        ("windows/amd64 linux/amd64", "linux/amd64", "linux/amd64"),
        ("unknown/unknown linux/arm64/v8", "linux/arm64", "linux/arm64/v8"),
        ("", "linux/amd64", ""),
    ],
)
def test_the_best_variant_is_taken_wherever_it_stands(there: str, wanted: str, chosen: str) -> None:
    digests = {text: f"sha256:{number:064x}" for number, text in enumerate(there.split(" "))}
    for order in ([*digests], [*digests][::-1]):
        made = index(*order, digests=[digests[text] for text in order])
        assert manifests.choose(made, manifests.platform(wanted), "x").digest == digests[chosen]


@pytest.mark.parametrize(
    ("offered", "says", "fix"),
    [
        (index("linux/amd64/v3"), "not made for linux/amd64, only for linux/amd64/v3", "--platform linux/amd64/v3"),
        (Index((UNKNOWN, ARM64)), "only for linux/arm64\n", "--platform linux/arm64"),
        (index("windows/amd64", "unknown/unknown"), "an image for Windows", "the image's Linux tag"),
        (Index(()), "only for platforms that it does not name", "name another image"),
        (index("linux/amd64", digests=[FOREIGN]), "only sha256 can be checked", "sha256 digests"),
        (index("", digests=[FOREIGN]), "only sha256 can be checked", "sha256 digests"),
    ],
)
def test_what_does_not_suit_is_refused_with_what_would(offered: Index, says: str, fix: str) -> None:
    with pytest.raises(RefusedError, match=says) as caught:
        manifests.choose(offered, AMD64, "x")
    assert fix in caught.value.fix


def test_sha512_beside_sha256_is_passed_over_and_otherwise_refused() -> None:
    both = index("linux/amd64", "linux/amd64", digests=[FOREIGN, B])
    assert manifests.choose(both, AMD64, "x").digest == B
    with pytest.raises(RefusedError, match="digests are of sha512; only sha256 can be checked"):
        manifests.parse(encoded(config={"digest": A}, layers=[{"digest": FOREIGN, "size": 3}]), "x")


@pytest.mark.parametrize("platform", ["", "unknown/unknown", "linux/amd64"])
def test_attestations_are_no_images_whatever_their_platform(platform: str) -> None:
    """As BuildKit writes them: unknown/unknown with an annotation; some tools leave the platform out."""
    note = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": B}
    assert index(platform, annotations=note) == Index(())
    assert index("linux/amd64", annotations={"other": "1"}).manifests != ()


def header(name: str = "first", size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    raw_size = (size % 256**12 or 128 << 88).to_bytes(12, "big")
    return header_block(kind, name=name.encode(), raw_size=raw_size)


DAMAGED = "the header at byte 512 is damaged"


@pytest.mark.parametrize(
    ("second", "says"),
    [
        # A size below 0 would lead back for ever. Newer releases of tarfile refuse it themselves, and end there.
        (header("layer.tar", -512), f"layer.tar has a size of -512 bytes|{DAMAGED}"),
        (header("layer.tar", -1024), f"layer.tar has a size of -1024 bytes|{DAMAGED}"),
        (header("layer.tar", -1), f"layer.tar has a size of -1 bytes|{DAMAGED}"),
        (b"\x01" * 512 + header(), DAMAGED),
        *(
            (header(size=(128 << 88) + (40 << 30), kind=kind), "a header of more than 1048576 bytes")
            for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)
        ),
        (
            (header(size=(128 << 88) + 4, kind=tarfile.GNUTYPE_LONGNAME) + b"name".ljust(512, b"\0")) * 1500,
            "maximum recur",
        ),
        (
            header(size=(128 << 88) + 44, kind=tarfile.XHDTYPE)
            + b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(512, b"\0")
            + header()
            + b"?" * 512,
            "not enough values",
        ),
    ],
)
def test_an_archive_with_a_damaged_header_is_refused(tmp_path: Path, second: bytes, says: str) -> None:
    (tmp_path / "saved.tar").write_bytes(header() + second + bytes(1024))
    with pytest.raises(RefusedError, match=rf"no plain tar archive: ({says})"):
        in_archive(tmp_path / "saved.tar")


@pytest.mark.parametrize("end", [b"", bytes(512), bytes(10240)])
def test_an_archive_may_end_without_its_two_empty_blocks(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "saved.tar").write_bytes(header() + end)
    in_archive(tmp_path / "saved.tar")("first")
