"""Stubs of CUDA's libraries, for a machine without a GPU: the names, versions and symbols that a framework's own
libraries ask the loader for, and no code. With them the framework can be imported, and computes on the CPU.

    stubs.py DIRECTORY LIBRARY...      makes DIRECTORY/libcublas.so.13 and its like, for what the LIBRARIES need

The real ones are 2 GB. CUDA's runtime and NCCL have no stubs: Horovod is compiled against them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Beginning of a library's name -> beginning of its functions' names.
_NAMES = (
    "cublas", "cublasLt", "cudnn", "cufft", "cupti", "curand", "cusolver", "cusparse", "cusparseLt", "nvJitLink",
    "nvrtc", "nvshmem",
)  # fmt: skip
FAMILIES = {"libcufile": "cuFile", **{f"lib{name}": name for name in _NAMES}}


def longest(text: str, beginnings: list[str]) -> str:
    """The longest of these with which the text begins; empty where it begins with none."""
    return max((each for each in beginnings if text.startswith(each)), key=len, default="")


def stubbed(dynamic: str) -> list[str]:
    """Names of the libraries to be stubbed, out of ``readelf --dynamic``."""
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)
    return [name for name in needed if longest(name, list(FAMILIES))]


def owners(versions: str) -> dict[str, str]:
    """Version of symbols -> the library that has it, out of ``readelf --version-info``."""
    libraries, library = {}, ""
    for line in versions.splitlines():
        if (named := re.search(r"File: (\S+)", line)) is not None:
            library = named[1]
        elif library and (version := re.search(r"Name: (\S+)\s+Flags", line)) is not None:
            libraries[version[1]] = library
    return libraries


def undefined(symbols: str) -> list[tuple[str, str]]:
    """(name, version or empty) of the symbols that are sought elsewhere, out of ``nm --dynamic --undefined-only``."""
    names = (line.split()[-1].partition("@") for line in symbols.splitlines() if line.strip())
    return [(name, version.lstrip("@")) for name, _, version in names]


def symbols_of(libraries: list[Path]) -> dict[str, dict[str, set[str]]]:
    """Library -> version (empty for none) -> symbols that these libraries seek there."""
    sought: dict[str, dict[str, set[str]]] = {}
    without_version: set[str] = set()
    for path in libraries:
        for name in stubbed(output("readelf", "--dynamic", str(path))):
            sought.setdefault(name, defaultdict(set))
        owner = owners(output("readelf", "--wide", "--version-info", str(path)))
        for symbol, version in undefined(output("nm", "--dynamic", "--undefined-only", str(path))):
            if not version:
                without_version.add(symbol)
            elif owner.get(version) in sought:
                sought[owner[version]][version].add(symbol)
    # The loader seeks a symbol without a version in every library, so the function's name must say whose it is.
    library_of = {FAMILIES[longest(name, list(FAMILIES))]: name for name in sought}
    for symbol in without_version:
        if (family := longest(symbol, list(FAMILIES.values()))) in library_of:
            sought[library_of[family]][""].add(symbol)
    return sought


def make(name: str, symbols: dict[str, set[str]], directory: Path) -> None:
    """Compile one stub."""
    names = sorted(set().union(*symbols.values())) if symbols else []
    versions = {version: sorted(inside) for version, inside in sorted(symbols.items()) if version}
    with tempfile.TemporaryDirectory() as work:
        source, script = Path(work, "stub.c"), Path(work, "stub.map")
        source.write_text("".join(f"int {each}(void) {{ return 1; }}\n" for each in names) or "int none_;\n")
        script.write_text("".join(f"{version} {{ {'; '.join(inside)}; }};\n" for version, inside in versions.items()))
        words = ["gcc", "-shared", "-fPIC", "-w", "-o", str(directory / name), str(source), f"-Wl,-soname,{name}"]
        subprocess.run([*words, *([f"-Wl,--version-script={script}"] if versions else [])], check=True)
    print(f"stub {name}: {len(names)} symbols", flush=True)


def output(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout


def main() -> None:
    directory, libraries = Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]]
    for name, symbols in sorted(symbols_of(libraries).items()):
        make(name, symbols, directory)


if __name__ == "__main__":
    main()
