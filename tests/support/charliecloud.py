"""Debian's ch-image and ch-run, unpacked into the cache, not installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.packages import unpacked

# ch-run, what both programs load, and what ch-image imports.
_OTHERS = (
    *("charliecloud-runtime", "charliecloud-common", "libsquashfuse0", "libfuse3-3"),
    *("python3-lark", "python3-requests", "python3-urllib3", "python3-idna", "python3-chardet", "python3-certifi"),
)


def tools(directory: Path) -> dict[str, str]:
    """Variables under which ch-image and ch-run are found; ``directory`` gets them, for any user, and their storage."""
    root = directory / "charliecloud"
    shutil.copytree(unpacked("charliecloud-builders", *_OTHERS), root, symlinks=True)
    programs, real = directory / "bin", directory / "real"
    programs.mkdir()
    real.mkdir()
    # ch-image looks for ch-run beside itself, and for its library beside the directory that it is in.
    (directory / "lib").symlink_to(root / "usr/lib")
    (real / "ch-image").write_bytes((root / "usr/bin/ch-image").read_bytes())
    libraries = ":".join(f"{root}/{place}/{os.uname().machine}-linux-gnu" for place in ("usr/lib", "lib"))
    loader = "/lib64/ld-linux-x86-64.so.2"
    runs = f'#!/bin/sh\nexec {loader} --library-path {libraries} {root}/usr/bin/ch-run "$@"\n'
    modules = root / "usr/lib/python3/dist-packages"
    builds = f'#!/bin/sh\nPYTHONPATH={modules} exec /usr/bin/python3 {real}/ch-image "$@"\n'
    for path, text in ((programs / "ch-run", runs), (real / "ch-run", runs), (programs / "ch-image", builds)):
        path.write_text(text)
        path.chmod(0o755)
    return {
        "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
        "CH_IMAGE_STORAGE": str(directory / "storage"),
        "USER": "builder",
    }
