"""One image, many spellings."""

from __future__ import annotations

import pytest

from runner.core.errors import UsageError
from runner.images.reference import is_path, names_registry, parse

DIGEST = "sha256:" + "a1" * 32


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("ubuntu", "ubuntu:latest"),
        ("nvcr.io/nvidia/pytorch:25.02-py3", "nvcr.io/nvidia/pytorch:25.02-py3"),
        ("docker://nvcr.io#nvidia/pytorch:25.02-py3", "nvcr.io/nvidia/pytorch:25.02-py3"),
        ("docker://$oauthtoken@nvcr.io#nvidia/pytorch:25.02-py3", "nvcr.io/nvidia/pytorch:25.02-py3"),
        ("localhost:5000/a/b:1", "localhost:5000/a/b:1"),
        ("docker://[fd00::1]:5000#a/b:1", "[fd00::1]:5000/a/b:1"),
        ("[::1]/a/b:1", "[::1]/a/b:1"),
        ("dockerd://gpu-runner/x:standin", "gpu-runner/x:standin"),
        ("docker.io/library/debian:12", "debian:12"),
        ("localhost/gpu-runner/x:1", "gpu-runner/x:1"),
        (f"a/b@{DIGEST}", f"a/b@{DIGEST}"),
        (f"a/b:1@{DIGEST}", f"a/b:1@{DIGEST}"),
    ],
)
def test_spellings(text: str, engine: str) -> None:
    assert str(parse(text)) == engine
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        DIGEST,
        f"docker.io/library/{DIGEST}",
        "",
        "A/b",
        "a b",
        "a:",
        "a//b",
        "a/b:x y",
        "a@sha256:12",
        "a;rm -rf",
        "nv cr.io#a",
        "$x",
        "[::1/a/b:1",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an image reference"):
        parse(text)


def test_files_are_not_images() -> None:
    assert all(map(is_path, ["/a/b.sqsh", "./x", "../x", "~/x", "x.sqsh", "x.sif"]))
    assert not any(map(is_path, ["x", "a/b:1", "nvcr.io/a"]))


def test_whether_a_name_says_its_registry() -> None:
    named = ("docker.io/library/debian:12", "docker://docker.io#library/debian:12", "nvcr.io/nvidia/pytorch:1",
             "docker://me@nvcr.io#nvidia/pytorch:1", "localhost:5000/x")  # fmt: skip
    plain = ("debian:12", "docker://debian", "gpu-runner/x:1", "localhost/gpu-runner/x:1", "sha256:" + "1" * 64)
    assert [text for text in (*named, *plain) if names_registry(text)] == [*named]
