"""Secrets planted where people have them, a watch on all command lines of the machine, and a search of what is left."""

import base64
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "planted-5ec4e7"  # in every planted secret
MOST_BYTES = 4_000_000  # of a file that is searched: no image is


def environment(directory: Path) -> dict[str, str]:
    """A submitter's environment full of secrets: keys, proxies and an index with passwords, an engine's login."""
    login = base64.b64encode(f"me:{MARK}-login".encode()).decode()
    proxy = f"http://me:{MARK}-proxy@127.0.0.1:9"
    engine = {
        "auths": {"nvcr.io": {"auth": login}},
        "proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy, "noProxy": "*"}},
    }
    (directory / "docker").mkdir()
    (directory / "docker" / "config.json").write_text(json.dumps(engine))
    return {
        "AWS_SECRET_ACCESS_KEY": f"{MARK}-aws",
        "NGC_API_KEY": f"{MARK}-ngc",
        "GIT_ASKPASS_PASSWORD": f"{MARK}-git",
        "PIP_INDEX_URL": f"https://me:{MARK}-index@index.invalid/simple",
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy),
        "DOCKER_CONFIG": str(directory / "docker"),
    }


def needles() -> tuple[bytes, ...]:
    """What to look for: the mark itself, and the engine's login as its configuration spells it."""
    return MARK.encode(), base64.b64encode(f"me:{MARK}-login".encode())


@contextmanager
def watched_command_lines() -> Iterator[set[bytes]]:
    """Every command line of this machine that showed a secret while this lasted."""
    seen: set[bytes] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for process in Path("/proc").iterdir():
                with suppress(OSError):  # no process, or one that has ended since
                    words = (process / "cmdline").read_bytes()
                    if any(needle in words for needle in needles()):
                        seen.add(words)
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def holders(*roots: Path) -> set[Path]:
    return {path for path in files(*roots) if _holds(path)}


def files(*roots: Path) -> Iterable[Path]:
    """The plain files below these directories; links are not followed, what goes meanwhile is passed over."""
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    if stat.S_ISREG(path.lstat().st_mode):
                        yield path


def open_to_others(*roots: Path) -> Mapping[Path, str]:
    """Mode of everything below these directories, and of them, that another user may write to."""
    modes = {}
    for root in roots:
        for path in (root, *root.rglob("*")):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o022:
                modes[path] = oct(stat.S_IMODE(mode))
    return modes


def _holds(path: Path) -> bool:
    with suppress(OSError):
        content = os.fsencode(path.name) + (path.read_bytes() if path.stat().st_size < MOST_BYTES else b"")
        return any(needle in content for needle in needles())
    return False


def verb(name: str) -> list[str]:
    return [sys.executable, "-m", "runner", name]


def careless(words: list[str], env: dict[str, str]) -> str:
    """Run a command under umask 000 with these variables on top; its standard output."""
    done = subprocess.run(
        words, env={**os.environ, **env}, umask=0, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr
    assert MARK not in done.stdout + done.stderr
    return done.stdout
