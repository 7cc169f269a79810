"""Faults planted under the real Pyxis and the real Enroot: the verdict names cause, node and fix.

Only where a prefix on this machine holds both (``tests/support/sites/enroot_prefix.py``).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner import box
from runner.box import DEFAULT_SLURM, root
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.sites import python_image
from tests.support.sites.container_faults import CONTAINER_FAULTS, ContainerFault
from tests.support.sites.enroot_prefix import FOUND, box_spec

CASES = [(name, runtime) for name, fault in CONTAINER_FAULTS.items() for runtime in fault.runtimes]


@dataclass(frozen=True)
class Bench:
    """A box, and the directory of images and of what is mounted over them."""

    cluster: box.Box
    directory: Path

    def on_second_node(self, *command: str) -> None:
        """Run it there, in the namespace that the node's jobs see."""
        subprocess.run([self.cluster.bin_dir / "srun", "-w", "dgx02", *command], check=True, timeout=60)

    def path(self, text: str) -> str:
        return text.replace("DIR", str(self.directory))


if FOUND:

    @pytest.fixture(scope="module")
    def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Good and bad images, and the directory that a job mounts."""
        directory = tmp_path_factory.mktemp("faults")
        (directory / "images").mkdir()
        (directory / "data/in").mkdir(parents=True)
        box_root = root.ensure(DEFAULT_SLURM, lambda _line: None).path
        tree = python_image.tree(box_root, directory / "tree")
        small = python_image.packed(tree, directory / "images/small.sqsh")
        python_image.damaged(small, directory / "damaged")
        (directory / "zeros").write_bytes(bytes(small.stat().st_size))
        (directory / "half").write_bytes(small.read_bytes()[: small.stat().st_size // 2])
        killed = directory / "killed"
        killed.write_text('#!/bin/bash\n[ "$1" = -s ] || kill -KILL $$\n')
        killed.chmod(0o755)
        (tree / "etc/environment").write_text("NVIDIA_VISIBLE_DEVICES=all\n")
        python_image.packed(tree, directory / "images/gpu.sqsh")
        (tree / "etc/environment").write_text("")
        (tree / "usr/bin/python3").unlink()
        python_image.packed(tree, directory / "images/no-python.sqsh")
        for shell in ("sh", "dash", "bash"):
            (tree / "usr/bin" / shell).unlink()
        python_image.packed(tree, directory / "images/no-shell.sqsh")
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

    def judged(bench: Bench, fault: ContainerFault, runtime: str, directory: Path) -> dict[str, Any]:
        """The verdict on a job of four ranks on two nodes with this fault, as ``--json`` prints it."""
        site = directory / "site.yaml"
        site.write_bytes(msgspec.yaml.encode({"name": "px", "extends": str(bench.cluster.site), "runtimes": [runtime]}))
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
