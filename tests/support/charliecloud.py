"""Debian's ch-run, unpacked into the cache, not installed."""

import os
import shutil
from pathlib import Path

from tests.support.packages import unpacked

_OTHERS = ("charliecloud-common", "libsquashfuse0", "libfuse3-3")  # what it loads


def tools(directory: Path) -> dict[str, str]:
    """Variables under which ch-run is found; ``directory`` gets it, for any user."""
    root, programs = directory / "charliecloud", directory / "bin"
    shutil.copytree(unpacked("charliecloud-runtime", *_OTHERS), root, symlinks=True)
    programs.mkdir()
    libraries = ":".join(f"{root}/{place}/{os.uname().machine}-linux-gnu" for place in ("usr/lib", "lib"))
    loader = "/lib64/ld-linux-x86-64.so.2"
    (programs / "ch-run").write_text(
        f'#!/bin/sh\nexec {loader} --library-path {libraries} {root}/usr/bin/ch-run "$@"\n'
    )
    (programs / "ch-run").chmod(0o755)
    return {"PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin", "USER": "builder"}
