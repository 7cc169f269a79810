"""``images edit`` on a login node without an engine, by any of the programs that it knows: what must hold for each."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import light_base, odd_image
from tests.support.documents import result
from tests.support.waiting import until

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
UNPRIVILEGED = 65534
IMAGE = "my/light:1"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HARD": "'q' $x \\ `id` \"d\" $(id) !", "U": "ü €", "EMPTY": ""}


@dataclass(frozen=True)
class Editor:
    """A user of a login node.

    Attributes:
        place: holds the store and the cache. tool: of ``--with``. variables: over ours. become: turns into the user.
    """

    place: Path
    tool: str
    variables: Mapping[str, str]
    become: tuple[str, ...] = ()

    @property
    def store(self) -> Path:
        return self.place / "store"

    def command_line(self, *words: str) -> list[str]:
        return [*self.become, sys.executable, "-m", "runner", *words]

    def env(self, **more: str) -> dict[str, str]:
        own = {"RUNNER_STORE": str(self.store), "RUNNER_CACHE": str(self.place / "cache"), "PYTHONPATH": str(CHECKOUT)}
        return {**os.environ, **own, "HOME": str(self.place), **self.variables, **more}

    def __call__(
        self, *words: str, code: int = 0, before: tuple[str, ...] = (), **more: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*before, *self.command_line(*words)], capture_output=True, text=True, timeout=LIMIT_S, check=False,
            cwd=self.place, env=self.env(**more), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def edit(self, *words: str, code: int = 0, name: str = "my/edited:1") -> subprocess.CompletedProcess[str]:
        return self("images", "edit", IMAGE, "--with", self.tool, "--name", name, "--", *words, code=code)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """An edit under way: its first line of output is there."""
        command = self.command_line("images", "edit", IMAGE, "--with", self.tool, "--name", "my/edited:1", "--", *words)
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.place, env=self.env(),
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline().startswith("began")
        return child

    def image(self, name: str) -> dict[str, Any]:
        found = result(self("images", "show", name, "--json").stdout)
        assert isinstance(found, dict)
        return found

    def files(self) -> list[str]:
        return sorted(path.name for path in self.store.iterdir() if path.suffix == ".sqsh")

    def left(self) -> list[str]:
        """What edits have left: writable copies, unfinished files."""
        copies = self.place / "cache/builds"
        return [path.name for path in (*copies.iterdir(), *self.store.rglob(".*"))]

    def processes(self, mark: str) -> list[int]:
        """Those whose arguments hold the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


def prepared(place: Path, tool: str, variables: Mapping[str, str], become: tuple[str, ...] = ()) -> Editor:
    editor = Editor(place, tool, variables, become)
    start = {"Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()], "WorkingDir": "/work space"}
    archive = odd_image.archive(IMAGE, [light_base.archive()], {**start, "Cmd": ["/bin/bash"], "Labels": {"a": "b"}})
    with tempfile.NamedTemporaryFile(dir=place, suffix=".tar") as file:
        file.write(archive)
        file.flush()
        Path(file.name).chmod(0o644)
        editor("convert", f"docker-archive:{file.name}")
    return editor


def assert_edits(editor: Editor) -> None:
    """The command is root, sees the image's environment, and what it did is a new image with its history."""
    before = editor.image(IMAGE)
    report = 'id -u; printf "%s\\n" "$HARD" "$U" "$EMPTY" "$PWD" "$@"; ls -A /tmp; echo new >/opt/new; rm /usr/bin/dd'
    done = editor.edit("bash", "-c", report, "x", "two words", "$HOME", 'a"b')
    begun = ["0", ENVIRONMENT["HARD"], ENVIRONMENT["U"], "", "/work space", "two words", "$HOME", 'a"b']
    assert done.stdout.splitlines()[: len(begun)] == begun
    assert done.stdout.splitlines()[len(begun)].startswith("my/edited:1: stored"), "nothing of ours is in its /tmp"
    after = editor.image("my/edited:1")
    assert after["digest"] not in ("", before["digest"])
    assert {**after["environment"]} == ENVIRONMENT
    assert (after["workdir"], after["command"], after["labels"]) == ("/work space", ["/bin/bash"], {"a": "b"})
    (edit,) = after["history"]
    assert (edit["of"], edit["command"][-1]) == (before["digest"], 'a"b')
    assert edit["tool"].startswith(editor.tool)
    listing = subprocess.run(["unsquashfs", "-l", after["path"]], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "squashfs-root/opt/new" in listing.splitlines()
    assert not {"squashfs-root/usr/bin/dd", "squashfs-root/.lock"} & set(listing.splitlines())
    shown = editor("images", "show", "my/edited:1").stdout
    assert f"of {before['digest']}, by {edit['tool']}: bash -c" in shown
    # On top of an edit, by the default name; the first image is as it was.
    editor(
        "images",
        "edit",
        "my/edited:1",
        "--with",
        editor.tool,
        "--",
        "bash",
        "-c",
        "cat /opt/new; echo V=2 >>/etc/environment",
    )
    second = editor.image("my/edited:1-edited")
    assert [one["of"] for one in second["history"]] == [before["digest"], after["digest"]]
    assert second["environment"] == {**ENVIRONMENT, "V": "2"}
    assert editor.image(IMAGE) == before
    assert editor.left() == []


def assert_nothing_of_a_failure(editor: Editor) -> None:
    """A command that fails: its exit code is reported, nothing is stored, nothing is left."""
    there = editor.files()
    done = editor.edit("bash", "-c", "echo before; echo lost >/opt/lost; exit 7", code=5, name="my/failed:1")
    assert done.stdout == "before\n"
    assert "error: the command failed with exit code 7; nothing is stored" in done.stderr
    assert editor.files() == there
    editor("images", "show", "my/failed:1", code=3)
    assert editor.left() == []


def assert_nothing_of_a_killed_edit(editor: Editor) -> None:
    """Ended by SIGTERM it tidies up; killed, it leaves a copy that the next edit removes."""
    there = editor.files()
    child = editor.start("bash", "-c", "echo began; echo lost >/opt/lost; exec sleep 1234.5")
    child.terminate()
    assert child.wait(60) == 128 + 15
    until(lambda: not editor.processes("1234.5"))
    assert (editor.files(), editor.left()) == (there, [])
    child = editor.start("bash", "-c", "echo began; exec sleep 3")
    child.kill()
    child.wait(60)
    assert len(editor.left()) == 1
    editor.edit("true")
    assert editor.left() == []
