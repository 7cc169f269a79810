"""What this image or environment is, written down once it is proven:
``describe.py --framework F --proof FILE --write FILE``.

The environment holds what only the builder knows: BASE, BASE_DIGEST, SOURCE (a commit). Read by
``runner/model/image.py``. Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fixes
import wheel_record
from frameworks import FRAMEWORKS, Framework, says

HERE = Path(__file__).resolve().parent
SCHEMA = 2
# The least driver that runs programs of a CUDA line at all, "minor version compatibility" (NVIDIA, CUDA release
# notes, table of minimum driver versions, read 2026-11). A compat package in the image may reach further back.
DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
_COMPAT = "/usr/local/cuda/compat"


def pmi_of_openmpi(said: str) -> list[str]:
    """Process managers that an Open MPI can be started by directly, out of ``ompi_info --parsable``."""
    names = re.findall(r"(?m)^mca:pmix:(\w+):", said)
    managers = {{"s1": "pmi1", "s2": "pmi2"}.get(name, "pmix" if name.startswith(("pmix", "ext")) else "")
                for name in names}  # fmt: skip
    if re.search(r"(?m)^(ident|ompi:version:full):v?5\.", said):
        managers.add("pmix")  # from 5.0 on it knows nothing else
    return sorted(managers - {""})


def pmi(flavour: str) -> list[str]:
    """``pmi1``, ``pmi2``, ``pmix``: what the image's MPI takes from ``srun --mpi``."""
    if flavour == "openmpi":
        return pmi_of_openmpi(says(["ompi_info", "--parsable"]))
    if flavour == "mpich":
        asked = re.search(r"--with-pmi=(\w+)", says(["mpichversion"]))
        return [asked.group(1) if asked and asked.group(1) in ("pmi2", "pmix") else "pmi1"]
    return []


def libraries(framework: Framework) -> list[Path]:
    """Horovod's own libraries for this framework."""
    spec = find_spec("horovod")
    assert spec is not None and spec.origin is not None
    return sorted(Path(spec.origin).parent.joinpath(framework.horovod_module.split(".")[1]).glob("mpi_lib*.so"))


def mpi_abi(library: bytes) -> str:
    """``libmpi.so.40`` (Open MPI) or ``libmpi.so.12`` (the MPICH ABI): what Horovod's library asks the loader for."""
    match = re.search(rb"\0(libmpi(?:cxx)?\.so\.\d+)\0", library)
    return match.group(1).decode() if match else ""


def compat_driver(directory: str = _COMPAT) -> str:
    """Version of the driver whose user half the image carries for older hosts; empty where it carries none."""
    names = (path.name for path in Path(directory).rglob("libcuda.so.*")) if Path(directory).is_dir() else ()
    versions = [name[len("libcuda.so.") :] for name in names]
    return max((version for version in versions if version.count(".")), default="")


def describe(framework: Framework, proof: dict[str, Any], key: str) -> dict[str, object]:
    """Everything that is known of the image; the keys are those of runner/model/image.py.

    Args:
        proof: what prove.py wrote. key: of Horovod's wheel, or ``shipped``.
    """
    facts, abilities = proof["facts"], proof["abilities"]
    mpi = facts["mpi"]
    cuda = str(facts["cuda"] or "")
    return {
        "schema": SCHEMA,
        "framework": framework.name,
        "framework_version": facts["framework_version"],
        "keras": proof["keras"],
        "python": facts["python"],
        "arch": platform.machine(),
        "libc": facts["libc"],
        "cuda": cuda,
        "cuda_archs": proof["archs"],
        "driver_min": DRIVERS.get(cuda.partition(".")[0], ""),
        "driver_compat": compat_driver() if cuda else "",
        "nccl": facts["nccl"] or "",
        "mpi": dict(mpi, pmi=pmi(mpi["flavour"]), abi=mpi_abi(b"".join(map(Path.read_bytes, libraries(framework))))),
        "horovod": {
            **wheel_record.installed_record(),
            "version": metadata.version("horovod"),
            "wheel_key": key,
            "fixes": [] if key == "shipped" else fixes.needed(facts),
            # Not what --check-build says: it marks a framework that is not there, too.
            "frameworks": [each.name for each in FRAMEWORKS.values() if libraries(each)],
            "controllers": abilities["controllers"],
            "operations": abilities["operations"],
            "nccl": proof["nccl"],
            "proven": proof["proven"],
        },
        "base": os.environ.get("BASE", ""),
        "base_digest": os.environ.get("BASE_DIGEST", ""),
        "source": os.environ.get("SOURCE", ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write down what this image is.")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--proof", type=Path, required=True, help="what prove.py wrote")
    parser.add_argument("--write", type=Path, required=True, help="where to write what the image is (JSON)")
    parser.add_argument("--wheel", type=Path, default=HERE / "wheel", help="where build.py has left the wheel's key")
    asked = parser.parse_args()
    key = (asked.wheel / "key").read_text().strip()
    about = describe(FRAMEWORKS[asked.framework], json.loads(asked.proof.read_text()), key)
    asked.write.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    print(asked.write.read_text(), flush=True)


if __name__ == "__main__":
    main()
