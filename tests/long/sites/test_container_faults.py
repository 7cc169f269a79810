"""Faults planted under the real Pyxis and the real Enroot: the verdict names cause, node and fix.

Only where a prefix on this machine holds both (``tests/support/sites/enroot_prefix.py``).
"""

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner import box
from runner.box import DEFAULT_SLURM
from runner.box import root as box_roots
from tests.support.commands import Runner, extended
from tests.support.documents import result
from tests.support.sites.enroot_prefix import FOUND, box_spec


@dataclass(frozen=True)
class Bench:
    """A box, and the directory of images and of what is mounted over them."""

    cluster: box.Box
    directory: Path

    def on_second_node(self, *command: str) -> None:
        subprocess.run([self.cluster.bin_dir / "srun", "-w", "dgx02", *command], check=True, timeout=60)

    def path(self, text: str) -> str:
        return text.replace("DIR", str(self.directory))


PROGRAMS = ("bash", "dash", "env", "hostname", "id", "mkdir", "rm", "sleep")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}
_LEFT_OUT = ("test", "lib2to3", "idlelib", "pydoc_data", "ensurepip")


def tree(box_root: Path, target: Path) -> Path:
    loader = box_root / "lib64/ld-linux-x86-64.so.2"
    libraries = next((box_root / "usr/lib").glob("*-linux-gnu"))
    python = next(path for path in (box_root / "usr/bin").glob("python3.*") if path.name[8:].isdigit())
    for folder in (
        f"usr/lib/{libraries.name}",
        *["usr/bin", "usr/lib64", "etc", "proc", "sys", "dev", "tmp", "run", "var"],
    ):
        (target / folder).mkdir(parents=True, exist_ok=True)
    for name, points_to in {**_LINKS, "usr/bin/python3": python.name}.items():
        (target / name).symlink_to(points_to)
    for program in (python, *(box_root / "usr/bin" / name for name in PROGRAMS)):
        shutil.copy(program, target / "usr/bin")
    modules = box_root / "usr/lib" / python.name
    shutil.copytree(modules, target / "usr/lib" / python.name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    shutil.copy(loader, target / "usr/lib64")
    for file in (*(target / "usr/bin").iterdir(), *(target / "usr/lib" / python.name).rglob("*.so")):
        listed = subprocess.run(
            [loader, "--library-path", libraries, "--list", file], stdout=subprocess.PIPE, text=True, check=False
        )
        for library in (Path(word) for word in listed.stdout.split() if word.startswith(str(libraries))):
            shutil.copy(library, target / "usr/lib" / libraries.name)
    (target / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    for name in ("group", "hosts", "hostname", "resolv.conf", "environment"):
        (target / "etc" / name).write_text("")
    return target


def packed(root: Path, image: Path) -> Path:
    subprocess.run(
        ["mksquashfs", root, image, "-all-root", "-comp", "gzip", "-no-progress", "-noappend"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return image


def damaged(image: Path, copy: Path) -> Path:
    """A copy with some bytes changed in the blocks of its files; its tables are whole."""
    content = bytearray(image.read_bytes())
    draw = random.Random(1)
    for _ in range(300):
        content[draw.randrange(4096, len(content) - 200_000)] ^= 0xFF
    copy.write_bytes(content)
    return copy


DATA = "/var/tmp/enroot-data-0"  # of root, by the box's configuration
BOTH = ("pyxis", "enroot")


@dataclass(frozen=True)
class ContainerFault:
    """One fault.

    Attributes:
        says: stands in the verdict's first reason, after "the container did not start on NODE: ". fix: in the fix.
        on: where it is mounted, on the second node; empty for a fault of the image or of the job.
        source: what is mounted there: ``tmpfs`` with options after a colon, or a file. DIR: the test's own directory.
        everywhere: all nodes have it. runtimes: under which it can occur. image: its file. options: of ``submit``.
        squashfuse: in a box whose Pyxis mounts images instead of unpacking them.
    """

    says: str
    fix: str
    on: str = ""
    source: str = "tmpfs"
    everywhere: bool = False
    runtimes: tuple[str, ...] = BOTH
    image: str = "small.sqsh"
    options: tuple[str, ...] = ()
    code: int = 8
    squashfuse: bool = False


_IMAGE, _SIZE = "DIR/images/small.sqsh", "tmpfs:size=10m"
_DAMAGED = "is damaged, or cannot be read there"
_NOT_WRITTEN = "cannot be written: Read-only file system"
CONTAINER_FAULTS = {
    "image not on the node": ContainerFault("small.sqsh is not there", "every node mounts", "DIR/images"),
    "image is no squashfs there": ContainerFault(_DAMAGED, "images verify", _IMAGE, "DIR/zeros"),
    "image with damaged blocks": ContainerFault(_DAMAGED, "images verify", _IMAGE, "DIR/damaged"),
    "image cut in half": ContainerFault(_DAMAGED, "images verify", _IMAGE, "DIR/half"),
    "no space in the data path": ContainerFault("no room to unpack", "ENROOT_DATA_PATH", DATA, _SIZE),
    "no inodes in the data path": ContainerFault("no room to unpack", "df -i", DATA, "tmpfs:nr_inodes=100"),
    "data path read-only": ContainerFault(_NOT_WRITTEN, "ENROOT_DATA_PATH", DATA, "tmpfs:ro"),
    "data path cannot be made": ContainerFault(_NOT_WRITTEN, "ENROOT_DATA_PATH", "/var/tmp", "tmpfs:ro"),
    "no enroot on the node": ContainerFault(
        "Enroot ended without a message, as where it is not installed", "enroot version", "/usr/local/bin",
        runtimes=("pyxis",),
    ),
    "no enroot on the node (bare)": ContainerFault(
        "enroot is not there, or not in PATH", "install it", "/usr/local/bin", runtimes=("enroot",)
    ),
    # Enroot's own words are of the image, and of the lock.
    "unsquashfs does not run": ContainerFault(_DAMAGED, "unsquashfs", "/usr/bin/unsquashfs", "DIR/zeros"),
    "flock does not run": ContainerFault("or flock does not work", "ENROOT_DATA_PATH", "/usr/bin/flock", "DIR/zeros"),
    "unpacking is killed": ContainerFault("was killed, often for lack of memory", "memory", "/usr/bin/unsquashfs",
                                          "DIR/killed"),
    "mount source not on the node": ContainerFault(
        "DIR/data/in, which is to be mounted, is not there", "every node has", "DIR/data", runtimes=("pyxis",),
        options=("--mount", "DIR/data/in:/data"),
    ),
    "mount source not on the node (bare)": ContainerFault(
        "DIR/data/in could not be mounted: No such file or directory", "every node has", "DIR/data",
        runtimes=("enroot",), options=("--mount", "DIR/data/in:/data"),
    ),
    "data path noexec": ContainerFault("may not be executed there", "ENROOT_DATA_PATH", DATA, "tmpfs:noexec"),
    "a file mounted on a directory": ContainerFault(
        "DIR/zeros could not be mounted", "another path", everywhere=True, code=5,
        options=("--mount", "DIR/zeros:/usr/lib"),
    ),
    "GPU hook without a driver": ContainerFault(
        "Enroot's hook for NVIDIA's GPUs failed", "nvidia-smi", image="gpu.sqsh", everywhere=True, runtimes=("pyxis",)
    ),
    "image without a shell": ContainerFault(
        "has no shell that runs there", "/bin/sh", image="no-shell.sqsh", everywhere=True, runtimes=("pyxis",), code=5
    ),
    "image whose /etc/rc fails": ContainerFault(
        "/etc/rc of the image DIR/images/rc-fails.sqsh failed (cd: /work: No such file", "take it out",
        image="rc-fails.sqsh", everywhere=True, runtimes=("pyxis",), code=5,
    ),
    "image whose /etc/rc ends": ContainerFault(
        "failed (Enroot ended without a message", "take it out", image="rc-ends.sqsh", everywhere=True,
        runtimes=("pyxis",), code=5,
    ),
    "image without bash": ContainerFault(
        "has no shell that runs there (/bin/bash: No such file", "/bin/bash", image="no-bash.sqsh", everywhere=True,
        runtimes=("pyxis",), code=5,
    ),
    "Python without its libraries": ContainerFault(
        "does not run (error while loading shared libraries: libz", "libraries", image="no-library.sqsh",
        everywhere=True, runtimes=("pyxis",), code=5,
    ),
    "image without Python": ContainerFault(
        "has no python3", "Python 3.8", image="no-python.sqsh", everywhere=True, runtimes=("pyxis",), code=5
    ),
    "squashfuse: image not on the node": ContainerFault(
        _DAMAGED, "images verify", "DIR/images", runtimes=("pyxis",), squashfuse=True
    ),
    "squashfuse: image is no squashfs there": ContainerFault(
        _DAMAGED, "images verify", _IMAGE, "DIR/zeros", runtimes=("pyxis",), squashfuse=True
    ),
}  # fmt: skip
CASES = [(name, runtime) for name, fault in CONTAINER_FAULTS.items() for runtime in fault.runtimes]


if FOUND:

    @pytest.fixture(scope="module")
    def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
        directory = tmp_path_factory.mktemp("faults")
        (directory / "images").mkdir()
        (directory / "data/in").mkdir(parents=True)
        box_root = box_roots.ensure(DEFAULT_SLURM, lambda _line: None).path
        root = tree(box_root, directory / "tree")
        small = packed(root, directory / "images/small.sqsh")
        damaged(small, directory / "damaged")
        (directory / "zeros").write_bytes(bytes(small.stat().st_size))
        (directory / "half").write_bytes(small.read_bytes()[: small.stat().st_size // 2])
        killed = directory / "killed"
        killed.write_text('#!/bin/bash\n[ "$1" = -s ] || kill -KILL $$\n')
        killed.chmod(0o755)
        (root / "etc/environment").write_text("NVIDIA_VISIBLE_DEVICES=all\n")
        packed(root, directory / "images/gpu.sqsh")
        (root / "etc/environment").write_text("")
        for image, line in (("rc-fails", "cd /work || exit 1"), ("rc-ends", "exit 3")):
            (root / "etc/rc").write_text(f"{line}\n. /etc/rc.local\n")
            packed(root, directory / f"images/{image}.sqsh")
        (root / "etc/rc").unlink()
        (root / "usr/bin/bash").rename(directory / "bash")
        packed(root, directory / "images/no-bash.sqsh")
        (directory / "bash").rename(root / "usr/bin/bash")
        for library in root.glob("usr/lib/*/libz.so*"):
            library.unlink()
        packed(root, directory / "images/no-library.sqsh")
        (root / "usr/bin/python3").unlink()
        packed(root, directory / "images/no-python.sqsh")
        for shell in ("sh", "dash", "bash"):
            (root / "usr/bin" / shell).unlink()
        packed(root, directory / "images/no-shell.sqsh")
        return directory

    @pytest.fixture(scope="module")
    def benches(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Bench]]:
        """Whether Pyxis mounts images -> the box; both are up at once, and small."""
        made = {}
        try:
            for squashfuse, options in ((False, ()), (True, ("use_squashfuse=1",))):
                name = f"faults{'-fuse' * squashfuse}-{os.getpid()}"
                spec = box_spec(name, FOUND[0], tmp_path_factory.mktemp("enroot.conf.d"), *options)
                made[squashfuse] = Bench(box.up(spec), images)
            yield made
        finally:
            for bench in made.values():
                box.down(bench.cluster.name)

    @pytest.mark.parametrize(("name", "runtime"), CASES, ids=[f"{name}, {runtime}" for name, runtime in CASES])
    def test_the_verdict_names_cause_node_and_fix(
        benches: dict[bool, Bench], tmp_path: Path, name: str, runtime: str
    ) -> None:
        fault = CONTAINER_FAULTS[name]
        bench = benches[fault.squashfuse]
        verdict = judged(bench, fault, runtime, tmp_path)
        # Of nodes that all have it, the first to fail may end the others before they show it.
        place = r"(any node|dgx0[12])" if fault.everywhere else "dgx02"
        assert re.match(f"the container did not start on {place}: ", verdict["reasons"][0]), verdict
        assert bench.path(fault.says) in verdict["reasons"][0], verdict
        assert fault.fix in verdict["fix"], verdict

    def test_without_a_fault_it_runs(benches: dict[bool, Bench], tmp_path: Path) -> None:
        """The images and the box are good: what fails above fails by the fault."""
        for squashfuse in (False, True):
            good = ContainerFault("", "", squashfuse=squashfuse, code=0)
            assert judged(benches[squashfuse], good, "pyxis", tmp_path)["outcome"] == "ran"

    def test_a_plugin_that_cannot_start_on_one_node_ends_the_step(benches: dict[bool, Bench], tmp_path: Path) -> None:
        """And not the time limit of three minutes: the other node's ranks would wait."""
        fault = ContainerFault("", "", "/run/pyxis", "tmpfs:ro", runtimes=("pyxis",))
        started = time.monotonic()
        verdict = judged(benches[False], fault, "pyxis", tmp_path)
        says = r"rank.* left no exit record; srun reports: launch failed: Plugin initialization failed"
        assert re.match(says, verdict["reasons"][0]), verdict
        assert "runtime_path" in verdict["fix"]
        assert time.monotonic() - started < 100.0

    def judged(bench: Bench, fault: ContainerFault, runtime: str, directory: Path) -> dict[str, Any]:
        """The verdict on a job of four ranks on two nodes with this fault, as ``--json`` prints it."""
        site = extended(bench.cluster.site, directory, runtimes=[runtime])
        runner = Runner(site, directory / "runs", directory / "state", bench.cluster.bin_dir)
        shape = ("--recipe", "probe", "--gpus", "4", "--nodes", "2", "--time", "03:00")
        image = str(bench.directory / "images" / fault.image)
        words = [bench.path(word) for word in fault.options]
        target, (source, _, options) = bench.path(fault.on), bench.path(fault.source).partition(":")
        if target:
            bench.on_second_node("mkdir", "-p", target if source == "tmpfs" else str(Path(target).parent))
            how = ("-t", "tmpfs", "-o", options or "rw", "fault") if source == "tmpfs" else ("--bind", source)
            bench.on_second_node("mount", *how, target)
        try:
            said = runner("submit", *shape, "--image", image, *words, "--wait", "--json", code=fault.code).out
        finally:
            if target:
                bench.on_second_node("umount", "--lazy", target)
        verdict: dict[str, Any] = result(said)["verdict"]
        print(f"{runtime} | {verdict['reasons']} | {verdict['fix']} | {verdict['log']}")
        return verdict
