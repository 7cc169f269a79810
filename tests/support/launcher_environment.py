"""The environment of the rows of the launchers' table, on nodes and in containers: kept in the cache, made once.

torch and Horovod are those of an image of ours, unpacked; no second copy is fetched. The Python is Debian 12's, which
the box's nodes and the image have at the same path, so that one directory serves nodes and, mounted, containers.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from runner.core import paths
from runner.core.files import key_of
from runner.core.lock import locked

PROGRAMS = Path(__file__).parents[1] / "recipes" / "launchers"
REQUIREMENTS = PROGRAMS / "requirements.txt"
PYTHON = "python3.11"
_INSTALL = ("--disable-pip-version-check", "--quiet", "install", "--no-deps", "--no-build-isolation")

# Of a shell, which starts the Python beside it: a script's first line cannot name that.
_RELOCATABLE = b"""#!/bin/sh
'''exec' "$(dirname "$(realpath "$0")")/python3" "$0" "$@"
' '''
"""
MOUNTED = "/mnt"  # in containers; a directory of every image, as Charliecloud makes none in a read-only one


def environment(image: Path, *, frameworks: bool) -> Path:
    """Its directory, as a virtual environment.

    Args:
        image: a squashfs whose ``/usr/local`` has torch and Horovod.
        frameworks: whether all of requirements.txt is installed, besides (a minute, 600 MB); else nothing is fetched.
    """
    wanted = REQUIREMENTS.read_text("utf-8") if frameworks else ""
    place = paths.ensure_directory(paths.cache("test-tools")) / f"launchers-{key_of(image.name, wanted)}"
    with locked(Path(f"{place}.lock"), print):
        if not (place / "whole").exists():
            subprocess.run(["rm", "-rf", place], check=True)
            _make(image, place, wanted)
            (place / "whole").touch()
    return place


def _make(image: Path, place: Path, wanted: str) -> None:
    subprocess.run([f"/usr/bin/{PYTHON}", "-m", "venv", "--without-pip", place], check=True)
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", place / "image", image, "usr/local"], check=True)
    packages, of_image = place / f"lib/{PYTHON}/site-packages", place / "image/usr/local"
    (packages / "image.pth").write_text(f"../../../image/usr/local/lib/{PYTHON}/dist-packages\n")
    # distutils, which horovodrun imports, comes with setuptools by this file.
    shutil.copy(of_image / f"lib/{PYTHON}/dist-packages/distutils-precedence.pth", packages / "setuptools.pth")
    if wanted:
        pip = (sys.executable, "-m", "pip", "--python", place / "bin/python3", *_INSTALL)
        subprocess.run([*pip, "-r", REQUIREMENTS], check=True)
        # Not seen by the others: Lightning takes an mpi4py that it can import for a start by MPI.
        subprocess.run([*pip, "--target", place / "mpi4py", "mpi4py==4.1.2"], check=True)
    for script in (*(of_image / "bin").iterdir(), *(place / "bin").iterdir()):
        first, _, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            (place / "bin" / script.name).write_bytes(_RELOCATABLE + rest)
            (place / "bin" / script.name).chmod(0o755)
