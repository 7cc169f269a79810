"""``--stage``: the image on each node's own disk before the ranks begin, whatever the runtime.

A runtime makes its step for an image at a placeholder path, which is replaced here by the path of the staged file.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runner.backends.runtimes import Runtime, leftovers
from runner.backends.runtimes.common import SHELL
from runner.core.errors import UsageError
from runner.model.plan import Plan
from runner.model.step import Argument, Export, StepSpec, Text, Var, library_file, text, texts

DIRECTORY = "runner_stage"  # variable of the batch script: the directory of this job on every node
_PREFIX = "gpu-runner-stage-"
_NAME = "/image.sqsh"
_PLACEHOLDER = "/\0image"  # no value of a user can contain a NUL
_SHELL = SHELL / "stage.sh"


def step(plan: Plan, runtime: Runtime) -> StepSpec:
    """The runtime's step, from the staged file where the plan stages.

    Raises:
        UsageError: the runtime takes no image file; or as the runtime's own step.
    """
    if not plan.stage:
        return runtime.step(plan)
    image = msgspec.structs.replace(plan.image, path=_PLACEHOLDER)
    made = runtime.step(msgspec.structs.replace(plan, image=image))
    launcher, command = (tuple(map(_staged, words)) for words in (made.launcher, made.command))
    if made.at_end or (launcher, command) == (made.launcher, made.command):
        why = f"{plan.runtime} does not start from an image file, so there is nothing to stage"
        raise UsageError(why, where="--stage", fix="leave it out")
    copy = (
        *library_file(_SHELL),
        (Var(DIRECTORY),),
        *leftovers.known(plan),
        *texts(plan.image.path, str(plan.image.size_bytes), plan.image.sha256),
    )
    return msgspec.structs.replace(
        made,
        prelude=(*made.prelude, Export(DIRECTORY, (Text(f"{plan.stage}/{_PREFIX}"), *leftovers.job_of(plan)))),
        once_a_node=(*copy, *made.once_a_node),
        launcher=launcher,
        command=command,
        at_end=(*texts("rm", "-rf", "--"), (Var(DIRECTORY),)),
        does=f"copies the image to its disk{', ' if made.does else ''}{made.does}",
        files=(_SHELL, leftovers.FILE, *(path for path in made.files if path != leftovers.FILE)),
    )


def _staged(word: Argument) -> Argument:
    return tuple(part for old in word for part in _parts(old))


def _parts(part: Text | Var) -> Iterator[Text | Var]:
    if isinstance(part, Var) or _PLACEHOLDER not in part.value:
        yield part
        return
    before, _, after = part.value.partition(_PLACEHOLDER)
    yield from text(before) if before else ()
    yield from (Var(DIRECTORY), Text(_NAME + after))
