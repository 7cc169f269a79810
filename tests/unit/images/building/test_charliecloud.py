"""A base in Charliecloud's storage, which may be anybody's, on a machine that it must not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.images.building.without_engine import charliecloud

NOTE = "ch/gpu-runner-digest"


def test_the_digest_of_a_base_is_kept_in_it(tmp_path: Path) -> None:
    (tmp_path / "ch").mkdir()
    assert charliecloud.noted(tmp_path) == ""
    charliecloud.note(tmp_path, "sha256:1")
    assert charliecloud.noted(tmp_path) == "sha256:1"
    (tmp_path / NOTE).write_text("sha256:2 1\n")  # as an image could bring it, under the digest of another
    assert charliecloud.noted(tmp_path) == ""


@pytest.mark.parametrize("linked", [NOTE, "ch"])
def test_a_link_in_a_base_lets_no_file_of_this_machine_be_written_or_read(tmp_path: Path, linked: str) -> None:
    root, host = tmp_path / "root", tmp_path / "host"
    for place in (root, host):
        (place / "ch").mkdir(parents=True)
    (host / NOTE).write_text("mine")
    if linked == "ch":
        (root / "ch").rmdir()
    (root / linked).symlink_to(host / linked)
    assert charliecloud.noted(root) == ""
    charliecloud.note(root, "sha256:1")
    assert (host / NOTE).read_text() == "mine"
    assert charliecloud.noted(root) == ("" if linked == "ch" else "sha256:1")
