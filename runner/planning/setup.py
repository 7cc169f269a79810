"""A native environment's setup as the lines of a shell. Pure."""

from __future__ import annotations

from runner.model.environment import Setup


def lines(setup: Setup) -> tuple[tuple[str, ...], ...]:
    """Argument lists, one a line, in their order (``runner.model.step.Load`` takes them).

    >>> lines(Setup(modules=("gcc", "cuda/11.7")))
    (('module', 'load', 'gcc', 'cuda/11.7'),)
    """
    found: list[tuple[str, ...]] = []
    if setup.purge:
        found.append(("module", "purge"))
    found += [("module", "use", directory) for directory in setup.use]
    if setup.modules:
        found.append(("module", "load", *setup.modules))
    if setup.conda:
        found.append(("source", f"{setup.conda.rstrip('/')}/etc/profile.d/conda.sh"))
    if setup.activate.conda:
        found.append(("conda", "activate", setup.activate.conda))
    if setup.activate.virtualenv:
        found.append(("source", f"{setup.activate.virtualenv.rstrip('/')}/bin/activate"))
    return tuple(found)
