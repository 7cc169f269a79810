"""Charliecloud: ``ch-run`` straight from the squashfs, with no privilege (options as in 0.31)."""

from __future__ import annotations

from runner.errors import UsageError
from runner.model.plan import RESULTS, Plan
from runner.model.step import RENDEZVOUS, RUN_DIRECTORY, Export, StepSpec, Text, Var, Word, text, texts
from runner.runtimes.common import WORKDIR, launched_program

# ch-run --set-env lets the image's values win over the job's. The job's travel under a prefix, and the shell in the
# container gives them their names back: no value stands on a command line, and every byte arrives.
_PREFIX = "RUNNER_ENV_"
_RENAME = (
    f'for runner_i in "${{!{_PREFIX}@}}"; do export "${{runner_i#{_PREFIX}}}=${{!runner_i}}"; '
    'unset -v "$runner_i"; done; exec "$@"'
)


def mount_problem(path: str) -> str | None:
    """``ch-run --bind`` splits at ':' and knows no escape."""
    return f"Charliecloud cannot mount a path with ':' in it: {path!r}" if ":" in path else None


def step(plan: Plan) -> StepSpec:
    """Every rank mounts the image itself; the directory below which it does so is made once a node.

    Left to the ranks, they race for it, and some fail (0.31).
    """
    return StepSpec(
        prelude=(
            *(Export(f"{_PREFIX}{name}", text(value)) for name, value in plan.env),
            *(Export(f"{_PREFIX}{name}", (Var(name),)) for name in RENDEZVOUS),
        ),
        once_a_node=(*texts("mkdir", "-p"), (Text("/var/tmp/"), Var("USER"), Text(".ch"))),
        launcher=(),
        command=(
            *texts("ch-run", "--set-env", "--cd", WORKDIR),
            *_binds(plan),
            *texts(plan.image.path, "--", "/bin/bash", "-c", _RENAME, "bash"),
            *launched_program(plan),
        ),
    )


def _binds(plan: Plan) -> tuple[Word, ...]:
    words: list[Word] = [text("--bind"), (Var(RUN_DIRECTORY), Text(f":{RESULTS}"))]
    for mount in plan.mounts:
        for path in (mount.source, mount.target):
            problem = mount_problem(path)
            if problem:
                raise UsageError(problem, where="--mount", mend="mount a directory above it, or make a link to it")
        if mount.read_only:
            raise UsageError(
                "Charliecloud cannot mount read-only", where=f"--mount {mount.source}", mend="leave ':ro' out"
            )
        words += [text("--bind"), text(f"{mount.source}:{mount.target}")]
    return tuple(words)
