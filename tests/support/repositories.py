"""Git repositories of a test's own, made with the real git."""

import os
import subprocess
from pathlib import Path

_WHO = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "protocol.file.allow=always")


def git(directory: Path, *words: str) -> str:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    done = subprocess.run(("git", *_WHO, *words), cwd=directory, env=env, capture_output=True, check=True)
    return os.fsdecode(done.stdout).strip()


def repository(directory: Path, files: dict[str, bytes]) -> Path:
    """A new repository with one commit that has these files."""
    directory.mkdir(parents=True)
    git(directory, "init", "-q", "-b", "main")
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", "first")
    return directory
