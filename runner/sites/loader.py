"""Find and read a site file."""

from __future__ import annotations

from pathlib import Path

from runner.errors import UsageError
from runner.model.names import PLAIN_NAME, PLAIN_NAME_MEND
from runner.model.site import Site
from runner.render.sbatch import directive
from runner.strict_yaml import load
from runner.suggest import instead

_FILES = Path(__file__).parent / "files"


def names() -> tuple[str, ...]:
    """The shipped sites, by name."""
    return tuple(sorted(path.stem for path in _FILES.glob("*.yaml")))


def read_site(name_or_path: str) -> Site:
    """A shipped site by name, or a file by path (anything with a ``/`` or ending in ``.yaml``).

    Raises:
        UsageError: there is none, or the file is not right; says file:line and key.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    elif name_or_path in names():
        path = _FILES / f"{name_or_path}.yaml"
    else:
        raise UsageError(
            f"no site named {name_or_path!r}",
            where="--site",
            mend=instead(name_or_path, names(), f"sites: {', '.join(names())}, or the path of a site file"),
        )
    site = load(path, Site)
    _check(site, path)
    return site


def _check(site: Site, path: Path) -> None:
    for key, value in (
        ("node.gpus", site.node.gpus),
        ("node.cores", site.node.cores),
        ("node.threads_per_core", site.node.threads_per_core),
        ("node.memory_mb", site.node.memory_mb),
        ("walltime_s", site.walltime_s),
        ("node.count", site.node.count),
        ("max_walltime_s", site.max_walltime_s),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{value} is not a possible value", where=f"{path}: {key}", mend="use one or more")
    if not PLAIN_NAME.match(site.name):
        raise UsageError(f"{site.name!r} cannot be a site's name", where=f"{path}: name", mend=PLAIN_NAME_MEND)
    if not site.runtimes:
        raise UsageError("names no runtime", where=f"{path}: runtimes")
    for option, text in site.slurm.directives.items():
        try:
            directive(option, text)
        except UsageError as error:
            raise UsageError(error.what, where=f"{path}: slurm.directives.{option}", mend=error.mend) from None
