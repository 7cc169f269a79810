"""What every runtime needs: the launcher's words, and the shell that starts them in the container."""

from __future__ import annotations

from runner.model.plan import RESULTS, Plan
from runner.model.step import RENDEZVOUS, Export, Word, text, texts

WORKDIR = f"{RESULTS}/recipe"


def launched_program(plan: Plan) -> tuple[Word, ...]:
    """The launcher and, below it, the program, as seen in the container."""
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
        "--",
        *plan.program,
    )


def shell() -> tuple[Word, ...]:
    """A bash that replaces itself by its arguments: NGC images set BASH_ENV to the file that enables CUDA's forward
    compatibility, and only a bash reads it.
    """
    return (*texts("/bin/bash", "-c"), text('exec "$@"'), text("bash"))


def exports(plan: Plan) -> tuple[Export, ...]:
    """The environment of every rank, exported by the batch script."""
    return tuple(Export(name, text(value)) for name, value in plan.env)


def passed_names(plan: Plan) -> tuple[str, ...]:
    """Names that must win over the image's own values."""
    return (*RENDEZVOUS, *(name for name, _ in plan.env))
