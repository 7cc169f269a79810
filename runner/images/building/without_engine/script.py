"""The steps as a shell script, for a builder that runs commands in a container's writable root (Enroot).

CONTEXT/            the build's context, mounted
STAGES/NAME/        the root of an earlier stage, mounted
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from runner.images.building.without_engine.steps import Arg, Copy, Env, Run, Stage, Step

MOUNTED_AT = "mnt/gpu-runner"  # below it are all mounts of a build: no part of the image
CONTEXT = f"/{MOUNTED_AT}/context"
STAGES = f"/{MOUNTED_AT}/stages"


def rendered(stage: Stage, is_directory: Callable[[str], bool]) -> str:
    """The whole script of one stage; it announces its steps in the form that engines use (``buildlog``).

    Args:
        is_directory: whether a source of the context is one.
    """
    done = [step for step in stage.steps if isinstance(step, (Copy, Run, Arg, Env))]
    lines = ["#!/bin/sh", f"# Stage {stage.name or 'of the image'}, on {stage.base}", "set -eu"]
    for number, step in enumerate(done, 1):
        lines.append(f"printf '%s\\n' {shlex.quote(f'Step {number}/{len(done)} : {step_text(step)}')}")
        lines += _commands(step, is_directory)
    return "\n".join(lines) + "\n"


def source_stages(stage: Stage) -> tuple[str, ...]:
    """The earlier stages that a stage copies from."""
    found = [step.stage for step in stage.steps if isinstance(step, Copy) and step.stage]
    return tuple(dict.fromkeys(found))


def step_text(step: Step) -> str:
    """A step as an instruction of a Dockerfile."""
    match step:
        case Run(command):
            return f"RUN {command}"
        case Copy(sources, target, stage):
            return " ".join(["COPY", *([f"--from={stage}"] if stage else []), *sources, target])
    return f"{type(step).__name__.upper()} {step.name}={step.value}"


def of_shell(command: str) -> str:
    """A RUN step as an engine runs it: in a separate shell, whose exit status counts whatever ``&&`` it contains."""
    return f"/bin/sh -c {shlex.quote(command)}"


def _commands(step: Step, is_directory: Callable[[str], bool]) -> Iterator[str]:
    if isinstance(step, (Arg, Env)):
        yield f"export {step.name}={shlex.quote(step.value)}"
    elif isinstance(step, Run):
        yield of_shell(step.command)
    elif isinstance(step, Copy):
        target = shlex.quote(step.target.rstrip("/"))
        yield f"mkdir -p {target}"
        for source in step.sources:
            whole = source.endswith("/") if step.stage else is_directory(source)
            path = f"{STAGES}/{step.stage}{source}" if step.stage else f"{CONTEXT}/{source}"
            yield f"cp -R {_globbed(path.rstrip('/'))}{'/.' if whole else ''} {target}/"


def _globbed(source: str) -> str:
    """Quoted but for its stars."""
    return "*".join(shlex.quote(part) if part else "" for part in source.split("*"))
