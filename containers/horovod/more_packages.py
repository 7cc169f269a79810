"""Install further packages on top of a finished image, import them, and write down what was installed:
``more_packages.py --requirements FILE --describe FILE``.

Nothing that the image has is changed: its packages, and its base's own constraint file, are constraints of pip.
Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Iterable

from install import allow_system_packages, pip_words, plain

# What some distributions put beside their package by mistake.
_NO_MODULES = {"doc", "docs", "example", "examples", "test", "tests"}


def constraints(distributions: Iterable[tuple[str, str]]) -> str:
    """A line for each distribution (name, version) that pip can compare; those it cannot are left out.

    Of several with one name the first counts, which is the one that Python imports: a base may have its own beside that
    of its Linux distribution, and pip could satisfy no two versions at once.
    """
    lines: dict[str, str] = {}
    for name, version in distributions:
        comparable = re.fullmatch(r"[0-9][A-Za-z0-9.!+]*", version)
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and comparable:
            lines.setdefault(plain(name), f"{name}=={version}")
    return "".join(f"{line}\n" for line in sorted(lines.values()))


def installed(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Name, version, SHA-256 and whether it was asked for, of each package in pip's installation report."""
    packages = []
    for item in report["install"]:
        archive = item.get("download_info", {}).get("archive_info", {})
        # pip before 23.1 has ``hash`` alone: sha256=...
        kind, _, value = str(archive.get("hash") or "").partition("=")
        sha256 = archive.get("hashes", {}).get("sha256") or (value if kind == "sha256" else "")
        about = item["metadata"]
        packages.append({"name": about["name"], "version": about["version"], "sha256": sha256,
                         "requested": bool(item.get("requested"))})  # fmt: skip
    return sorted(packages, key=lambda each: plain(each["name"]))


def modules(files: Iterable[str], top_level: str) -> list[str]:
    """What a distribution lets be imported, by its own list (``top_level.txt``) or by its files."""
    names = set(top_level.split())
    if not names:
        for path in map(PurePosixPath, files):
            if len(path.parts) == 2 and path.name == "__init__.py":
                names.add(path.parts[0])
            elif len(path.parts) == 1 and path.suffix in (".py", ".so"):
                names.add(path.name.split(".")[0])
    return sorted(name for name in names if name.isidentifier() and name not in _NO_MODULES and name[0] != "_")


def install(requirements: Path) -> list[dict[str, Any]]:
    """Let pip install them; what it installed.

    Raises:
        SystemExit: pip is too old, or it refused; its output stands before.
    """
    version = metadata.version("pip")
    if tuple(map(int, version.split(".")[:2])) < (22, 2):
        raise SystemExit(f"pip {version} of this base cannot report what it installs: that needs pip 22.2 or later")
    with tempfile.TemporaryDirectory() as scratch:
        held, report = Path(scratch, "constraints.txt"), Path(scratch, "report.json")
        held.write_text(constraints((each.metadata["Name"] or "", each.version) for each in metadata.distributions()))
        own = os.environ.get("PIP_CONSTRAINT", "").split()
        environment = {**os.environ, "PIP_CONSTRAINT": " ".join([*own, str(held)])}
        words = pip_words("install", "--no-cache-dir", "--report", str(report), "-r", str(requirements))
        print("+ " + " ".join(words), flush=True)
        if subprocess.call(words, env=environment) != 0:
            raise SystemExit("pip could not install these packages beside what the image has, which is kept as it is")
        return installed(json.loads(report.read_text()))


def ensure_imports(names: Iterable[str]) -> None:
    """Import each module of these distributions, in a process of its own.

    Raises:
        SystemExit: one cannot be imported; its output stands before.
    """
    for name in names:
        distribution = metadata.distribution(name)
        files = [str(path) for path in distribution.files or ()]
        for module in modules(files, distribution.read_text("top_level.txt") or ""):
            print(f"+ import {module}", flush=True)
            if subprocess.call([sys.executable, "-c", f"import {module}"], cwd="/") != 0:
                raise SystemExit(f"{name} was installed, and its module {module} cannot be imported")


def main() -> None:
    parser = argparse.ArgumentParser(description="Install further packages on top of a finished image.")
    parser.add_argument("--requirements", type=Path, required=True, help="NAME==VERSION, one a line")
    parser.add_argument("--describe", type=Path, required=True, help="the image's description, which gets them (JSON)")
    asked = parser.parse_args()
    allow_system_packages("image")
    packages = install(asked.requirements)
    ensure_imports(each["name"] for each in packages if each["requested"])
    about = json.loads(asked.describe.read_text())
    about["packages"] = packages
    asked.describe.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    print("\n".join(f"{each['name']} {each['version']} sha256:{each['sha256']}" for each in packages), flush=True)


if __name__ == "__main__":
    main()
