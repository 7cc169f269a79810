"""Directories of packages as ``env wheels`` leaves them, made without a network."""

import base64
import hashlib
import io
import platform
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from runner.core import package_directory
from runner.core.files import sha256
from runner.core.package_directory import Manifest, PackageFile
from runner.environments.collect import requirements_of

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def wheel(name: str, version: str = "1.0", content: Mapping[str, bytes] | None = None) -> tuple[str, bytes]:
    """The file name and content of a wheel, which pip installs: of one module, or of these files."""
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        **(content or {f"{name}.py": f"VERSION = {version!r}\n".encode()}),
        f"{name}-{version}.dist-info/METADATA": about.encode(),
        f"{name}-{version}.dist-info/WHEEL": kind.encode(),
    }
    digests = {each: hashlib.sha256(raw).digest() for each, raw in files.items()}
    rows = [
        f"{each},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(files[each])}"
        for each, digest in digests.items()
    ]
    files[f"{name}-{version}.dist-info/RECORD"] = "\n".join(
        [*rows, f"{name}-{version}.dist-info/RECORD,,", ""]
    ).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each, raw in files.items():
            archive.writestr(zipfile.ZipInfo(each), raw)  # without the time, so that the same files are the same wheel
    return f"{name}-{version}-py3-none-any.whl", out.getvalue()


def collected(directory: Path, **changes: Any) -> Manifest:
    """A finished collection for the Python and machine that run the tests: a framework of one module."""
    content = {"framework": [wheel("torchlike"), wheel("numbers_like", "2.1")], "horovod": [wheel("cffi_like")]}
    files = []
    for part, wheels in content.items():
        (directory / part).mkdir(parents=True)
        for name, raw in wheels:
            (directory / part / name).write_bytes(raw)
            files.append(PackageFile(f"{part}/{name}", sha256(raw), len(raw)))
    text = requirements_of([file for file in files if file.name.startswith("framework/")]).encode()
    (directory / package_directory.REQUIREMENTS).write_bytes(text)
    files.append(PackageFile(package_directory.REQUIREMENTS, sha256(text), len(text)))
    manifest = Manifest(
        framework="pytorch",
        device="cpu",
        framework_version="1.0",
        requirements=("torchlike==1.0",),
        pythons=(HERE,),
        machine=platform.machine(),
        glibc="2.17",
        made="2026-11-22T00:00:00+00:00",
        horovod="0.28.1",
        files=tuple(files),
    )
    manifest = msgspec.structs.replace(manifest, **changes)
    (directory / package_directory.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return manifest
