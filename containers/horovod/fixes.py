"""The fixes of Horovod's source: which of ``fixes/*.patch`` a base needs, and how one is applied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent / "fixes"


def needed(facts: dict[str, Any]) -> list[str]:
    """Names of the patches that a base with these facts needs; each patch states why, and for which versions."""
    names = ["cxx-standard"]
    compiler = re.match(r"\d+", str(facts["compiler"]))
    if compiler is None or int(compiler.group(0)) >= 13:  # none yet: which one will be installed is unknown
        names.append("gcc-13-headers")
    if facts["framework"] == "tensorflow" and not facts["xla_headers"]:
        names.append("xla-ops-left-out")
    if facts["cuda"]:
        names.append("kernel-launches-checked")
    if facts["cuda"] and facts["nccl_headers"]:
        names.append("nccl-without-development-link")
    if facts.get("gpu_stream_value") is False:
        names.append("gpu-stream-handle")
    return names


def file_of(name: str) -> Path:
    return DIRECTORY / f"{name}.patch"


def apply(text: str, root: Path) -> int:
    """Apply a unified diff exactly (no fuzz, no offset guessing beyond a unique match); returns changed lines.

    Raises:
        SystemExit: a hunk's old lines are not found exactly once.
    """
    changed = 0
    for section in re.split(r"(?m)^(?=--- a/)", text)[1:]:
        name = section.split("\n", 1)[0][len("--- a/") :].strip()
        path = root / name
        content = path.read_text(encoding="utf-8")
        for hunk in re.split(r"(?m)^@@.*@@.*\n", section)[1:]:
            lines = [line for line in hunk.splitlines() if line[:1] in (" ", "-", "+")]
            old = "".join(line[1:] + "\n" for line in lines if line[0] != "+")
            new = "".join(line[1:] + "\n" for line in lines if line[0] != "-")
            if content.count(old) != 1:
                raise SystemExit(f"a fix does not fit {name}: expected once, found {content.count(old)} times:\n{old}")
            content = content.replace(old, new)
            changed += sum(line[0] in "+-" for line in lines)
        path.write_text(content, encoding="utf-8")
    return changed
