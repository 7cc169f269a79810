"""A base of some megabytes that carries no framework: its ``python3`` answers what the build's programs would.

For what is about engines and builders, not about Horovod: the Dockerfile's steps run on it in a second. With a file
``/slow`` in it, the base takes minutes to answer and to prove.
"""

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.support.layers import tar_of

TOOLS = ("bash", "cat", "chmod", "cp", "dd", "env", "id", "ln", "ls", "mkdir", "mv", "rm", "sleep", "touch", "true")
FACTS = {
    "framework_version": "2.13.0", "python": "3.11.2", "arch": os.uname().machine, "cuda": None, "nccl": None,
    "mpi": {"flavour": "", "version": ""},
}  # fmt: skip
ANSWER = json.dumps({"key": "shipped", "why": "", "fixes": [], "facts": FACTS})
PYTHON = f"""#!/bin/bash
set -e
case "$1 $2" in
*/build.py\\ key) [ ! -e /slow ] || sleep 300; echo '{ANSWER}' ;;
*/build.py\\ wheel) [ -e /opt/runner/fixes/cxx-standard.patch ]; mkdir -p /opt/wheel; echo shipped >/opt/wheel/key ;;
*/install.py*) [ "$(cat /opt/runner/wheel/key)" = shipped ] ;;
*/prove.py*) [ ! -e /slow ] || {{ echo now; sleep 300; }}; echo '{{}}' >/opt/runner/proof.json ;;
*/describe.py*)
    [ -e /opt/recipes/lib/launch.py ] && [ -e /opt/runner/requirements.txt ] && [ ! -e /opt/runner/fixes ]
    echo "{{\\"framework\\": \\"pytorch\\", \\"base\\": \\"$BASE\\", \\"base_digest\\": \\"$BASE_DIGEST\\"}}" \\
        >/opt/runner/image.json ;;
esac
"""
CHANGES = ('ENV LIGHT="a b"', "ENV PATH=/usr/bin:/bin", "WORKDIR /workspace", 'CMD ["/bin/bash"]')


def archive(**more: bytes) -> bytes:
    """The root as a tar archive; ``more``: further files at its top."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        needed = {path for tool in TOOLS for path in _with_libraries(shutil.which(tool) or tool)}
        places = {f"usr/bin/{Path(path).name}" if Path(path).name in TOOLS else path[1:]: path for path in needed}
        directories = {str(parent) for place in places for parent in Path(place).parents}
        directories |= {"tmp", "etc", "opt", "root", "workspace"}
        for directory in sorted(directories - {"."}):
            _add(tar, directory, b"", 0o1777 if directory == "tmp" else 0o755, tarfile.DIRTYPE)
        for place, path in sorted(places.items()):
            tar.add(os.path.realpath(path), place)
        _add(tar, "usr/bin/python3", PYTHON.encode(), 0o755)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n", 0o644)
        _add(tar, "etc/group", b"root:x:0:\n", 0o644)
        for name in ("etc/hosts", "etc/resolv.conf", "etc/localtime", *more):
            _add(tar, name, more.get(name, b""), 0o644)
        for link, target in (("bin", "usr/bin"), ("usr/bin/sh", "bash")):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int, kind: bytes = tarfile.REGTYPE) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size = kind, mode, len(content)
    tar.addfile(entry, io.BytesIO(content))


def _with_libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [program, *(word for word in said.split() if word.startswith("/"))]


def small_root() -> bytes:
    return tar_of(("empty", b"", {}))
