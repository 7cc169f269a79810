"""The documents of ``tests/fixtures``, laid out as those of a user who goes on with them."""

import json
import os
import shutil
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FIXTURES = CHECKOUT / "tests/fixtures"
MADE_S = 1_795_385_000  # of the newest link, Unix time


def lay_out(version: str, home: Path, checkout: Path = CHECKOUT) -> dict[str, str]:
    """Copy the documents of a version into ``home``, which stands for the directory where all was submitted.

    What a checkout or an archive does not keep is made anew: the links to runs and studies, the oldest first, and the
    times of images; ``rerun`` and ``--resume`` find their directory, and their recipe in ``checkout``.

    Returns:
        The variables by which commands find them.
    """
    shutil.copytree(FIXTURES / version, home, dirs_exist_ok=True)
    for kind, record in (("studies", "study.json"), ("runs", "job.json")):
        (home / "state" / kind).mkdir()
        made = [path.parent for path in (home / "jobs").rglob(record) if "allocations" not in path.parts]
        for age_s, path in enumerate(sorted(made, key=lambda path: path.name, reverse=True)):
            link = home / "state" / kind / path.name
            link.symlink_to(path)
            os.utime(link, (MADE_S - age_s, MADE_S - age_s), follow_symlinks=False)
    for path in (*home.rglob("command.json"), *home.rglob("study.json")):
        text = path.read_text().replace("/home/ada/work", str(home))
        path.write_text(text.replace("/home/ada/gpu-runner", str(checkout)))
    for path in (home / "store").glob("*.sqsh.json"):
        made_ns = json.loads(path.read_text())["mtime_ns"]
        os.utime(path.with_suffix(""), ns=(made_ns, made_ns))
    places = {"STATE": "state", "STORE": "store", "CACHE": "cache", "CONFIG": "config.yaml"}
    return {f"RUNNER_{name}": str(home / place) for name, place in places.items()}
