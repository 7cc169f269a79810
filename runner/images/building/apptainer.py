"""Apptainer or SingularityCE: the steps as a definition file, and a SIF made of it; it pulls the base by itself."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runner.core import ownership
from runner.core.errors import RefusedError, UsageError
from runner.core.progress import Progress
from runner.images import reference as references
from runner.images.building.dockerfile import (
    ARCHIVES,
    Arg,
    BuildSpec,
    Copy,
    Env,
    Label,
    ResolvedBase,
    Run,
    Stage,
    environment,
    in_own_shell,
    step_text,
    write_context,
)
from runner.images.conversion import sif
from runner.images.conversion.publishing import publish
from runner.images.conversion.sif import sif_maker
from runner.images.packing import rootfs
from runner.images.sources import archives, manifests
from runner.images.sources.registry import Registry
from runner.images.writable_root import Tool, work_directory

# Where Apptainer keeps the variables of a base that came from Docker; 1.4 has set them in %post already.
_BASE_VARIABLES = "/.singularity.d/env/10-docker2singularity.sh"


def definition(stages: Sequence[Stage], context: Path, is_directory: Callable[[str], bool], head: Sequence[str]) -> str:
    """The whole file; ``head``: comment lines for its top. RefusedError: the format cannot express a path or a value.

    Args:
        context: the directory that COPY copies from, absolute. is_directory: whether a source in it is one.
    """
    texts = ["".join(f"# {line}\n" for line in head)]
    for number, stage in enumerate(stages):
        kind = next((scheme for scheme in ARCHIVES if stage.base.startswith(scheme)), "docker:")
        lines = [f"Bootstrap: {kind[:-1]}", f"From: {_plain(stage.base.removeprefix(kind))}"]
        lines += [f"Stage: {stage.name or f'stage{number}'}", *_copied_files(stage, context, is_directory)]
        variables = [f"    export {step.name}={_shell(step.value)}" for step in stage.steps if isinstance(step, Env)]
        labels = [
            f"    {step.name} {_line(step.value)}" for step in stage.steps if isinstance(step, Label) and step.value
        ]
        lines += ["", "%environment", *variables] if variables else []
        lines += ["", "%labels", *labels] if labels else []
        lines += ["", "%post", f"    if [ -f {_BASE_VARIABLES} ]; then . {_BASE_VARIABLES}; fi"]
        done = [step for step in stage.steps if isinstance(step, (Run, Arg, Env))]
        for place, step in enumerate(done, 1):
            if isinstance(step, Run):
                title = _shell(f"Step {place}/{len(done)} : {step_text(step)}")
                lines += [f"    printf '%s\\n' {title}", f"    {_line(in_own_shell(step.command))}"]
            else:
                lines.append(f"    export {step.name}={_shell(step.value)}")
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


def _copied_files(stage: Stage, context: Path, is_directory: Callable[[str], bool]) -> Iterator[str]:
    """COPY steps; all of them come before %post. A directory's content is copied, as COPY does it."""
    for step in stage.steps:
        if isinstance(step, Copy):
            yield from ("", f"%files from {step.stage}" if step.stage else "%files")
            for source in step.sources:
                whole = source.endswith("/") if step.stage else is_directory(source)
                path = source if step.stage else str(context / source)
                yield f"    {_plain(path.rstrip('/'))}{'/*' if whole else ''} {_plain(step.target.rstrip('/'))}/"


def _shell(value: str) -> str:
    return shlex.quote(_line(value))


def _line(text: str) -> str:
    """The text; refused if it would end the line or start one of Apptainer's templates."""
    if "\n" in text or "{{" in text:
        raise RefusedError(f"a definition file cannot contain {text!r}", fix="leave out newlines and {{")
    return text


def _plain(path: str) -> str:
    if any(letter.isspace() or letter in "\"'" for letter in path):
        raise RefusedError(
            f"a definition file cannot name {path!r}", where=path, fix="use a path without blanks and quotes"
        )
    return path


def base(reference: str, progress: Progress) -> ResolvedBase:
    """The base's digest; Apptainer fetches it in the build. RefusedError: no builder is here, there is no such image,
    or its registry wants a login. UsageError: an archive is not there, or another user could exchange it.
    """
    if reference.startswith(ARCHIVES):
        kind, _, text = reference.partition(":")
        place, image = archives.from_file(kind, text, manifests.platform(None))
        if whose := ownership.exchangeable_by(place, used=True):
            what, fix = f"this archive is {whose}, and Apptainer reads it later", "copy it to a place of your own"
            raise UsageError(what, where=str(place), fix=f"{fix}; {ownership.way_out(place, whose)}")
        return ResolvedBase(reference, image.digest, place)
    parsed = references.parse(reference)
    return ResolvedBase(reference, parsed.digest or Registry(parsed, progress.line).resolve(parsed.tag))


def built(spec: BuildSpec, tool: Tool, progress: Progress) -> Path:
    """Build the image into the store; the variables that it has from its base are known to the SIF alone."""
    with work_directory() as work:
        write_context(spec.files, work)
        text = definition(spec.stages, work, spec.is_directory, (f"{spec.name}, from its Dockerfile",))
        file = work / "image.def"
        file.write_text(text, "utf-8")
        options = list(tool.options)
        if spec.base.path is None:
            options += sif.without_tls(references.parse(spec.base.reference))
        config = rootfs.Config(environment=environment(spec.stages[-1]), labels=spec.labels)

        def write(out: Path) -> None:
            sif.apptainer_build([*options, str(out), str(file)], progress.line, where=f"definition file of {spec.name}")

        return publish(sif_maker(spec.tree(work, config), write), progress).image.path
