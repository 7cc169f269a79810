"""``images edit`` by an ordinary user with Charliecloud's real ch-run, and what may go wrong."""

import os
import pty
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import editing
from tests.support.commands import ran
from tests.support.editing import CHECKOUT, IMAGE, LIMIT_S, Editor
from tests.support.packages import ch_run_tools
from tests.support.users import AS_ROOT, UNPRIVILEGED, given_up

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    """An ordinary user, but for one thing: whatever holds this checkout and its Python can be read."""
    with tempfile.TemporaryDirectory(prefix="edits-", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        place.chmod(0o755)
        variables = ch_run_tools(place)
        (place / "store").mkdir()
        (place / "cache").mkdir()
        become = given_up(place)
        yield editing.prepared(place, "ch-run", variables, become)


def test_two_at_once_are_two_images(editor: Editor) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(editor.edit, "bash", "-c", "sleep 1; echo same >/opt/same") for _ in range(2)]
        digests = {one.result().out.splitlines()[-1].strip() for one in both}
    assert len(digests) == 2
    assert editor.image("my/edited:1")["digest"] in digests
    assert all(editor.image(digest)["reference"] == "my/edited:1" for digest in digests)
    assert editor.left() == []


@pytest.mark.parametrize(
    "assertion", [editing.assert_edits, editing.assert_nothing_of_a_failure, editing.assert_nothing_of_a_killed_edit]
)
def test_what_must_hold_of_every_tool_holds_of_ch_run(editor: Editor, assertion: Callable[[Editor], None]) -> None:
    assertion(editor)


def test_an_edit_needs_no_network(editor: Editor) -> None:
    alone = ("unshare", "--net", "--map-root-user") if os.geteuid() else ("unshare", "--net")
    assert editor(*editor.editing("bash", "-c", "echo done"), before=alone).out.startswith("done\n")


def test_passwords_in_a_command_are_hidden_in_the_history(editor: Editor) -> None:
    secret = "not-to-be" + "-seen"
    editor.edit("true", f"https://me:{secret}@host/simple")
    shown = editor("images", "show", "my/edited:1").out
    assert secret not in shown
    assert "https://***@host/simple" in shown


@AS_ROOT
@pytest.mark.parametrize("full", ["cache", "store"])
def test_a_full_disk_is_reported_and_nothing_is_left(editor: Editor, full: str) -> None:
    """What is listed at the end is left on the small disk, with the store that was there."""
    inside = (
        f'mount -t tmpfs -o size=1m,mode=700,uid={UNPRIVILEGED} full "$0";'
        ' [ "$1" = cache ] || cp -a "$2"/. "$0"/ 2>/dev/null || true;'
        ' place=$0; shift 2; "$@" || echo "exit $?"; find "$place" -name "*~*" -o -path "*/builds/*"'
    )
    place, command = editor.place / full, editor.editing("bash", "-c", "true", name="my/full:1")
    if full == "store":  # the image is read from its file, and the result goes to a store that is full
        place = editor.place / "small"
        place.mkdir(exist_ok=True)
        os.chown(place, UNPRIVILEGED, UNPRIVILEGED)
        command = editor.editing("bash", "-c", "true", name="my/full:1", image=editor.image(IMAGE)["path"])
        command[3:3] = ["--store", str(place)]
    words = ["unshare", "--mount", "sh", "-c", inside, str(place), full, str(editor.store)]
    done = ran([*words, *editor.command_line(*command)], timeout_s=LIMIT_S, env=editor.env(), cwd=editor.place)
    assert done.out == "exit 8\n", done
    assert "No space left" in done.err
    assert ("RUNNER_CACHE" if full == "cache" else "--store DIR") in done.err


@pytest.mark.parametrize(("answer", "stored"), [("y", True), ("n", False)])
def test_a_shell_asks_at_its_end_whatever_its_last_command_was(editor: Editor, answer: str, stored: bool) -> None:
    """In a terminal, typed by a person."""
    name = f"my/shell:{answer}"
    words = editor.command_line("images", "edit", IMAGE, "--with", "ch-run", "--shell", "--name", name)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(CHECKOUT)
        os.execvpe(words[0], words, editor.env())
    shown = b""

    def wait_for(text: bytes) -> None:
        nonlocal shown
        until = time.monotonic() + LIMIT_S
        while text not in shown:
            assert time.monotonic() < until, shown
            shown += os.read(terminal, 4096)

    wait_for(b"# ")
    os.write(terminal, b"echo typed >/opt/typed; cat /nowhere\n")
    wait_for(b"No such file")
    os.write(terminal, b"exit\n")
    wait_for(b"store the result as")
    os.write(terminal, answer.encode() + b"\n")
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # its end
        pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == (0 if stored else 130)
    editor("images", "show", name, code=0 if stored else 3)
    assert editor.left() == []


def test_what_cannot_succeed_is_refused_before_any_work(editor: Editor) -> None:
    assert "write the command behind --, or --shell" in editor("images", "edit", IMAGE, code=2).err
    editor("images", "edit", IMAGE, "--shell", "--", "true", code=2)
    assert "no image my/other:1 is in the store" in editor("images", "edit", "my/other:1", "--", "true", code=3).err
    absent = editor("images", "edit", IMAGE, "--with", "enroot", "--", "true", code=3).err
    assert "enroot was not found" in absent
    assert editor.left() == []
