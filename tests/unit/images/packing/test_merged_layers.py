"""Layers merged into one root: against a file system on which the layers are really applied, one after another."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.errors import InfrastructureError
from runner.core.files import sha256
from runner.images.packing import merged_layers
from runner.images.packing.merged_layers import Layer
from tests.support.layers import merge, tar_of

Entry = tuple[str, bytes, str]  # path, kind, content or target of a link
FILE, DIR, SOFT, HARD, FIFO = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


def layer_of(entries: Sequence[Entry]) -> bytes:
    """Each entry with a mode and a time of its own."""
    return tar_of(
        *(
            (path, text.encode() * (kind == FILE), {
                "type": kind, "mode": 0o600 + number % 64, "mtime": 1000 + number,
                "linkname": text * (kind in (SOFT, HARD)),
            })
            for number, (path, kind, text) in enumerate(entries)
        )
    )  # fmt: skip


def merge_entries(*stack: Sequence[Entry], made: Sequence[str] = ()) -> dict[str, str]:
    """path -> what is there, as tar itself reads the merged stream."""
    root = {}
    with tarfile.open(fileobj=io.BytesIO(merge([layer_of(entries) for entries in stack], made))) as tar:
        for member in tar:
            assert member.name not in root, "each name once"
            content = tar.extractfile(member) if member.isreg() else None
            kind = "" if content else {DIR: "/", SOFT: "->", HARD: "=", FIFO: "|"}[member.type]
            root[member.name] = content.read().decode() if content else kind + member.linkname
    return root


FILES = [("a/", DIR, ""), ("a/x", FILE, "old"), ("a/y", FILE, "old")]
DEEP = "/".join("d" * 2000)
LINKED = [("x/a", FILE, "data"), ("b", HARD, "x/a"), ("c", HARD, "./b")]
BEHIND_LINK = [("d/", DIR, ""), ("d/x", FILE, "1"), ("d/y", FILE, "2"), ("l", SOFT, "d")]
HIDDEN = [(path, FILE, "") for path in ("a/.wh.x", "a/.wh.y", ".wh.b", ".wh.no", "no/.wh.no")]


@pytest.mark.parametrize(
    ("stack", "merged"),
    [
        pytest.param(
            [[*FILES, ("b/z", FILE, "old")], [("a/x", FILE, "new"), *HIDDEN]], {"a": "/", "a/x": "new"},
            id="whiteouts hide lower layers only, wherever they stand",
        ),
        pytest.param(
            [[*FILES, ("a/d/y", FILE, "old")],
             [("a/new", FILE, "new"), ("a/.wh..wh..opq", FILE, ""), ("a/.wh..wh.plnk", FILE, "")]],
            {"a": "/", "a/new": "new"},
            id="an opaque directory shows only its own layer",
        ),
        pytest.param(
            [LINKED, [("x/.wh.a", FILE, "")]], {"b": "data", "c": "=b", "x": "/"},
            id="a hard link keeps its data when the name that had them is gone",
        ),
        pytest.param(
            [LINKED, [("x/a", FILE, "other")]], {"b": "data", "c": "=b", "x": "/", "x/a": "other"},
            id="a hard link keeps its data when the name that had them has others",
        ),
        pytest.param(
            [[("z", FILE, "data")], [("a", HARD, "/z")]], {"a": "data", "z": "=a"},
            id="a hard link may lead to a lower layer",
        ),
        pytest.param(
            [[("d/", DIR, ""), ("l", SOFT, "d")], [("l/", DIR, ""), ("l/x", FILE, "1")]],
            {"d": "/", "l": "/", "l/x": "1"},
            id="a directory entry takes the place of a link",
        ),
        pytest.param(
            [BEHIND_LINK, [("l/", DIR, ""), ("l/.wh..wh..opq", FILE, ""), ("l/.wh.x", FILE, "")]],
            {"d": "/", "d/x": "1", "d/y": "2", "l": "/"},
            id="whiteouts in a directory that replaced a link spare what the link led to",
        ),
        pytest.param([[(DEEP, DIR, "")]], {DEEP[: 2 * n + 1]: "/" for n in range(2000)},
                     id="a tree may be as deep as a path is long"),
    ],
)  # fmt: skip
def test_layers_are_applied_one_after_another(stack: list[list[Entry]], merged: dict[str, str]) -> None:
    assert merge_entries(*stack) == merged


def test_parents_that_are_links_below_are_followed_inside_the_root() -> None:
    low = [("usr/lib/", DIR, ""), ("lib", SOFT, "usr/lib"), ("out", SOFT, "../../../usr"), ("abs", SOFT, "/usr/./lib")]
    high = [("lib/a", FILE, "1"), ("out/b", FILE, "2"), ("abs/c", FILE, "3"), ("lib/.wh.none", FILE, "")]
    root = merge_entries(low, high, [("abs/.wh.a", FILE, "")])
    assert {path: text for path, text in root.items() if path.startswith("usr/")} == {
        "usr/lib": "/", "usr/b": "2", "usr/lib/c": "3",
    }  # fmt: skip


def test_a_working_directory_is_made_where_its_path_leads() -> None:
    low = [("run/", DIR, ""), ("var/run", SOFT, "/run")]
    assert merge_entries(low, made=["/var/run/app/in"]).keys() == {"run", "run/app", "run/app/in", "var", "var/run"}
    assert merge_entries(low, made=["", "/run"]).keys() == {"run", "var", "var/run"}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([("a", HARD, "nowhere")], "no file"),
        ([("d/", DIR, ""), ("a", HARD, "d")], "no file"),
        ([("a", HARD, "/")], "no file"),
        ([("l", SOFT, "m"), ("m", SOFT, "l"), ("l/x", FILE, "1")], "cannot be placed"),
        ([("a/..", FILE, "1")], "cannot be placed"),
        (
            [
                ("a/", DIR, ""),
                *((f"l{one}", SOFT, "a/../" * 700 + f"l{one + 1}") for one in range(8)),
                ("l8", SOFT, "a"),
                ("l0/x", FILE, "1"),
            ],
            "cannot be placed",
        ),
    ],
)
def test_layers_that_cannot_be_applied_are_refused(entries: list[Entry], says: str) -> None:
    with pytest.raises(InfrastructureError, match=says) as caught:
        merge_entries(entries)
    assert caught.value.where == "layer 0"
    with pytest.raises(InfrastructureError, match="a path of more than 4096 bytes"):
        merge_entries([(DEEP, DIR, ""), ("a", SOFT, DEEP), (f"a/{DEEP}", DIR, "")])


@pytest.mark.parametrize("cut", [100, 512, 700])
def test_a_layer_that_ends_early_or_is_compressed_is_reported(cut: int) -> None:
    with pytest.raises(InfrastructureError, match=r"layer 0 (ended|is not)"):
        merge([layer_of([("a", FILE, "x" * 600)])[:cut]])
    with pytest.raises(InfrastructureError, match="is not a tar archive"):
        merge([gzip.compress(os.urandom(5000))])


def test_what_tar_cannot_say_in_its_first_block_survives_a_new_name() -> None:
    """A long name, a capability, a big owner: also where the data get the name of another link."""
    long = "n" * 200
    kept = {"SCHILY.xattr.security.capability": "\x01\x00\x00\x02"}
    headers = {**kept, "SCHILY.xattr.user.note": "an export leaves it out"}
    made = (f"{long}/gone", b"abc", {"mode": 0o4711, "uid": 3_000_000, "pax_headers": headers})
    link = (f"{long}/kept", b"", {"type": HARD, "linkname": f"{long}/gone"})
    raw = merge([tar_of(made, link), layer_of([(f"{long}/.wh.gone", FILE, "")])])
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        member = tar.getmember(f"{long}/kept")
        assert (member.mode, member.uid, member.size) == (0o4711, 3_000_000, 3)
        extended = {key: value for key, value in member.pax_headers.items() if key not in ("path", "uid")}
        assert extended == kept


NAMES = st.sampled_from(["a", "b", "c", "long" * 40])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@st.composite
def layer(draw: st.DrawFn) -> list[Entry]:
    """A layer as tar writers make them: a name once; links lead to files of the same layer."""
    entries: dict[str, Entry] = {}
    for path in draw(st.lists(PATHS, max_size=8, unique=True)):
        above = [path.rsplit("/", depth)[0] for depth in range(1, path.count("/") + 1)]
        if any(parent in entries and entries[parent][1] != DIR for parent in above):
            continue
        if any(other.startswith(f"{path}/") for other in entries):
            continue
        files = [one[0] for one in entries.values() if one[1] == FILE]
        kind = draw(st.sampled_from([FILE, FILE, DIR, SOFT, FIFO] + [HARD] * bool(files)))
        text = draw(st.sampled_from(files)) if kind == HARD else draw(st.sampled_from(["", "text", "b", "../c"]))
        entries[path] = (path, kind, (text or "b") if kind == SOFT else text)
    whiteouts = draw(st.lists(PATHS | st.just(""), max_size=3, unique=True))
    for path in whiteouts:
        if any(path == one or path.startswith(f"{one}/") for one in entries if entries[one][1] != DIR):
            continue
        head, _, name = path.rpartition("/")
        name = f".wh.{name}" if name and draw(st.booleans()) else ".wh..wh..opq"
        entries[f"{head}/{name}".strip("/")] = (f"{head}/{name}".strip("/"), FILE, "")
    return draw(st.permutations(list(entries.values()))) if not any(e[1] == HARD for e in entries.values()) else [
        *entries.values()
    ]  # fmt: skip


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def white_out(path: Path) -> None:
    hidden = path.with_name(path.name.removeprefix(".wh."))
    if path.parent.is_dir():
        for each in path.parent.iterdir() if path.name == ".wh..wh..opq" else [hidden]:
            remove(each)


def apply(root: Path, entries: Sequence[Entry]) -> None:
    """What an engine does: whiteouts on what is there, then each entry in the place of what is there."""
    whiteouts = [path for path, _, _ in entries if Path(path).name.startswith(".wh.")]
    for path in whiteouts:
        white_out(root / path)
    for number, (path, kind, text) in enumerate(entries):
        if path in whiteouts:
            continue
        place = root
        for part in Path(path).parts[:-1]:
            place /= part
            if not place.is_dir():
                remove(place)
                place.mkdir(mode=0o755)
        place /= Path(path).name
        if not (kind == DIR and place.is_dir() and not place.is_symlink()):
            remove(place)
        make: dict[bytes, Callable[[], object]] = {
            FILE: partial(place.write_text, text),
            DIR: partial(place.mkdir, exist_ok=True),
            SOFT: partial(place.symlink_to, text),
            HARD: partial(os.link, root / text, place),
            FIFO: partial(os.mkfifo, place),
        }
        make[kind]()
        if kind not in (SOFT, HARD):
            place.chmod((0o700 if kind == DIR else 0o600) + number % 64)


def entries_of(root: Path) -> dict[str, tuple[object, ...]]:
    """Every path with its kind, mode, content, and the first of the names that share its inode."""
    paths = sorted(Path(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files))
    first: dict[int, str] = {}
    entries: dict[str, tuple[object, ...]] = {}
    for path in paths:
        about = path.lstat()
        name = path.relative_to(root).as_posix()
        content: object = path.read_text() if path.is_file() and not path.is_symlink() else ""
        content = str(path.readlink()) if path.is_symlink() else content
        entries[name] = (about.st_mode | (0o700 if path.is_dir() else 0), content, first.setdefault(about.st_ino, name))
    return entries


def no_links_as_parents(stack: Sequence[Sequence[Entry]]) -> bool:
    """The oracle's paths would leave its root through links; how those are followed has tests of its own."""
    links = {path for entries in stack for path, kind, _ in entries if kind == SOFT}
    return not any(path.startswith(f"{link}/") for link in links for entries in stack for path, _, _ in entries)


@settings(max_examples=60, deadline=None)
@given(st.lists(layer(), min_size=1, max_size=4))
def test_random_stacks_give_what_applying_them_gives(stack: list[list[Entry]]) -> None:
    if not no_links_as_parents(stack):
        stack = [[entry for entry in entries if entry[1] != SOFT] for entries in stack]
    with tempfile.TemporaryDirectory() as scratch:
        oracle, ours = Path(scratch, "oracle"), Path(scratch, "ours")
        oracle.mkdir()
        ours.mkdir()
        for entries in stack:
            apply(oracle, entries)
        with tarfile.open(fileobj=io.BytesIO(merge([layer_of(entries) for entries in stack]))) as tar:
            tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # Python 3.11.2 has none yet
            for member in tar:
                member.mode |= 0o700 if member.isdir() else 0
                tar.extract(member, ours)
        assert entries_of(ours) == entries_of(oracle)


def test_a_layer_that_changes_between_its_readings_is_not_passed_on_as_the_one_that_was_hashed() -> None:
    good, evil = (layer_of([("bin/python3", FILE, text)]) for text in ("good", "evil"))
    readings = iter((good, evil))
    layer = Layer("layer 1", lambda: nullcontext(io.BytesIO(next(readings))), f"sha256:{sha256(good)}")
    root = merged_layers.Root([(layer.name, merged_layers.indexed(layer))])
    with pytest.raises(InfrastructureError, match="layer 1 is not the one that the image's configuration names"):
        list(merged_layers.merged([layer], root, root.files(), mtime=7))
