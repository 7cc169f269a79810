"""``images edit`` on a login node without an engine, by any of the programs that it knows: what must hold for each."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import light_base, odd_image
from tests.support.commands import Output, ran
from tests.support.documents import result
from tests.support.waiting import until

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
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

    def editing(self, *words: str, name: str = "my/edited:1", image: str = IMAGE) -> list[str]:
        return ["images", "edit", image, "--with", self.tool, "--name", name, "--", *words]

    def env(self) -> dict[str, str]:
        own = {"RUNNER_STORE": str(self.store), "RUNNER_CACHE": str(self.place / "cache"), "PYTHONPATH": str(CHECKOUT)}
        return {**os.environ, **own, "HOME": str(self.place), **self.variables}

    def __call__(self, *words: str, code: int = 0, before: tuple[str, ...] = ()) -> Output:
        return ran(
            [*before, *self.command_line(*words)], code=code, timeout_s=LIMIT_S, cwd=self.place, env=self.env(),
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def edit(self, *words: str, code: int = 0, name: str = "my/edited:1") -> Output:
        return self(*self.editing(*words, name=name), code=code)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """An edit under way: its first line of output is there."""
        child = subprocess.Popen(
            self.command_line(*self.editing(*words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.place, env=self.env(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline().startswith("began")
        return child

    def image(self, name: str) -> dict[str, Any]:
        about: dict[str, Any] = result(self("images", "show", name, "--json").out)
        return about

    def files(self) -> list[str]:
        return sorted(path.name for path in self.store.iterdir() if path.suffix == ".sqsh")

    def left(self) -> list[str]:
        """What edits have left: writable copies, unfinished files."""
        return [path.name for path in (*(self.place / "cache/builds").iterdir(), *self.store.rglob(".*"))]

    def processes(self, mark: str) -> list[Path]:
        """Those whose arguments hold the mark."""
        with_mark = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                with_mark += [path] if mark.encode() in path.read_bytes() else []
        return with_mark


def prepared(place: Path, tool: str, variables: Mapping[str, str], become: tuple[str, ...] = ()) -> Editor:
    """An editor with one image in its store."""
    editor = Editor(place, tool, variables, become)
    start = {"Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()], "WorkingDir": "/work space"}
    archive = odd_image.archive(IMAGE, [light_base.archive()], {**start, "Cmd": ["/bin/bash"], "Labels": {"a": "b"}})
    with tempfile.NamedTemporaryFile(dir=place, suffix=".tar") as file:
        file.write(archive)
        file.flush()
        Path(file.name).chmod(0o644)
        editor("convert", f"docker-archive:{file.name}")
    return editor


def assert_edits_by(tool: str, programs: str, place: Path) -> None:
    """All of this by a tool that is found in a directory; ``place`` is empty."""
    for inner in ("store", "cache"):
        (place / inner).mkdir()
    editor = prepared(place, tool, {"PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin"})
    for assertion in (assert_edits, assert_nothing_of_a_failure, assert_nothing_of_a_killed_edit):
        assertion(editor)


def assert_edits(editor: Editor) -> None:
    """The command is root, sees the image's environment, and what it did is a new image with its history."""
    before = editor.image(IMAGE)
    report = 'id -u; printf "%s\\n" "$HARD" "$U" "$EMPTY" "$PWD" "$@"; ls -A /tmp; echo new >/opt/new; rm /usr/bin/dd'
    lines = editor.edit("bash", "-c", report, "x", "two words", "$HOME", 'a"b').out.splitlines()
    begun = ["0", ENVIRONMENT["HARD"], ENVIRONMENT["U"], "", "/work space", "two words", "$HOME", 'a"b']
    assert lines[: len(begun)] == begun
    assert lines[len(begun)].startswith("my/edited:1: stored"), "nothing of ours is in its /tmp"
    after = editor.image("my/edited:1")
    assert after["digest"] not in ("", before["digest"])
    assert {**after["environment"]} == ENVIRONMENT
    assert (after["workdir"], after["command"], after["labels"]) == ("/work space", ["/bin/bash"], {"a": "b"})
    (edit,) = after["history"]
    assert (edit["of"], edit["command"][-1]) == (before["digest"], 'a"b')
    assert edit["tool"].startswith(editor.tool)
    listing = ran(["unsquashfs", "-l", after["path"]]).out.splitlines()
    assert "squashfs-root/opt/new" in listing
    assert not {"squashfs-root/usr/bin/dd", "squashfs-root/.lock"} & set(listing)
    assert f"of {before['digest']}, by {edit['tool']}: bash -c" in editor("images", "show", "my/edited:1").out
    # On top of an edit, by the default name; the first image is as it was.
    more = ("bash", "-c", "cat /opt/new; echo V=2 >>/etc/environment")
    said = editor("images", "edit", "my/edited:1", "--with", editor.tool, "--assemble", "--", *more).err
    assert f"% from my/edited:1@{after['digest']}" in said
    second = editor.image("my/edited:1-edited")
    assert [one["of"] for one in second["history"]] == [before["digest"], after["digest"]]
    assert second["environment"] == {**ENVIRONMENT, "V": "2"}
    assert editor.image(IMAGE) == before
    assert editor.left() == []


def assert_nothing_of_a_failure(editor: Editor) -> None:
    """A command that fails: its exit code is reported, nothing is stored, nothing is left."""
    there = editor.files()
    done = editor.edit("bash", "-c", "echo before; echo lost >/opt/lost; exit 7", code=5, name="my/failed:1")
    assert done.out == "before\n"
    assert "error: the command failed with exit code 7; nothing is stored" in done.err
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
