"""docs/first-hour.md: its commands, typed in their order by an ordinary user who has installed the wheel, print what
stands below them. ``pytest -s`` shows the whole transcript.
"""

import re
import shutil
import subprocess
from pathlib import Path

from runner.images.store.stored_image import StoredImage
from tests.support.installed import build, install
from tests.support.sites.kestrel import CHECKOUT, kestrel
from tests.support.users import ALICE, AS_ROOT, become

pytestmark = AS_ROOT
PAGE = CHECKOUT / "docs/first-hour.md"


def typed(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page's blocks, each with the lines below it."""
    session: list[tuple[str, list[str]]] = []
    for block in re.findall(r"(?m)(?:^(?: {4}.*)?\n)+", page):
        if not block.strip().startswith("$ "):
            continue
        for text in re.split(r"(?m)^ {4}\$ ", block)[1:]:
            command, *below = text.rstrip().split("\n")
            session.append((command, [line[4:] for line in below]))
    return session


def alike(line: str) -> str:
    """Without what differs from run to run: times, ids of runs and jobs, losses, and the width of columns."""
    differs = r"\d{8}-\d{6}|\d{4}-\d\d-\d\d|\d\d(:\d\d)+|\d+\.\d+|\d+ (?:s|min)\b|job +\d+|\d+_\d"
    return re.sub(r"\s+", " ", re.sub(differs, "0", line)).strip()


def test_a_new_user_types_the_page_and_sees_what_stands_there(tmp_path: Path, squashfs: StoredImage) -> None:
    session = typed(PAGE.read_text())
    assert len(session) == 12
    with kestrel() as cluster:
        home = cluster.home
        installed = install(build(tmp_path / "dist").wheel, "/usr/bin/python3", home / "tools")
        (home / "bin").mkdir()
        (home / "bin/gpu-runner").symlink_to(installed.bin_dir / "gpu-runner")
        shutil.copy(squashfs.path, home / "pytorch.sqsh")
        (home / "project").mkdir()
        for command, below in session:
            if command.startswith("cat "):
                (home / "project" / command.split()[1]).write_text("\n".join((*below, "")))
        subprocess.run(["chown", "-R", f"{ALICE}:{ALICE}", home], check=True)
        shell = ["env", "-i", f"HOME={home}", "USER=alice", "LOGNAME=alice", f"PATH={home}/bin:/usr/bin:/bin", "bash"]
        words: list[str | Path] = [cluster.daemons.box.bin_dir / "in-box", *become(ALICE), *shell]
        for command, below in session:
            done = subprocess.run(
                [*words, "-c", f"cd ~/project && {command}"], cwd="/", timeout=400, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said = done.stdout.replace(str(home), "~")
            print(f"$ {command}\n{said}")
            assert done.returncode == (3 if "refused: nothing was submitted" in below else 0), said
            seen = {"...", *map(alike, said.splitlines())}
            assert [line for line in below if alike(line) not in seen] == [], said
