"""A stand-in for an installer of Miniforge or Miniconda, and for a channel: what of their behaviour is relied upon.

An installer takes ``-b -p DIRECTORY``, refuses a directory that is there, and leaves ``bin/conda`` and
``etc/profile.d/conda.sh``. ``conda create`` takes Python from a channel and makes ``bin/python3`` of the environment.
"""

import json
import sys
from pathlib import Path

_INSTALLER = """\
#!/bin/bash
set -eu
[ "$1 $2" = "-b -p" ] || { echo "usage: -b -p DIRECTORY" >&2; exit 2; }
[ ! -e "$3" ] || { echo "ERROR: File or directory already exists: '$3'" >&2; exit 1; }
echo "installing into $3" >>"$0.log"
mkdir -p "$3/bin" "$3/etc/profile.d"
[ ! -e "$0.interrupt" ] || exit 1
cat >"$3/bin/conda" <<'CONDA'
@CONDA@
CONDA
chmod +x "$3/bin/conda"
cat >"$3/etc/profile.d/conda.sh" <<SOURCE
conda() {
    if [ "\\$1" = activate ]; then export PATH="\\$2/bin:\\$PATH" CONDA_PREFIX="\\$2"; else "$3/bin/conda" "\\$@"; fi
}
SOURCE
"""
_CONDA = """\
#!@PYTHON@
import json, pathlib, sys, urllib.parse, venv
words = sys.argv[1:]
assert words[:3] == ["create", "--yes", "--quiet"], words
channels = [word.partition("=")[2] for word in words if word.startswith("--channel=")]
assert channels and "--override-channels" in words, "the default channels are not here"
prefix = pathlib.Path(words[words.index("--prefix") + 1])
index = pathlib.Path(urllib.parse.urlparse(channels[0]).path) / "noarch/repodata.json"
offered = {package["name"] for package in json.loads(index.read_text())["packages"].values()}
wanted = words[-1].partition("=")[0]
if wanted not in offered:
    sys.exit("PackagesNotFoundError: The following packages are not available from current channels: " + wanted)
if "@INSTEAD@":
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python3").symlink_to("@INSTEAD@")
else:
    venv.create(prefix, with_pip=True)
"""


def installer(directory: Path, python: Path | None = None) -> Path:
    """The installer's file; it says in ``FILE.log`` where it installs, and stops half-way if ``FILE.interrupt`` is.

    Args:
        python: what environments get for their Python; None for a real one, with pip.
    """
    conda = _CONDA.replace("@PYTHON@", sys.executable).replace("@INSTEAD@", str(python or ""))
    path = directory / "Miniforge3-Linux-x86_64.sh"
    path.write_text(_INSTALLER.replace("@CONDA@", conda.rstrip()))
    return path


def channel(directory: Path, *packages: str) -> str:
    """The address of a channel that offers these packages."""
    (directory / "channel/noarch").mkdir(parents=True)
    index = {"packages": {f"{name}-3.11-0.tar.bz2": {"name": name, "version": "3.11"} for name in packages}}
    (directory / "channel/noarch/repodata.json").write_text(json.dumps(index))
    return (directory / "channel").as_uri()
