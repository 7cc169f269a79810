"""Conversion of real images: both ways alike, reproducible, whole; each difference from engine and Enroot; its end.

The differences are the rows of docs/images.md: a test a row.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest

from benchmarks import convert as bench
from benchmarks import enroot
from runner.core import paths
from runner.core.errors import RefusedError
from runner.core.progress import Silent
from runner.images import engine as private_engine
from runner.images.building.build import BuiltImage
from runner.images.conversion.engine_source import Method
from runner.images.conversion.squashfs import ASSEMBLED, convert_engine_image
from runner.images.packing import squashfs_tables
from runner.images.packing.mksquashfs import Packing
from runner.images.store.stored_image import StoredImage
from tests.support import converting, odd_image
from tests.support.commands import ran
from tests.support.heard import Heard
from tests.support.odd_image import EPOCH, OLD, Entry
from tests.support.squashfs import crashing_mksquashfs
from tests.support.users import AS_ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, AS_ROOT]
ODD = "gpu-runner/test-odd:1"
WAYS: tuple[Method, ...] = ("layers", "stream")


@dataclass(frozen=True)
class Trees:
    """The odd image as a container shows it; unpacked from our squashfs; and from that of Enroot's way."""

    engine: dict[str, Entry]
    ours: dict[str, Entry]
    theirs: dict[str, Entry]
    root: Path
    their_root: Path


Convert = Callable[..., StoredImage]


@pytest.fixture(scope="module")
def convert_odd(engine_client: docker.DockerClient) -> Iterator[Convert]:
    def call(store: Path, method: Any, progress: Silent | None = None, **options: Any) -> StoredImage:
        made = convert_engine_image(ODD, engine_client, progress or Silent(), store_dir=store, method=method, **options)
        return made.image

    with odd_image.loaded(engine_client, ODD, odd_image.archive_of_all(ODD)):
        yield call


@pytest.fixture(scope="module")
def packed(convert_odd: Convert, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredImage]:
    directory = tmp_path_factory.mktemp("ways")
    return {way: convert_odd(directory / way, way) for way in WAYS}


@pytest.fixture(scope="module")
def trees(
    engine_client: docker.DockerClient, packed: dict[str, StoredImage], tmp_path_factory: pytest.TempPathFactory
) -> Trees:
    directory = tmp_path_factory.mktemp("trees")
    url = os.environ.get("DOCKER_HOST") or private_engine.private_url(private_engine.private_state())
    theirs = directory / "enroot.sqsh"
    enroot.import_image(ODD, url, directory, theirs, ("-comp", "zstd"), lambda _: None)
    roots = directory / "ours", directory / "theirs"
    for root, squashfs in zip(roots, (packed["layers"].path, theirs), strict=True):
        subprocess.run(["unsquashfs", "-q", "-n", "-d", root, squashfs], check=True)
    ours, others = map(odd_image.as_unpacked, roots)
    return Trees(odd_image.as_run(engine_client, ODD), ours, others, *roots)


def test_both_ways_give_the_same_root(packed: dict[str, StoredImage]) -> None:
    """Whole blocks of zeros are holes in what comes as a stream, and stored otherwise."""
    layers, stream = (odd_image.content_lines(packed[way].path) for way in WAYS)
    assert layers == stream
    assert packed["layers"].entries == packed["stream"].entries
    assert packed["layers"].key == packed["stream"].key


def test_both_ways_give_the_same_bytes_of_what_has_no_whole_block_of_zeros(
    engine_client: docker.DockerClient, tmp_path: Path
) -> None:
    with converting.small_image(engine_client, f"gpu-runner/test-ways-{os.getpid()}:1", files=40) as name:
        sums = {
            convert_engine_image(name, engine_client, Silent(), store_dir=tmp_path / way, method=way).image.sha256
            for way in WAYS
        }
    assert len(sums) == 1


@pytest.mark.parametrize("way", WAYS)
def test_neither_umask_clock_time_zone_nor_processors_change_a_byte(
    way: Method, convert_odd: Convert, packed: dict[str, StoredImage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    while int(time.time()) <= int(packed["stream"].path.stat().st_mtime):
        time.sleep(0.1)
    before = os.umask(0o077)
    try:
        again = convert_odd(tmp_path / "a store", way, packing=Packing(processors=1))
    finally:
        os.umask(before)
    assert again.sha256 == packed[way].sha256


def test_level_and_block_size_are_part_of_the_key(convert_odd: Convert, packed: dict[str, StoredImage]) -> None:
    first = packed["layers"].path
    other = convert_odd(first.parent, "auto", packing=Packing(level=9, block="128K"))
    assert other.path != first
    said = ran(["unsquashfs", "-s", other.path]).out
    assert "compression-level 9" in said
    assert "Block size 131072" in said


def test_what_an_export_leaves_out_makes_it_a_stream(engine_client: docker.DockerClient, tmp_path: Path) -> None:
    """Row `xattrs`: Extended attributes but file capabilities are left out, as by the engine's export."""
    tag, heard = "gpu-runner/test-attributed:1", Heard()
    with odd_image.loaded(engine_client, tag, odd_image.archive_of_all(tag, attribute="user.note")):
        made = convert_engine_image(tag, engine_client, heard, store_dir=tmp_path / "store").image
        assert any(
            "not from the layers: /attributed has the extended attribute user.note" in one for one in heard.lines
        )
        with pytest.raises(RefusedError, match="cannot be packed here"):
            convert_engine_image(tag, engine_client, Silent(), store_dir=tmp_path / "other", method="layers")
        subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "root", made.path, "attributed"], check=True)
        assert os.listxattr(tmp_path / "root/attributed") == []


def test_where_nothing_may_be_mounted_it_is_a_stream_and_says_so(
    packed: dict[str, StoredImage], tmp_path: Path
) -> None:
    """Root without the capability to mount, as in many a container."""
    without = ["setpriv", "--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin"]
    said = ran([*without, sys.executable, "-m", "runner", "convert", ODD, "--store", tmp_path / "store"]).err
    assert "not from the layers: [Errno 1] unshare: Operation not permitted" in said
    assert "as a stream" in said
    assert "device files opt/dev/disk, opt/dev/zero" in said
    (made,) = (tmp_path / "store").glob("*.sqsh")
    assert made.read_bytes() == packed["stream"].path.read_bytes()


def test_row_names(trees: Trees) -> None:
    wanted = {"odd/new\nline", "odd/\udcff\udcfe", "odd/back\\slash", "odd/grüße \U0001f600", f"{odd_image.DEEP}/end"}
    assert wanted <= set(trees.ours)
    assert any(len(name.rpartition("/")[2].encode()) == 251 for name in trees.ours)


def test_row_paths(trees: Trees) -> None:
    made = {"dev", "proc", "sys", "ch", "ch/environment", "data", "results", "scratch"}
    made |= {"etc/rc", "etc/rc.local", "etc/fstab", "run/app"}
    assert set(trees.ours) - set(trees.engine) == made
    assert set(trees.engine) - set(trees.ours) == {".dockerenv", "opt/dev/disk", "opt/dev/zero"}
    assert "etc/mtab" in trees.ours
    assert set(trees.theirs) - set(trees.ours) <= {"opt/dev/disk", "opt/dev/zero"}
    for gone in ("gone/file", "opaque/old", "links/a", "tree/leaf"):
        assert gone not in trees.ours
    assert {"gone/kept", "opaque/new", "odd/.wh"} <= set(trees.ours)
    assert list((trees.root / "dev").iterdir()) == []


def test_row_kinds_sizes_and_links(trees: Trees) -> None:
    replaced = {"etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/environment"}
    for name in set(trees.ours) & set(trees.engine) - replaced:
        ours, engines = trees.ours[name], trees.engine[name]
        assert (ours.kind, ours.size, ours.target) == (engines.kind, engines.size, engines.target), name
    assert (trees.root / "changed").read_bytes() == b"after"


def test_row_devices(trees: Trees) -> None:
    """As an ordinary user unsquashfs ends with 2 on them, and no container of Pyxis or Enroot starts."""
    assert {"opt/dev/disk", "opt/dev/zero"} <= set(trees.engine)
    assert not list((trees.root / "opt/dev").iterdir())


def test_row_owners(trees: Trees) -> None:
    for root in (trees.root, trees.their_root):
        assert {(path.lstat().st_uid, path.lstat().st_gid) for path in root.rglob("*")} == {(0, 0)}


def test_row_modes(trees: Trees) -> None:
    remade = {"", "etc", "etc/hosts", "etc/hostname", "etc/resolv.conf"}
    both = set(trees.ours) & set(trees.engine)
    assert {name for name in both if trees.ours[name].mode != trees.engine[name].mode} <= remade
    modes = [oct(trees.ours[name].mode) for name in ("bin/su", "sticky", "group", "closed", "bin/secret")]
    assert modes == ["0o4755", "0o1777", "0o2770", "0o0", "0o0"]
    assert [oct(trees.theirs[name].mode) for name in ("closed", "bin/secret")] == ["0o700", "0o400"]


def test_row_times(trees: Trees) -> None:
    assert max(entry.time for entry in trees.ours.values()) == EPOCH
    assert [trees.ours[name].time for name in ("bin/su", "early", "late", "etc")] == [OLD, 1, EPOCH, EPOCH]
    assert trees.theirs["late"].time == trees.engine["late"].time == EPOCH + 86400


def test_row_capabilities(trees: Trees) -> None:
    assert os.getxattr(trees.root / "bin/ping", "security.capability") == odd_image.CAPABILITY
    assert "security.capability" not in os.listxattr(trees.their_root / "bin/ping")


def test_row_hard_links(trees: Trees) -> None:
    assert (trees.root / "links/hard").stat().st_ino == (trees.root / "bin/su").stat().st_ino
    assert (trees.root / "links/b").stat().st_nlink == 1


def test_row_sparse(trees: Trees) -> None:
    for root in (trees.root, trees.their_root):
        assert (root / "sparse").read_bytes() == bytes(odd_image.SPARSE_BYTES) + b"end"


def test_row_start_up_files(trees: Trees) -> None:
    assert (trees.root / "etc/environment").read_text() == 'A=it is $HOME "x"\n', "a newline cannot be said"
    assert "exec '/bin/su' 'it'\\''s' \"$@\"" in (trees.root / "etc/rc").read_text()
    assert (trees.root / "etc/fstab").read_text().startswith("${ENROOT_ROOTFS}/vol\\040ume ")
    for name in ("hosts", "hostname", "resolv.conf"):
        assert (trees.root / "etc" / name).read_bytes() == b""
    assert trees.ours["vol ume"].kind == "d"


def test_every_row_of_the_table_has_its_test() -> None:
    document = (Path(__file__).parents[2] / "docs/images.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", document, re.MULTILINE))
    tested = {name.removeprefix("test_row_") for name in globals() if name.startswith("test_row_")} | {"xattrs"}
    assert rows == tested


def test_an_image_with_a_link_in_a_directorys_place_is_refused_both_ways(
    engine_client: docker.DockerClient, tmp_path: Path
) -> None:
    """Not even the overlay's way follows it out of the root."""
    tag = "gpu-runner/test-linked:1"
    (tmp_path / "host").mkdir()
    with odd_image.loaded(engine_client, tag, odd_image.archive_of_a_link(tag, str(tmp_path / "host"))):
        for way in WAYS:
            with pytest.raises(RefusedError, match="/ch is in the way"):
                convert_engine_image(tag, engine_client, Silent(), store_dir=tmp_path / way, method=way)
        assert list((tmp_path / "host").iterdir()) == []
        assert engine_client.containers.list(all=True, filters={"ancestor": tag}, ignore_removed=True) == []


@pytest.fixture(scope="module")
def large(engine_client: docker.DockerClient, horovod_image: BuiltImage) -> Iterator[str]:
    """An image that takes seconds to pack, of this test run only: every container of it is ours."""
    dockerfile = f"FROM {horovod_image.reference}\nLABEL gpu-runner.test={os.getpid()}\n".encode()
    built, _ = engine_client.images.build(fileobj=io.BytesIO(dockerfile), network_mode="none")
    yield str(built.id)
    engine_client.images.remove(str(built.id), force=True)


CONVERTING = """
import sys, pathlib
from runner.images.engine import connect
from runner.images.conversion.squashfs import convert_engine_image
from runner.core.progress import Silent
class Loud(Silent):
    def moved(self, done, total):
        if done > 50_000_000: print("moved", flush=True)
try:
    convert_engine_image(sys.argv[1], connect(), Loud(), store_dir=pathlib.Path(sys.argv[2]), method=sys.argv[3])
except KeyboardInterrupt:
    sys.exit(130)
"""


def squashers(store: Path) -> list[int]:
    pids = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # one that has just ended
            words = cmdline.read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(store)) for word in words) and b"mksquashfs" in words[0]:
                pids.append(int(cmdline.parent.name))
    return pids


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_an_interrupted_conversion_leaves_nothing_mounted_and_nothing_running(
    way: Method, number: signal.Signals, engine_client: docker.DockerClient, large: str, tmp_path: Path
) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    store = tmp_path / "store"
    words = [sys.executable, "-c", CONVERTING, large, str(store), way]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "moved\n"
        assert squashers(store)
        child.send_signal(number)
        assert child.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    until(lambda: squashers(store) == [], "mksquashfs has ended", timeout_s=30)
    assert Path("/proc/self/mounts").read_text() == mounts
    assert list((paths.cache("mount")).iterdir()) == []
    assert list(store.glob("*.sqsh")) == []
    filters: dict[str, str | list[str] | bool] = {"ancestor": large}
    left = [str(one.id) for one in engine_client.containers.list(all=True, filters=filters, ignore_removed=True)]
    if number == signal.SIGINT:
        assert left == []
        assert [path.suffix for path in store.iterdir() if path.is_file()] in ([], [".lock"])
    for one in left:
        with suppress(docker.errors.NotFound):
            engine_client.containers.get(one).remove(force=True)


@pytest.mark.parametrize("way", WAYS)
def test_progress_shows_bytes_of_about_the_whole(way: Method, convert_odd: Convert, tmp_path: Path) -> None:
    heard = Heard()
    convert_odd(tmp_path / "store", way, heard)
    assert any(("mounted" if way == "layers" else "as a stream") in one for one in heard.steps)
    if way == "stream":  # of so few bytes mksquashfs alone may have read all before it is asked
        done = [done for done, _ in heard.amounts]
        assert done == sorted(done)
        assert done[-1] > odd_image.SPARSE_BYTES


@pytest.mark.parametrize("way", ["auto", *WAYS])
def test_a_crash_of_mksquashfs_is_followed_by_another_way(
    packed: dict[str, StoredImage], convert_odd: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    tools = crashing_mksquashfs(tmp_path / "tools", times=1)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    heard = Heard()
    made = convert_odd(tmp_path / "store", way, heard)
    assert made.sha256 == packed["layers" if way == "layers" else "stream"].sha256
    assert "mksquashfs has crashed (SIGSEGV): trying once more, on one processor" in heard.steps
    first, second = (tools / "calls").read_text().splitlines()
    assert ("-tar" in first, "-tar" in second) == (way == "stream", way != "layers")


def test_assemble_takes_over_what_the_store_has(engine_client: docker.DockerClient, tmp_path: Path) -> None:
    tag, layers = "gpu-runner/test-assembled:1", [odd_image.Layer() for _ in range(3)]
    for layer, name in zip(layers, ("base", "before", "after"), strict=True):
        layer.file(f"{name}/file", name.encode() * 50_000)
        layer.file("both", name.encode())
    lower, before, after = (layer.bytes() for layer in layers)
    verb = [sys.executable, "-m", "runner"]
    convert = [*verb, "convert", f"dockerd://{tag}", "--store", str(tmp_path / "store")]
    with odd_image.loaded(engine_client, tag, odd_image.archive(tag, [lower, before], {})):
        ran([*convert, "--assemble"])
        old = engine_client.images.get(tag).id
        engine_client.images.load(odd_image.archive(tag, [lower, after], {}))
        said = ran(convert).err
        known = json.loads(ran([*convert, "--assemble", "--json"]).out)["result"]
        scratch = json.loads(ran([*convert, "--from-scratch", "--json"]).out)["result"]
        engine_client.images.remove(str(old))
    assert re.search(rf"assembled in [\d.]+ s; \d+% from {tag}@{old}$", said, re.MULTILINE), said
    assert (known["made"], scratch["made"]) == (False, True)
    assert (known["converter"], known["moved_from"]) == (ASSEMBLED, "")
    assert known["key"] != scratch["key"]
    assert known["entries"] == scratch["entries"]
    assert known["digest"] == scratch["digest"] != old
    assert odd_image.content_lines(Path(known["path"])) == odd_image.content_lines(Path(scratch["path"]))
    ran([*verb, "images", "verify", known["path"]])


@pytest.mark.parametrize(
    ("most", "says"), [(64 << 20, "assembled in "), (1 << 20, "not assembled: too much would be packed anew")]
)
def test_what_lies_beside_files_that_are_gone_is_packed_anew(
    most: int, says: str, engine_client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files share compressed blocks: of those in use, no byte of a file that is gone is copied."""
    monkeypatch.setattr(squashfs_tables, "_MOST_ANEW", most)
    tag, lower, upper = f"gpu-runner/test-gone:{most}", odd_image.Layer(), odd_image.Layer()
    for number in range(3000):
        lower.file(f"d/{number}", os.urandom(2000))
    for number in range(2000):
        upper.file(f"d/.wh.{number * 1999 % 3000}", b"")  # here and there
    heard, layers = Heard(), [lower.bytes(), upper.bytes()]
    archives = [odd_image.archive(f"{tag}-{count}", layers[:count], {}) for count in (1, 2)]
    convert = partial(convert_engine_image, client=engine_client, progress=heard, store_dir=tmp_path, assemble=True)
    with odd_image.loaded(engine_client, f"{tag}-1", archives[0]):
        convert(f"{tag}-1")
        with odd_image.loaded(engine_client, f"{tag}-2", archives[1]):
            made = convert(f"{tag}-2").image
    assert [line for line in heard.lines if line.startswith(says)]
    assert not odd_image.of_no_file(made.path)


@pytest.mark.usefixtures("convert_odd")
def test_the_bench_notes_a_crashed_pass_and_goes_on(
    engine_client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{crashing_mksquashfs(tmp_path / 'tools', times=1)}:{os.environ['PATH']}")
    passes = bench.Passes()
    for _ in range(2):
        passes.time("stream", lambda: bench.ours(ODD, engine_client, "stream", passes, Packing(), tmp_path))
    assert len(passes.seconds["stream"]) == 1
    assert passes.failed == {"stream": ["mksquashfs has crashed (SIGSEGV): trying once more, on one processor"]}
    for name in ("floor: export", "floor: mksquashfs", "same"):
        passes.add(name, 1.0)
    *_, noted = bench.table(passes, "same", "default").splitlines()
    assert noted.startswith("stream, a pass that is not counted: mksquashfs has crashed")
