"""The setup of a native environment as shell lines. Pure."""

from __future__ import annotations

from runner.model.environment import Setup


def lines(setup: Setup) -> tuple[tuple[str, ...], ...]:
    """Argument lists, one a line, in their order (``runner.model.step.Load`` takes them).

    >>> lines(Setup(modules=("gcc", "cuda/11.7")))
    (('module', 'load', 'gcc', 'cuda/11.7'),)
    """
    result: list[tuple[str, ...]] = []
    if setup.purge:
        result.append(("module", "purge"))
    result += [("module", "use", directory) for directory in setup.use]
    if setup.modules:
        result.append(("module", "load", *setup.modules))
    if setup.conda:
        result.append(("source", f"{setup.conda.rstrip('/')}/etc/profile.d/conda.sh"))
    if setup.activate.conda:
        result.append(("conda", "activate", setup.activate.conda))
    if setup.activate.virtualenv:
        result.append(("source", f"{setup.activate.virtualenv.rstrip('/')}/bin/activate"))
    return tuple(result)
