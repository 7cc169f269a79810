"""What is in a wheel that was built: the record of its GPU code that it carries, and where its libraries look.

The record travels in the wheel, as ``gpu-runner.json`` of its metadata, so that a kept wheel says it, too.
Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import zipfile
from importlib import metadata
from pathlib import Path

RECORD_NAME = "gpu-runner.json"
_STRTAB, _NEEDED, _RPATH, _RUNPATH = 5, 1, 15, 29  # tags of a dynamic section (elf(5))
_LOAD, _DYNAMIC = 1, 2  # types of segments


def add_record(wheel: Path, record: dict[str, object]) -> None:
    """Put the record into a wheel, which is written anew with its list of files (RECORD) extended."""
    content = json.dumps(record, sort_keys=True).encode() + b"\n"
    part = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    with zipfile.ZipFile(str(wheel)) as old, zipfile.ZipFile(str(part), "w", zipfile.ZIP_DEFLATED) as new:
        listing = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        name = listing.rpartition("/")[0] + "/" + RECORD_NAME
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == listing:
                data = f"{name},sha256={digest},{len(content)}\n".encode() + data
            new.writestr(entry, data)
        new.writestr(name, content)
    part.replace(wheel)


def installed_record() -> dict[str, object]:
    """The record of the installed Horovod; empty where it has none: a build without CUDA, or one of others.

    A base's own Horovod may bring any file of this name: what is not of our form is none.
    """
    try:
        text = metadata.distribution("horovod").read_text(RECORD_NAME)
        record = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) and is_record(record) else {}


def is_record(record: dict[str, object]) -> bool:
    """Whether a record has the fields that ``build.py`` writes, and no other."""
    numbers = record.get("cuda_architectures")
    texts = [record.get("nvcc"), record.get("nccl")]
    return (
        set(record) == {"cuda_architectures", "ptx", "nvcc", "nccl"}
        and isinstance(numbers, list)
        and all(type(number) is int for number in [*numbers, record["ptx"]])
        and all(isinstance(text, str) for text in texts)
    )


def dynamic_section(library: bytes) -> dict[str, list[str]]:
    """``needed`` (libraries) and ``runpath`` (directories, in the loader's order) of a 64-bit little-endian library.

    Raises:
        ValueError: it is no such file.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit library of this kind of machine")
    try:
        (start,) = struct.unpack_from("<Q", library, 32)
        size, count = struct.unpack_from("<HH", library, 54)
        segments = [struct.unpack_from("<IIQQQQ", library, start + size * index) for index in range(count)]
        section: dict[str, list[str]] = {"needed": [], "runpath": []}
        for _, _, offset, _, _, length in (segment for segment in segments if segment[0] == _DYNAMIC):
            entries = [struct.unpack_from("<QQ", library, offset + 16 * index) for index in range(length // 16)]
            table = next(value for tag, value in entries if tag == _STRTAB)
            strings = next(at + table - address for kind, _, at, address, _, held in segments
                           if kind == _LOAD and address <= table < address + held)  # fmt: skip
            for tag, value in entries:
                if tag in (_NEEDED, _RPATH, _RUNPATH):
                    text = library[strings + value : library.index(b"\0", strings + value)].decode()
                    section["needed" if tag == _NEEDED else "runpath"] += [text] if tag == _NEEDED else text.split(":")
    except (struct.error, StopIteration) as error:
        raise ValueError("a damaged library") from error
    return section


def lost_directories(wheel: Path, work: list[str]) -> list[str]:
    """``library: directory`` for each place in a wheel's libraries that lies in a work directory of the build.

    Args:
        work: directories that are gone, or will be, once Horovod is built.
    """
    gone = [os.path.realpath(each) for each in work]
    lost = []
    with zipfile.ZipFile(str(wheel)) as archive:
        for name in archive.namelist():
            for place in dynamic_section(archive.read(name))["runpath"] if name.endswith(".so") else ():
                real = os.path.realpath(place)
                if place.startswith("/") and any(real == each or real.startswith(each + "/") for each in gone):
                    lost.append(f"{name}: {place}")
    return lost


def without_nccl(wheel: Path) -> list[str]:
    """Horovod's libraries in a wheel that do not ask the loader for NCCL; what cannot be read asks for nothing."""
    lacking = []
    with zipfile.ZipFile(str(wheel)) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"horovod/\w+/mpi_lib[^/]*\.so", name)]
        for name in names:
            try:
                needed = dynamic_section(archive.read(name))["needed"]
            except ValueError:
                needed = []
            if not any(each.startswith("libnccl.so") for each in needed):
                lacking.append(name)
    return lacking if names else ["no library at all"]
