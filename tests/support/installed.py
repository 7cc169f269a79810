"""The distributions, built as for a release, and the command line installed from them in an environment of its own."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import ran
from tests.support.squashfs import SUPERBLOCK

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TIMEOUT_S = 400


@dataclass(frozen=True)
class Distributions:
    """A wheel, an sdist, and the wheel that the sdist alone gives."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel and what it needs; commands run in ``/`` with nearly no variables."""

    bin_dir: Path
    home: Path

    def __call__(self, *words: str | Path, code: int, **env: str) -> str:
        """The standard output of the installed ``gpu-runner``."""
        return self.output("gpu-runner", *words, code=code, **env)

    def output(self, program: str, *words: str | Path, code: int = 0, **env: str) -> str:
        own = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.home), **env}
        return ran([self.bin_dir / program, *words], code=code, timeout_s=TIMEOUT_S, cwd="/", env=own).out


def build(directory: Path) -> Distributions:
    """Both distributions of this checkout, by the build backend that it pins, and a wheel of the unpacked sdist."""
    tools = environment(sys.executable, directory / "tools")
    backend = re.search(r'requires = \["(hatchling==[0-9.]+)"\]', (CHECKOUT / "pyproject.toml").read_text())
    assert backend is not None, "the build backend is pinned"
    _pip(tools, "install", backend[1])
    _hatchling(tools, CHECKOUT, directory / "dist", "wheel", "sdist")
    (sdist,), (wheel,) = ((directory / "dist").glob(pattern) for pattern in ("*.tar.gz", "*.whl"))
    (directory / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", sdist, "-C", directory / "unpacked"], check=True, timeout=TIMEOUT_S)
    (source,) = (directory / "unpacked").iterdir()
    _hatchling(tools, source, directory / "again", "wheel")
    (again,) = (directory / "again").glob("*.whl")
    return Distributions(wheel, sdist, again)


def install(wheel: Path, python: str, directory: Path) -> Installed:
    bin_dir = environment(python, directory / "environment")
    _pip(bin_dir, "install", str(wheel))
    home = directory / "home"
    home.mkdir()
    return Installed(bin_dir, home)


def environment(python: str, directory: Path) -> Path:
    subprocess.run([python, "-m", "venv", directory], check=True, timeout=TIMEOUT_S)
    return directory / "bin"


def pythons() -> list[str]:
    """The interpreters of this machine that we support and that can make environments; at least our own."""
    usable = []
    for version in PYTHONS:
        path = shutil.which(f"python{version}")
        words = [path or "false", "-c", "import ensurepip, venv"]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            usable.append(words[0])
    return usable or [sys.executable]


def names(archive: Path) -> dict[str, int]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {entry.filename: entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()}
    with tarfile.open(archive) as sdist:
        return {entry.name.partition("/")[2]: entry.mode for entry in sdist if entry.isfile() or entry.issym()}


def kept_files(*folders: str) -> set[str]:
    """The files below these folders of the checkout that belong to it: tracked, or new and not ignored."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *folders]
    said = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return {name for name in said.split("\0") if name and (CHECKOUT / name).exists()}


def _hatchling(tools: Path, source: Path, out: Path, *targets: str) -> None:
    words = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [tools / "python", "-m", "hatchling", "build", "-d", out, *words], cwd=source, check=True, timeout=TIMEOUT_S,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def _pip(bin_dir: Path, *words: str) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run(
        [bin_dir / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", *words],
        check=True, timeout=TIMEOUT_S, env=clean,
    )  # fmt: skip


def check_everyday_verbs(installed: Installed, directory: Path) -> None:
    """Help, sites, pages, a script that is the checkout's to the byte, an error of a verb that needs containers/."""
    assert "submit" in installed("--help", code=0)
    assert "technion" in installed("site", "list", code=0)
    assert "wrong-nodes" in installed("docs", "wrong-nodes", code=0)
    image = directory / "an image.sqsh"
    image.write_bytes(SUPERBLOCK)
    words = ["submit", "--gpus", "13", "--site", "technion", "--dry-run"]
    words += ["--image", str(image), "--runs", str(directory)]
    for recipe in ("horovod-pytorch", "probe"):
        assert installed(*words, "--recipe", recipe, code=0) == of_the_checkout(*words, "--recipe", recipe)
    assert installed("build", "pytorch", "--engine", "unix:///nowhere.sock", code=8) == ""


def of_the_checkout(*words: str) -> str:
    here = Installed(Path(sys.executable).parent, Path.home())
    program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from runner.cli import main; main({list(words)!r})"
    return here.output("python", "-c", program)
