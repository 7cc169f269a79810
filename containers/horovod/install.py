"""Install Horovod's wheel, what it requires, and the Keras that it can synchronise, into this base.

    install.py --framework tensorflow [--wheel /opt/runner/wheel]

What the base has is left as it is. What it lacks comes by ``requirements.txt`` and ``keras.txt``, every file checked
by its hash before anything of it runs; only where the base's own constraint file (PIP_CONSTRAINT) names a package does
pip choose what that allows.
Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

import fits
from frameworks import FRAMEWORKS, ask_framework, release

HERE = Path(__file__).resolve().parent
# What horovod 0.28.1's setup.py requires, with cffi (for PyTorch) and cffi's own.
REQUIRED = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "pycparser")
BUILD_TOOLS = ("setuptools", "wheel")
PACKAGES = "packages"  # directory of those that were collected for a build without a network


def without_network() -> None:
    """Let pip take packages from those that came with the build's context alone, where these are there.

    What ``env wheels`` collected lies beside this file while a wheel is made, and beside the wheel afterwards.
    """
    places = [place for place in (HERE / PACKAGES, HERE / "wheel" / PACKAGES) if place.is_dir()]
    if places:
        links = " ".join(place.as_uri() for place in places)
        os.environ.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1", PIP_FIND_LINKS=links)


def hand_on(target: Path) -> None:
    """Copy what an installation may need of these packages, for the next stage of the image's build.

    Raises:
        SystemExit: they are for another Python or machine.
    """
    collected = HERE / PACKAGES
    if collected.is_dir():
        fits.ensure(collected)
        (target / PACKAGES).mkdir(parents=True, exist_ok=True)
        for path in collected.iterdir():
            if plain(path.name.split("-")[0]) in (*REQUIRED, "setuptools", "tf-keras"):
                shutil.copy(str(path), str(target / PACKAGES))


# No name that is chosen in such a call may be constrained by the base; overrides pip's configuration files, too.
UNCONSTRAINED = {"PIP_CONSTRAINT": os.devnull}
_CAUSE = re.compile(r"CMake Error|(?:^|\s)(?:fatal )?error:|\*\*\* \[.*\] Error ")
_ABOUT = 3  # lines that are shown from the first error on: CMake says what is wrong in the next one


def allow_system_packages(place: str) -> None:
    """In an image, Python's packages are the image's own to change, whatever its distribution marks (PEP 668)."""
    if place == "image":
        os.environ.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")


def packages() -> Path:
    """The directory that pip installs libraries into."""
    return Path(sysconfig.get_paths()["platlib"])


def succeeds(words: list[str], **more: object) -> bool:
    """Run a program with its output in the build's log."""
    print("+ " + " ".join(words), flush=True)
    return subprocess.call(words, **more) == 0  # type: ignore[call-overload, no-any-return]


def compile_with(words: list[str], environment: dict[str, str]) -> str:
    """Run a compile with its output in the build's log; returns the line in which Horovod's CMake shows nvcc's flags.

    Raises:
        SystemExit: it failed; the message has the first error, as pip's own clean-up is what its last lines are about.
    """
    print("+ " + " ".join(words), flush=True)
    flags, cause = "", []
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, errors="replace") as child:  # fmt: skip
        assert child.stdout is not None
        for line in child.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if "HVD_NVCC_COMPILE_FLAGS" in line:
                flags = line.strip()
            if (cause and len(cause) < _ABOUT and line.strip()) or (not cause and _CAUSE.search(line)):
                cause.append(line.strip())
    if child.returncode != 0:
        first = "; the first error: " + " | ".join(cause) if cause else ""
        raise SystemExit(f"{words[0]} failed with exit code {child.returncode}{first}")
    return flags


def call(words: list[str], **more: object) -> None:
    """Run a program with its output in the build's log; its failure fails the build."""
    print("+ " + " ".join(words), flush=True)
    code = subprocess.call(words, **more)  # type: ignore[arg-type]
    if code != 0:
        raise SystemExit(f"{words[0]} failed with exit code {code}")


def pip(*words: str, **more: object) -> None:
    """pip of this Python; the base's own constraint file (PIP_CONSTRAINT) holds as pip reads it itself."""
    call(pip_words(*words), **more)


def pip_words(*words: str) -> list[str]:
    return [sys.executable, "-m", "pip", *words, "--disable-pip-version-check"]


def plain(name: str) -> str:
    """A project's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained() -> set[str]:
    """Projects that the base's constraint file names."""
    lines: list[str] = []
    for place in os.environ.get("PIP_CONSTRAINT", "").split():
        if Path(place).is_file():
            lines += Path(place).read_text(encoding="utf-8", errors="replace").splitlines()
    names = (re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line) for line in lines)
    return {plain(name.group(1)) for name in names if name}


def lacking(names: tuple[str, ...]) -> list[str]:
    """Those that are not installed."""
    have = {plain(each.metadata["Name"] or "") for each in metadata.distributions()}
    return [name for name in names if name not in have]


def pinned(text: str, names: list[str]) -> str:
    """The lines of ``requirements.txt`` (each with its markers and hashes) that belong to these projects."""
    blocks = re.findall(r"(?m)^\S+==.*(?:\n\s+--hash=.*)*\n?", text)
    return "".join(block for block in blocks if plain(block.partition("==")[0]) in names)


def dependencies(*, build: bool = False) -> None:
    """Install what Horovod requires and the base lacks; ``build``: what its setup.py needs to run, too."""
    wanted = lacking((*REQUIRED, *(BUILD_TOOLS if build else ("setuptools",))))
    free = [name for name in wanted if name not in constrained()]
    held = [name for name in wanted if name not in free]
    text = pinned((HERE / "requirements.txt").read_text(), free)
    if text:
        by_hash("install", text)
    if held:
        pip("install", "--no-cache-dir", "--quiet", "--no-deps", *held)


def by_hash(verb: str, text: str, *words: str) -> None:
    """``pip install`` or ``pip download`` of these lines of requirements, each with its hashes.

    pip compares a file with its hash before it runs or unpacks anything of it (secure installs, in its manual). What
    builds a source it would fetch without any hash: so wheels are taken, whatever the base's settings want, and where
    there is none, what the base has must build the source.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        # No name in it is constrained, and pip cannot hold hashes against a constraint file that has none.
        checked = ("--require-hashes", "--no-build-isolation", "--no-binary", ":none:")
        quiet = ("--no-cache-dir", "--quiet", "--no-deps")
        pip(verb, *quiet, *checked, *words, "-r", file.name, env={**os.environ, **UNCONSTRAINED})


def keras_of(version: str) -> str:
    """The requirement, with its hash, of the Keras 2 that goes with this TensorFlow.

    Raises:
        SystemExit: none is known.
    """
    major, minor = release(version)
    blocks = re.findall(r"(?m)^tf_keras==.*(?:\n\s+--hash=.*)*\n?", (HERE / "keras.txt").read_text())
    for block in blocks:
        if block.startswith(f"tf_keras=={major}.{minor}."):
            return str(block)
    raise SystemExit(
        f"no tf_keras is known for TensorFlow {version}: take a base that has it, or add its line with its hash to "
        f"{HERE / 'keras.txt'}"
    )


def keras(framework: str) -> None:
    """Ensure that ``TF_USE_LEGACY_KERAS=1``, where set, finds Keras 2: a separate package from TensorFlow 2.16 on."""
    if framework != "tensorflow" or os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        return
    program = "import tensorflow as tf; tf.keras.Model; tf.keras.optimizers.SGD"
    done = subprocess.run([sys.executable, "-c", program], env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"), check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    if done.returncode != 0:
        # It requires `tensorflow`, which the base has, under whatever name.
        by_hash("install", keras_of(str(ask_framework(FRAMEWORKS["tensorflow"])["version"])))


def main() -> None:
    parser = argparse.ArgumentParser(description="Install Horovod and what it needs into this base.")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--wheel", type=Path, default=HERE / "wheel", help="directory of the wheel; may hold none")
    parser.add_argument("--place", default="image", choices=("image", "environment"))
    asked = parser.parse_args()
    allow_system_packages(asked.place)
    without_network()
    dependencies()
    for wheel in sorted(asked.wheel.glob("*.whl")):
        # Forced, as the base may ship a broken one of the same version.
        env = {**os.environ, **UNCONSTRAINED}  # a base may pin its own Horovod
        pip("install", "--no-cache-dir", "--no-deps", "--force-reinstall", str(wheel), env=env)
        wheel.unlink()
    keras(asked.framework)
    shutil.rmtree(str(asked.wheel / PACKAGES), ignore_errors=True)


if __name__ == "__main__":
    main()
