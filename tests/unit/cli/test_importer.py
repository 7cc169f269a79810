"""The program of docs/security.md, called as Pyxis's importer.c calls an importer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.files import sha256 as sha256_of
from runner.images.store import store
from runner.images.store.stored_image import StoredImage
from tests.support.documents import result
from tests.support.squashfs import SUPERBLOCK

ROOT = Path(__file__).parents[3]
# Whatever a job sets must not reach the importer.
JOB = {"PATH": "/usr/bin:/bin", "RUNNER_STORE": "/nowhere", "PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}
JOB |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "PYXIS_VERSION": "0.24.0", "PYXIS_RUNTIME_PATH": "/run/pyxis"}


class Importer:
    """The documented program with the paths of this test in it."""

    def __init__(self, directory: Path) -> None:
        self.store = directory / "images"
        self.store.mkdir()
        self.path = directory / "importer"
        # In an environment of its own the package is installed; here it is a checkout.
        package = directory / "package.py"
        package.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom runner.cli import main\nmain()\n")
        code = re.search(r"```sh\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL)
        assert code
        text = code[1].replace("/shared/images", str(self.store))
        text = text.replace("/opt/gpu-runner/VERSION/python/bin/python -I -m runner", f"{sys.executable} -I {package}")
        text = text.replace("/opt/gpu-runner/simple_importer.sh", str(self.otherwise(directory)))
        assert "/opt/" not in text
        self.path.write_text(text)
        self.path.chmod(0o755)

    @staticmethod
    def otherwise(directory: Path) -> Path:
        path = directory / "simple_importer.sh"
        path.write_text('#!/bin/sh\necho "other importer: $*" >&2\n[ "$1" = release ] || echo "/other/$2.sqsh"\n')
        path.chmod(0o755)
        return path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """As importer_exec does: by its path, no standard input, one pipe for the path and a file for the log."""
        return subprocess.run(
            [self.path, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=JOB, cwd="/"
        )


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    return Importer(tmp_path)


@pytest.fixture
def image(importer: Importer) -> StoredImage:
    made = importer.store / ".made"
    made.write_bytes(SUPERBLOCK)
    path = importer.store / "x.sqsh"
    reference, sha256 = "nvcr.io/nvidia/pytorch:25.02-py3", sha256_of(made)
    return store.publish(made, StoredImage(path=path, reference=reference, key="k", size_bytes=96, sha256=sha256))


def test_an_image_of_the_store_is_one_line_with_its_path_and_another_goes_to_the_other_importer(
    importer: Importer, image: StoredImage
) -> None:
    for name in ("nvcr.io#nvidia/pytorch:25.02-py3", "user@nvcr.io#nvidia/pytorch:25.02-py3", image.reference):
        done = importer("get", f"docker://{name}")
        assert (done.returncode, done.stdout) == (0, f"{image.path}\n"), done.stderr
    for uri in ("docker://ubuntu", "docker://Not#A:reference", "dockerd://a:b"):
        done = importer("get", uri)
        assert (done.returncode, done.stdout) == (0, f"/other/{uri}.sqsh\n"), done.stderr
    os.truncate(image.path, 50)
    done = importer("get", f"docker://{image.reference}")
    assert done.stdout == f"/other/docker://{image.reference}.sqsh\n", "a damaged image is not served"
    assert "50 bytes" in done.stderr


def test_without_another_importer_the_user_learns_what_to_do(importer: Importer, image: StoredImage) -> None:
    text = importer.path.read_text()
    importer.path.write_text(re.sub(r"--otherwise \S+", "", text))
    done = importer("get", "docker://ubuntu")
    assert (done.returncode, done.stdout) == (3, "")
    assert "runner convert --store" in done.stderr
    assert importer("release").returncode == 0


def test_as_json_it_names_the_path_and_who_serves_it(importer: Importer, image: StoredImage) -> None:
    stored = result(importer("get", f"docker://{image.reference}", "--json").stdout)
    assert stored == {"path": str(image.path), "by": ""}
    other = importer("get", "docker://ubuntu", "--json")
    by = str(importer.path.parent / "simple_importer.sh")
    assert result(other.stdout) == {"path": "/other/docker://ubuntu.sqsh", "by": by}
    assert "other importer: get docker://ubuntu" in other.stderr
    assert result(importer("release", "--json").stdout) == {"by": by}


def test_release_may_come_twice_and_at_any_time(importer: Importer, image: StoredImage) -> None:
    for _ in range(2):
        done = importer("release")
        assert (done.returncode, done.stdout) == (0, "") and "other importer: release" in done.stderr
    assert image.path.exists()


def test_the_documented_program_is_a_clean_shell_script(importer: Importer) -> None:
    assert subprocess.run(["shellcheck", importer.path], check=False).returncode == 0
