"""What every runtime needs: the launcher's words, and the shell that starts them in the container."""

from __future__ import annotations

from collections.abc import Callable

from runner.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.request import Mount
from runner.model.step import Export, Word, texts

WORKDIR = f"{RESULTS}/recipe"

# Where a runtime would let the image's value win, or could not carry a value, it travels under a prefix, and the
# shell in the container gives it its name back: nothing stands on a command line, and every byte arrives.
PREFIX = "RUNNER_ENV_"
_RENAME = (
    f'for runner_i in "${{!{PREFIX}@}}"; do export "${{runner_i#{PREFIX}}}=${{!runner_i}}"; '
    'unset -v "$runner_i"; done; exec "$@"'
)


def launched_program(plan: Plan, *options: str) -> tuple[Word, ...]:
    """The launcher, with further options of its own, and below it the program, as seen in the container."""
    return texts(
        "python3",
        "-u",
        f"{RESULTS}/lib/launch.py",
        "--run",
        RESULTS,
        "--world",
        str(plan.tasks),
        "--local-sizes",
        ",".join(str(count) for count in plan.tasks_per_node),
        *options,
        "--",
        *plan.program,
    )


def shell(*, rename: bool) -> tuple[Word, ...]:
    """A bash that replaces itself by its arguments, after giving prefixed variables their names if ``rename``.

    A bash, because NGC images set BASH_ENV to the file that enables CUDA's forward compatibility, and only bash reads
    it.
    """
    return texts("/bin/bash", "-c", _RENAME if rename else 'exec "$@"', "bash")


def prefixed(name: str, value: Word) -> Export:
    """An export under the prefix."""
    return Export(PREFIX + name, value)


def expressible_mounts(plan: Plan, problem: Callable[[str], str | None]) -> tuple[Mount, ...]:
    """The plan's mounts, of which the runtime has no problem with a path.

    Raises:
        UsageError: the runtime has a problem with a path.
    """
    for mount in plan.mounts:
        for path in (mount.source, mount.target):
            why = problem(path)
            if why:
                raise UsageError(why, where="--mount", mend="mount a directory above it, or make a link to it")
    return plan.mounts
