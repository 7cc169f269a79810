"""A squashfs image of some megabytes with bash and Python, out of a box's root: a node unpacks it in a second."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("bash", "dash", "env", "hostname", "id", "mkdir", "rm", "sleep")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}
_LEFT_OUT = ("test", "lib2to3", "idlelib", "pydoc_data", "ensurepip")


def tree(box_root: Path, target: Path) -> Path:
    """The image's root directory."""
    loader = box_root / "lib64/ld-linux-x86-64.so.2"
    libraries = next((box_root / "usr/lib").glob("*-linux-gnu"))
    python = next(path for path in (box_root / "usr/bin").glob("python3.*") if path.name[8:].isdigit())
    for folder in (
        "usr/bin",
        "usr/lib64",
        f"usr/lib/{libraries.name}",
        "etc",
        "proc",
        "sys",
        "dev",
        "tmp",
        "run",
        "var",
    ):
        (target / folder).mkdir(parents=True, exist_ok=True)
    for name, points_to in {**_LINKS, "usr/bin/python3": python.name}.items():
        (target / name).symlink_to(points_to)
    for program in (python, *(box_root / "usr/bin" / name for name in PROGRAMS)):
        shutil.copy(program, target / "usr/bin")
    modules = box_root / "usr/lib" / python.name
    shutil.copytree(modules, target / "usr/lib" / python.name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    shutil.copy(loader, target / "usr/lib64")
    for file in (*(target / "usr/bin").iterdir(), *(target / "usr/lib" / python.name).rglob("*.so")):
        listed = subprocess.run(
            [loader, "--library-path", libraries, "--list", file], stdout=subprocess.PIPE, text=True, check=False
        )
        for library in (Path(word) for word in listed.stdout.split() if word.startswith(str(libraries))):
            shutil.copy(library, target / "usr/lib" / libraries.name)
    (target / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    for name in ("group", "hosts", "hostname", "resolv.conf", "environment"):
        (target / "etc" / name).write_text("")
    return target


def packed(root: Path, image: Path) -> Path:
    """The tree as a squashfs file."""
    subprocess.run(
        ["mksquashfs", root, image, "-all-root", "-comp", "gzip", "-no-progress", "-noappend"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return image


def damaged(image: Path, copy: Path) -> Path:
    """A copy with some bytes changed in the blocks of its files; its tables are whole."""
    content = bytearray(image.read_bytes())
    draw = random.Random(1)
    for _ in range(300):
        content[draw.randrange(4096, len(content) - 200_000)] ^= 0xFF
    copy.write_bytes(content)
    return copy
