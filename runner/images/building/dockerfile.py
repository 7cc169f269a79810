"""What a Dockerfile does, as data: so that every builder does the same, and the Dockerfile is written once.

Read are the plain instructions ARG, FROM, LABEL, ENV, COPY and RUN; anything else is refused, never lost in silence.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from runner.core.errors import UsageError
from runner.core.files import sha256
from runner.images.packing import rootfs
from runner.images.packing.mksquashfs import Source
from runner.images.writable_root import tree_image

_INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_NAME = re.compile(r"[A-Za-z_]\w*")
BROUGHT = ".gpu-runner-build"  # below it is what a build brings into a root: no part of the image
ARCHIVES = ("docker-archive:", "oci-archive:")  # bases that are files


@dataclass(frozen=True)
class Copy:
    """Files into the image. sources: of the build's context (may hold ``*``), or of the stage that ``stage`` names."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""


@dataclass(frozen=True)
class Run:
    """A line for the image's /bin/sh."""

    command: str


@dataclass(frozen=True)
class _Setting:
    name: str
    value: str


class Arg(_Setting):
    """A variable that the RUN steps after it see, and no container of the image."""


class Env(_Setting):
    """A variable of the image."""


class Label(_Setting):
    """A label of the image."""


Step = Copy | Run | Arg | Env | Label


@dataclass(frozen=True)
class Stage:
    """One stage: its base image, its name (empty for none), its steps."""

    base: str
    name: str
    steps: tuple[Step, ...]


def parse_stages(text: str, args: Mapping[str, str]) -> tuple[Stage, ...]:
    """The stages of a Dockerfile with these build arguments (over its defaults); the last one is the image. An ARG
    without a value is left out, as an engine leaves it unset.

    Raises:
        UsageError: an instruction that is not one of the plain ones, or an argument that no ARG declares.
    """
    unused = set(args)
    first: dict[str, str] = {}  # before the first stage
    known = first  # of the stage that is read
    stages: list[tuple[str, str, list[Step]]] = []
    for line, (name, rest) in _instructions(text):
        where = f"Dockerfile, line {line}"
        if name == "ARG":
            variable, _, default = rest.partition("=")
            unused.discard(variable)
            usual = _value(" ".join(shlex.split(default)), known, where) if default else first.get(variable)
            value = args.get(variable, usual)
            if value is not None:
                known[variable] = value
                if stages:
                    stages[-1][2].append(Arg(variable, value))
        elif name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stages.append((_value(base, first, where), alias.strip(), []))
            known = {}
        elif not stages:
            raise UsageError(f"{name} stands before FROM", where=where)
        else:
            for step in _steps(name, rest, known, where):
                stages[-1][2].append(step)
                if isinstance(step, Env):
                    known[step.name] = step.value
    if unused:
        raise UsageError(f"the Dockerfile has no argument {', '.join(sorted(unused))}", where="build arguments")
    return tuple(Stage(base, name, tuple(steps)) for base, name, steps in stages)


def environment(stage: Stage) -> dict[str, str]:
    """Variables that the stage adds to its base's."""
    return {step.name: step.value for step in stage.steps if isinstance(step, Env)}


def labels(stage: Stage) -> dict[str, str]:
    """Labels that the stage adds to its base's."""
    return {step.name: step.value for step in stage.steps if isinstance(step, Label)}


def _instructions(text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """(line number, (instruction, its rest with continued lines joined))."""
    held, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not held and not line.strip()):
            continue
        began = began if held else number
        if line.endswith("\\"):
            held += line[:-1]
            continue
        match = _INSTRUCTION.fullmatch((held + line).strip())
        if match is None:
            raise UsageError(f"no instruction: {line!r}", where=f"Dockerfile, line {began}")
        yield began, (match[1], match[2])
        held = ""


def _steps(name: str, rest: str, known: Mapping[str, str], where: str) -> Iterator[Step]:
    if name == "RUN":
        if rest.startswith(("--", "[")):
            raise UsageError("RUN takes no option and no list here", where=where)
        yield Run(rest)
    elif name == "COPY":
        words = rest.split()
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        if len(words) < 2 or words[0].startswith(("--", "[")):
            raise UsageError("COPY takes --from, sources and a target here", where=where)
        yield Copy(tuple(words[:-1]), words[-1], stage)
    elif name in ("ENV", "LABEL"):
        kind = Env if name == "ENV" else Label
        for word in shlex.split(rest):
            key, equals, value = word.partition("=")
            if not equals or (name == "ENV" and not _NAME.fullmatch(key)):
                raise UsageError(f"{name} takes NAME=VALUE here", where=where)
            yield kind(key, _value(value, known, where))
    else:
        raise UsageError(
            f"{name} is none of the plain instructions that every builder can do",
            where=where,
            fix="write it with ARG, FROM, LABEL, ENV, COPY and RUN",
        )


def _value(text: str, known: Mapping[str, str], where: str) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in known:
            raise UsageError(f"{name} has no value here", where=where)
        return known[name]

    return _VARIABLE.sub(one, text)


def stage_script(stage: Stage, is_directory: Callable[[str], bool]) -> str:
    """The whole script of one stage; it announces its steps in the form that engines use (``buildlog``). is_directory:
    whether a source of the context is one.
    """
    done = [step for step in stage.steps if isinstance(step, (Copy, Run, Arg, Env))]
    lines = ["#!/bin/sh", f"# Stage {stage.name or 'of the image'}, on {stage.base}", "set -eu"]
    for number, step in enumerate(done, 1):
        lines.append(f"printf '%s\\n' {shlex.quote(f'Step {number}/{len(done)} : {step_text(step)}')}")
        if isinstance(step, (Arg, Env)):
            lines.append(f"export {step.name}={shlex.quote(step.value)}")
        elif isinstance(step, Run):
            lines.append(in_own_shell(step.command))
        else:
            target = shlex.quote(step.target.rstrip("/"))
            lines.append(f"mkdir -p {target}")
            for source in step.sources:
                whole = source.endswith("/") if step.stage else is_directory(source)
                path = f"/{BROUGHT}/" + (f"stages/{step.stage}{source}" if step.stage else f"context/{source}")
                # Quoted but for its stars.
                globbed = "*".join(shlex.quote(part) if part else "" for part in path.rstrip("/").split("*"))
                lines.append(f"cp -R {globbed}{'/.' if whole else ''} {target}/")
    return "\n".join(lines) + "\n"


def brought_directories(stage: Stage) -> tuple[tuple[str, str], ...]:
    """What a stage copies from earlier ones: the stage, and the directory below its root, relative."""
    copied = [(step.stage, source) for step in stage.steps if isinstance(step, Copy) for source in step.sources]
    return tuple(dict.fromkeys((origin, source.rpartition("/")[0].strip("/")) for origin, source in copied if origin))


def step_text(step: Step) -> str:
    """A step as an instruction of a Dockerfile."""
    match step:
        case Run(command):
            return f"RUN {command}"
        case Copy(sources, target, stage):
            return " ".join(["COPY", *([f"--from={stage}"] if stage else []), *sources, target])
    return f"{type(step).__name__.upper()} {step.name}={step.value}"


def in_own_shell(command: str) -> str:
    """A RUN step as an engine runs it: in a separate shell, whose exit status counts whatever ``&&`` it contains."""
    return f"/bin/sh -c {shlex.quote(command)}"


@dataclass(frozen=True)
class ResolvedBase:
    """The base image as a builder has it: digest of its manifest in a registry, else of its content."""

    reference: str
    digest: str
    path: Path | None = None


@dataclass(frozen=True)
class BuildSpec:
    """An image to build.

    Attributes:
        stages: the Dockerfile's, all values put in. files: the build's context as (name, path).
        labels: of the image, its stages' own included. inputs: hash of everything that goes into it.
    """

    name: str
    base: ResolvedBase
    stages: tuple[Stage, ...]
    files: tuple[tuple[str, Path], ...]
    labels: Mapping[str, str]
    inputs: str

    def is_directory(self, source: str) -> bool:
        """Whether a source of COPY is a directory of the context."""
        return any(name.startswith(source.rstrip("/") + "/") for name, _ in self.files)

    def tree(self, root: Path, config: rootfs.Config, left_out: frozenset[str] = frozenset()) -> Source:
        """The finished image below ``root``. Its id is, as an engine's, a hash of its content and time."""
        created = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        about = msgspec.json.encode({"inputs": self.inputs, "created": created, "config": config})
        digest = f"sha256:{sha256(about)}"
        return tree_image(root, self.name, digest, created, config, left_out)


def write_context(files: Sequence[tuple[str, Path]], directory: Path) -> None:
    """The build's context as files below ``directory``."""
    for name, path in files:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
