"""Images from a real registry, with no engine: the same root as the engine's, whatever the registry does."""

import base64
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import zstandard

from runner.core.errors import Exit, InfrastructureError, RefusedError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.conversion.publishing import Conversion
from runner.images.conversion.squashfs import Options, convert, convert_engine_image
from runner.images.sources import blobs
from runner.images.store import store
from tests.support import light_base, odd_image
from tests.support import registry as registries
from tests.support.commands import ran
from tests.support.documents import result
from tests.support.layers import tar_of
from tests.support.registry import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, Moods, Repository, digest, proxied
from tests.support.squashfs import sif_of
from tests.support.waiting import until

pytestmark = pytest.mark.integration
SECRET = "not-to-be" + "-seen"


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registries.running(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a cache and a store of this test's own, with no login and nothing fetched."""
    for name, place in (("HOME", "home"), ("RUNNER_CACHE", "cache"), ("XDG_RUNTIME_DIR", "run")):
        monkeypatch.setenv(name, str(tmp_path / place))
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "ENROOT_CONFIG_PATH", "XDG_CONFIG_HOME", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def repository(registry: str, request: pytest.FixtureRequest) -> Repository:
    return Repository(registry, f"tests/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}")


def layer(*names: str, size: int = 3000) -> bytes:
    """A layer of these files, each with its own name and bytes that do not compress."""

    def content(name: str) -> bytes:
        return b"".join(hashlib.sha256(f"{name}{block}".encode()).digest() for block in range(size // 32))

    return tar_of(*((name, content(name), {}) for name in names))


def take(text: str, **options: object) -> Conversion:
    return convert(text, Options(**options), Silent())  # type: ignore[arg-type]


def paths_in(done: Conversion) -> set[str]:
    listing = ran(["unsquashfs", "-l", done.image.path]).out
    return {line.removeprefix("squashfs-root/") for line in listing.splitlines()}


def direct(repository: Repository, tag: str = "1") -> str:
    return f"docker://{repository.reference(tag)}"


def through(proxy: str, repository: Repository, tag: str = "1") -> str:
    return f"docker://{proxy}#{repository.name}:{tag}"


TRICKY = r"""
FROM {base}
RUN mkdir -p /a/b/c /gone/deep /again/old /swap "/odd name/ü" && echo one > /a/one && echo two > /a/b/two \
 && echo deep > /gone/deep/file && echo old > /again/old/file && echo x > /swap/in && ln -s a /link \
 && echo linked > /hard1 && ln /hard1 /hard2 && ln /hard1 /a/hard3 && echo kept > "/odd name/ü/file" \
 && chmod 4755 /a/one
RUN rm /a/one && rm -r /gone && rm -r /again && mkdir /again && echo new > /again/new \
 && rm -r /swap && echo file > /swap
RUN echo through > /link/through && rm /hard1 && chmod 700 /a/b && mv /a/b/two /a/b/moved && echo changed > /a/hard3
RUN rm -r /swap /link && mkdir /swap /link && echo back > /swap/back && touch /a/b/.hidden && ln -s /swap/back /loop
ENV TRICKY="a b" SECOND=2
LABEL z=1 a=2
WORKDIR /made/by/workdir
VOLUME /made/volume
ENTRYPOINT ["/bin/bash", "-c"]
CMD ["echo it's"]
"""


@pytest.fixture(scope="module")
def tricky(engine_client: docker.DockerClient, registry: str) -> Iterator[str]:
    """An image whose layers delete and replace, built by the engine and pushed by it to the registry."""
    base, name = "gpu-runner/test-tools:1", f"{registry}/tests/tricky"
    engine_client.api.import_image_from_data(light_base.archive(), repository=base.removesuffix(":1"), tag="1")
    engine_client.images.build(
        fileobj=io.BytesIO(TRICKY.format(base=base).encode()), tag=f"{name}:1", network_mode="host", rm=True
    )
    said = engine_client.images.push(name, "1", stream=True, decode=True)
    assert not [line for line in said if "error" in line]
    yield f"{name}:1"
    for one in (f"{name}:1", base):
        engine_client.images.remove(one, force=True)


def tree(done: Conversion, place: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a squashfs holds: kind, mode, time, content; names that share an inode, by the first of them."""
    subprocess.run(["unsquashfs", "-q", "-n", "-d", place, done.image.path], check=True)
    entries: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in (place, *sorted(place.rglob("*"))):
        about = path.lstat()
        name = path.relative_to(place).as_posix()
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        entries[name] = (oct(about.st_mode), about.st_mtime, content, first.setdefault(about.st_ino, name))
    return entries


def test_it_is_what_the_engine_makes_of_the_image_file_by_file(
    own: Path, tricky: str, engine_client: docker.DockerClient
) -> None:
    by_engine = convert_engine_image(tricky, engine_client, Silent(), store_dir=own / "one")
    by_registry = take(tricky, source="registry", store=own / "two")
    ours, theirs = tree(by_registry, own / "ours"), tree(by_engine, own / "theirs")
    different = {name: (ours.get(name), theirs.get(name)) for name in ours.keys() | theirs}
    assert {name: both for name, both in different.items() if both[0] != both[1]} == {}
    assert ours["again/new"][2] == b"new\n"
    assert not {"a/one", "gone", "again/old", "hard1"} & ours.keys()
    assert (by_registry.image.digest, by_registry.image.entries) == (by_engine.image.digest, by_engine.image.entries)
    for name in ("environment", "workdir", "entrypoint", "command", "labels", "architecture"):
        assert getattr(by_registry.image, name) == getattr(by_engine.image, name), name
    for file in ("rc", "environment", "fstab"):
        assert ours[f"etc/{file}"] == theirs[f"etc/{file}"]
    # The same image in the same store is one file, whichever way it came.
    assert not convert_engine_image(tricky, engine_client, Silent(), store_dir=own / "two").made


def test_what_docker_save_writes_is_the_same_image(own: Path, tricky: str, engine_client: docker.DockerClient) -> None:
    archive = own / "saved with: a colon.tar"
    with archive.open("wb") as out:
        out.writelines(engine_client.images.get(tricky).save(named=True))
    by_registry = take(tricky, source="registry", store=own / "one")
    by_archive = take(f"docker-archive:{archive}", store=own / "two")
    named = take(f"docker-archive:{archive}:{tricky}", store=own / "two")
    assert by_archive.image.sha256 == by_registry.image.sha256
    assert (named.made, named.image.reference) == (False, tricky)
    with pytest.raises(RefusedError, match="no image 'other:1' is in it"):
        take(f"docker-archive:{archive}:other:1")
    packed = own / "packed.tar.gz"
    packed.write_bytes(gzip.compress(archive.read_bytes(), 1))
    with pytest.raises(RefusedError, match="no plain tar archive"):
        take(f"docker-archive:{packed}")


def test_whatever_a_root_may_hold_comes_through(own: Path, engine_client: docker.DockerClient) -> None:
    tag = f"gpu-runner/test-odd-{os.getpid()}:1"
    with odd_image.loaded(engine_client, tag, odd_image.archive_of_all(tag, attribute="user.note")):
        with (own / "odd.tar").open("wb") as out:
            out.writelines(engine_client.images.get(tag).save(named=True))
        by_engine = convert_engine_image(tag, engine_client, Silent(), store_dir=own / "one")
    by_archive = take(f"docker-archive:{own / 'odd.tar'}", store=own / "two")
    ours, theirs = everything(by_archive), everything(by_engine)
    assert ours == theirs
    assert by_archive.image.entries == by_engine.image.entries > 50


def test_layers_of_gnu_tar_with_holes_and_global_records_are_what_the_engine_makes_of_them(
    own: Path, engine_client: docker.DockerClient
) -> None:
    """Sparse formats 0.1 and 1.0, and a global time in the lower layer that neither it nor the upper one may take."""
    layers = []
    for number, words in enumerate((("--sparse-version=0.1", "--pax-option=mtime=86400"), ("--sparse-version=1.0",))):
        place = own / f"layer{number}"
        place.mkdir()
        with (place / f"holes{number}").open("wb") as file:
            for part in range(12):
                file.seek(part * 100_000)
                file.write(b"%d" % part)
            file.truncate(3_000_000)
        (place / f"plain{number}").write_text("plain")
        command = ["tar", "-C", str(place), "--format=posix", "--sparse", "--mtime=2020-01-01 00:00Z", *words]
        files = [f"holes{number}", f"plain{number}"]
        layers.append(subprocess.run([*command, "-cf", "-", *files], stdout=subprocess.PIPE, check=True).stdout)
        assert len(layers[-1]) < 200_000
    tag = f"gpu-runner/test-gnu-{os.getpid()}:1"
    archive = own / "gnu.tar"
    archive.write_bytes(odd_image.archive(tag, layers, {}))
    with odd_image.loaded(engine_client, tag, archive.read_bytes()):
        by_engine = convert_engine_image(tag, engine_client, Silent(), store_dir=own / "one")
    by_archive = take(f"docker-archive:{archive}", store=own / "two")
    ours, theirs = (tree(done, own / name) for done, name in ((by_archive, "ours"), (by_engine, "theirs")))
    assert ours == theirs
    assert ours["holes1"][1:3] == (1577836800.0, (own / "layer1/holes1").read_bytes())


def everything(done: Conversion) -> set[bytes]:
    """What it holds, without the times of directories that the upper layer writes into without describing them:
    Docker takes the time at which it unpacked that layer.
    """
    undescribed = re.compile(rb"^((?:gone|links|opaque) D )[0-9]+")
    return {undescribed.sub(rb"\1", line) for line in odd_image.content_lines(done.image.path)}


@pytest.mark.parametrize("kind", [OCI_INDEX, DOCKER_LIST])
def test_an_index_gives_the_image_of_the_platform(own: Path, repository: Repository, kind: str) -> None:
    images = {name: repository.image([layer(name)], architecture=name) for name in ("arm64", "amd64")}
    attestation = {**images["arm64"].descriptor(), "platform": {"os": "unknown", "architecture": "unknown"}}
    described = [image.descriptor(name) for name, image in images.items()]
    index = repository.manifest({"manifests": [attestation, *described]}, kind, "1")
    for architecture, image in images.items():
        done = take(direct(repository), platform=f"linux/{architecture}")
        assert architecture in paths_in(done)
        assert (done.image.architecture, done.image.origin) == (architecture, digest(image.raw))
        for known in (digest(index.raw), digest(image.raw), done.image.digest):
            assert store.lookup(f"{repository.reference('1')}@{known}") == done.image
    with pytest.raises(RefusedError, match="not made for linux/s390x, only for linux/amd64, linux/arm64") as caught:
        take(direct(repository), platform="linux/s390x")
    assert "--platform linux/amd64" in caught.value.fix
    repository.image([layer("x")], "alone", architecture="riscv64")
    with pytest.raises(RefusedError, match="only for linux/riscv64"):
        take(direct(repository, "alone"))


def test_layers_are_unpacked_however_they_are_packed(own: Path, repository: Repository) -> None:
    layers = [layer(name) for name in ("plain", "gzipped", "zstd")]
    packed = [layers[0], gzip.compress(layers[1]), zstandard.compress(layers[2])]
    repository.image(layers, "1", packed=packed, media_type=DOCKER_MANIFEST)
    assert {"plain", "gzipped", "zstd"} <= paths_in(take(direct(repository)))


@pytest.mark.parametrize(("by", "compress"), [("xz", lzma.compress), ("bzip2", bz2.compress)])
def test_other_compressions_are_refused_in_words(
    own: Path, repository: Repository, by: str, compress: Callable[[bytes], bytes]
) -> None:
    raw = layer("x")
    repository.image([raw], "1", packed=[compress(raw)])
    with pytest.raises(RefusedError, match=f"a layer is compressed by {by}; layers of images are gzip, zstd or"):
        take(direct(repository))
    assert not list((own / "store").glob("*.sqsh"))


def test_oci_layouts_as_directories_and_archives(own: Path, repository: Repository) -> None:
    image = repository.image([layer("x"), layer("y")], "1")
    by_registry = take(direct(repository), store=own / "registry")
    again = take(direct(repository), store=own / "again").image.sha256
    assert again == by_registry.image.sha256, "packing the same layers twice gives the same bytes"
    name = {"org.opencontainers.image.ref.name": "v1"}
    layout = own / "layout"
    shutil.copytree(blobs.directory(), layout / "blobs/sha256", ignore=shutil.ignore_patterns(".*"))
    manifests = [{**image.descriptor(), "annotations": name}]
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    with tarfile.open(own / "layout.tar", "w") as archive:
        archive.add(layout, ".")
    for text in (f"oci:{layout}", f"oci:{layout}:v1", f"oci-archive:{own / 'layout.tar'}:v1"):
        done = take(text, store=own / hashlib.sha256(text.encode()).hexdigest()[:8])
        assert (done.image.reference, done.image.sha256) == ("layout:v1", by_registry.image.sha256)
    with pytest.raises(RefusedError, match="no image 'v2' is in it") as caught:
        take(f"oci:{layout}:v2")
    assert f"oci:{layout}:v1" in caught.value.fix
    (layout / "blobs/sha256" / stored(layer("x"))[7:]).write_bytes(gzip.compress(layer("z")))
    with pytest.raises(InfrastructureError, match="is not the one that the image's configuration names"):
        take(f"oci:{layout}", store=own / "broken")
    assert not list((own / "broken").glob("*.sqsh"))


def stored(raw: bytes) -> str:
    """The digest under which a layer lies in the registry."""
    return digest(gzip.compress(raw, mtime=0))


def test_pauses_failures_and_cut_connections_are_lived_through(own: Path, repository: Repository) -> None:
    repository.image([layer("a", "b", size=400_000), layer("c", size=100_000)], "1")
    moods = Moods(busy=1, failing=1, cuts=4)
    with proxied(repository.host, moods) as proxy:
        done = take(through(proxy, repository))
    assert {"a", "b", "c"} <= paths_in(done)
    assert (moods.busy, moods.failing, moods.cuts) == (0, 0, 0)
    ranges = [headers["Range"] for _, path, headers in moods.asked if "Range" in headers and "/blobs/" in path]
    assert len(ranges) >= 3
    assert not any(text == "bytes=0-" for text in ranges)


def test_a_registry_without_ranges_serves_as_well(own: Path, repository: Repository) -> None:
    repository.image([layer("a", size=400_000)], "1")
    with proxied(repository.host, Moods(cuts=1, whole_only=True)) as proxy:
        assert "a" in paths_in(take(through(proxy, repository)))


@pytest.mark.parametrize("sound", [True, False], ids=["its beginning", "something else"])
def test_what_an_earlier_run_has_left_is_gone_on_from(own: Path, repository: Repository, sound: bool) -> None:
    stored = gzip.compress(layer("a", size=400_000), mtime=0)
    repository.image([layer("a", size=400_000)], "1")
    blobs.directory().mkdir(parents=True)
    begun = stored[:100_000] if sound else b"?" * 100_000
    (blobs.directory() / f".{digest(stored)[7:]}.partial").write_bytes(begun)
    moods = Moods()
    with proxied(repository.host, moods) as proxy:
        assert "a" in paths_in(take(through(proxy, repository)))
    asked = [headers.get("Range") for _, path, headers in moods.asked if path.endswith(digest(stored))]
    assert asked == (["bytes=100000-"] if sound else ["bytes=100000-", None])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_fetch_that_is_interrupted_goes_on_where_it_stopped(
    own: Path, repository: Repository, number: signal.Signals
) -> None:
    large = layer("a", size=40_000_000)
    repository.image([large], "1")
    blob, moods = stored(large), Moods(slow_s=0.05)
    with proxied(repository.host, moods) as proxy:
        words = [sys.executable, "-m", "runner", "convert", through(proxy, repository)]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as child:
            partial = blobs.directory() / f".{blob[7:]}.partial"
            until(lambda: partial.exists() and partial.stat().st_size > 2_000_000, "2 MB", every_s=0.01)
            child.send_signal(number)
            assert child.wait(60) == (Exit.INTERRUPTED if number == signal.SIGINT else -number)
        assert list((own / "store").glob("**/*.sqsh")) == []
        left = partial.stat().st_size
        moods.slow_s = 0
        moods.asked.clear()
        assert "a" in paths_in(take(through(proxy, repository)))
    assert [headers.get("Range") for _, path, headers in moods.asked if path.endswith(blob)] == [f"bytes={left}-"]


def log_in(own: Path, host: str, login: str, by: str = "docker") -> None:
    """A login as `docker login` or Enroot keeps it."""
    user, _, password = login.partition(":")
    auths = {host: {"auth": base64.b64encode(login.encode()).decode()}}
    enroots = f"machine {host} login {user} password {password}\n"
    docker = by == "docker"
    path = own / "home" / (".docker/config.json" if docker else ".config/enroot/.credentials")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"auths": auths}) if docker else enroots)


def test_other_bytes_than_the_digest_says_are_not_taken(own: Path, repository: Repository) -> None:
    image = repository.image([layer("a")], "1")
    blob = stored(layer("a"))
    moods = Moods(wrong=(blob,))
    with proxied(repository.host, moods) as proxy:
        with pytest.raises(InfrastructureError, match=f"{blob} arrived with other bytes, twice"):
            take(through(proxy, repository))
        assert not [path for path in blobs.directory().iterdir() if path.name in blob or ".partial" in path.name]
        shutil.rmtree(blobs.directory())
        moods.wrong = (digest(image.raw),)
        with pytest.raises(InfrastructureError, match="a manifest that is not the one of"):
            take(through(proxy, repository))
    assert not blobs.directory().exists()
    assert not list((own / "store").glob("**/*.sqsh"))


def test_what_was_damaged_since_it_was_fetched_is_fetched_anew(own: Path, repository: Repository) -> None:
    repository.image([layer("a"), layer("b")], "1")
    name = direct(repository)
    whole = take(name).image
    shutil.rmtree(own / "store")
    kept = [path for path in blobs.directory().iterdir() if "." not in path.name]  # what the layers hold is known
    assert len(kept) == 4  # a manifest, a configuration, two layers
    for path in kept:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    with pytest.raises(InfrastructureError, match=r"2 kept layers of .* were damaged on this machine's disk"):
        take(name)
    assert take(name).image.sha256 == whole.sha256


def test_a_tag_that_is_not_there_names_the_nearest(own: Path, repository: Repository) -> None:
    repository.image([layer("a")], "25.02-py3")
    with pytest.raises(RefusedError, match="has no such image") as caught:
        take(f"docker://{repository.reference('25.20-py3')}")
    assert "did you mean '25.02-py3'?" in caught.value.fix
    with pytest.raises(RefusedError, match="has no such image"):
        take(f"docker://{repository.host}/no/such:image")


def test_a_registry_that_is_not_there_says_so(own: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"127.0.0.1:1 cannot be reached: .*refused") as caught:
        take("docker://127.0.0.1:1/x/y:1")
    assert caught.value.code == Exit.INFRASTRUCTURE


@pytest.mark.parametrize("challenge", ["basic", "bearer"])
@pytest.mark.parametrize("by", ["docker", "enroot"])
def test_a_login_is_used_and_never_shown(
    own: Path, repository: Repository, challenge: str, by: str, capfd: pytest.CaptureFixture[str]
) -> None:
    repository.image([layer("a"), layer("b")], "1")
    login = f"$oauthtoken:{SECRET}"
    moods = Moods(basic=login) if challenge == "basic" else Moods(bearer=login)
    with proxied(repository.host, moods) as proxy:
        with pytest.raises(RefusedError, match=r"requires a login .* there is none here") as caught:
            take(through(proxy, repository))
        assert f"docker login {proxy}" in caught.value.fix
        log_in(own, proxy, login, by)
        done = ran([sys.executable, "-m", "runner", "convert", through(proxy, repository)])
    kept = [path for path in own.rglob("*") if path.is_file() and "home" not in path.parts]
    assert SECRET not in done.out + done.err + "".join(map(str, capfd.readouterr()))
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
    assert not [path for _, path, _ in moods.asked if SECRET in path]


def test_a_tag_that_moved_is_noticed_and_a_digest_needs_no_registry(own: Path, repository: Repository) -> None:
    old = repository.image([layer("old")], "1")
    moods = Moods()
    with proxied(repository.host, moods) as proxy:
        name = through(proxy, repository)
        first = take(name)
        moods.asked.clear()
        again = take(name)
        assert (again.made, again.moved_from) == (False, "")
        assert [method for method, _, _ in moods.asked] == ["HEAD"], "one small request"
        new = repository.image([layer("new")], "1")
        moved = take(name)
    assert (moved.made, moved.moved_from, moved.image.origin) == (True, digest(old.raw), digest(new.raw))
    for image, wanted in ((old, first), (new, moved)):
        pinned = f"{name}@{digest(image.raw)}"
        assert store.lookup(pinned) == wanted.image
        assert take(pinned).image == wanted.image  # the proxy is gone
    assert (store.lookup(name) or first.image) == moved.image


def test_without_an_engine_a_plain_name_is_taken_from_its_registry(
    own: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.image([layer("a")], "1")
    monkeypatch.setattr(engine, "default_urls", lambda _: ())
    said: list[str] = []

    class Telling(Silent):
        def line(self, text: str) -> None:
            said.append(text)

    done = convert(repository.reference("1"), Options(), Telling())
    assert "a" in paths_in(done)
    assert said == [f"no container engine answers: taking {repository.reference('1')} from its registry"]


BUILDER = """#!/bin/sh
[ "$1" = --version ] && exec echo apptainer version 1.4.5
printf '%s\\n' "$@" >{asked}
for out; do case $out in *.partial*|*.sif*) exec cp {sif} "$out";; esac; done
"""


def test_a_sif_is_pulled_by_apptainer_by_the_digest_that_the_registry_has_now(
    own: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for its builder: the file is another one, its arguments are as they would be."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    (own / "tree").mkdir()
    ran(["mksquashfs", own / "tree", own / "x.sqsh", "-quiet"])
    sif_of(own / "x.sqsh", own / "x.sif")
    (own / "bin").mkdir()
    (own / "bin/apptainer").write_text(BUILDER.format(asked=own / "asked", sif=own / "x.sif"))
    (own / "bin/apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{own}/bin:{os.environ['PATH']}")
    pushed = repository.image([layer("a")], "1")
    words = ["convert", "--format", "sif", "--json", f"docker://{repository.reference('1')}"]
    made = result(ran([sys.executable, "-m", "runner", *words]).out)
    assert (made["made"], made["origin"]) == (True, digest(pushed.raw))
    asked = (own / "asked").read_text().split()
    assert asked[asked.index("build") :][-3::2] == [
        "--no-https",
        f"docker://{repository.host}/{repository.name}@{digest(pushed.raw)}",
    ]
    assert result(ran([sys.executable, "-m", "runner", *words]).out)["made"] is False
