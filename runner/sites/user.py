"""The user's configuration for all jobs: ``~/.config/gpu-runner/config.yaml`` (``RUNNER_CONFIG`` overrides it).

site: perlmutter           # the default of --site
account: m1234             # of every site, unless the site below says otherwise
sites:
  perlmutter:
    scratch: /pscratch/sd/e/elvis
registries:                # another host that may get the login of a registry, for a token
  registry.example.org:
    token_service: auth.example.org
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from pathlib import Path

from runner.checks.registry import Workspace
from runner.core import paths, process
from runner.core.errors import RunnerError, UsageError
from runner.core.strict_yaml import load
from runner.core.text import nearest
from runner.model.request import Request
from runner.model.site import AtSite, UserConfig
from runner.planning.personal import Personal
from runner.sites.loader import names

_NEAR = 0.65  # of difflib's ratio: two neighbouring letters swapped in a name of three to five


def read_config(path: Path | None = None) -> UserConfig:
    """The user's configuration; an empty one where there is no file.

    Raises:
        UsageError: the file is invalid; says file:line and key.
    """
    path = path or paths.config_file()
    return load(path, UserConfig) if path.exists() else UserConfig()


def check_entry(config: UserConfig, site: str, where: Path) -> None:
    """Refuse a misspelt name: a shipped site without an entry, beside one of a name very near it that no site has.

    Raises:
        UsageError: so it is; says which.
    """
    foreign = config.sites.keys() - set(names())
    if not foreign or site in config.sites or site not in names():
        return
    near = nearest(site, sorted(foreign), least=_NEAR)
    if near:
        raise UsageError(
            f"no site is named {near!r}: did you mean {site!r}?",
            where=f"{where}: sites.{near}",
            fix=f"correct the name; if {near!r} is a site of your own, give {site!r} an entry, too: `{site}: {{}}`",
        )


def personal_values(config: UserConfig, site: str, request: Request) -> Personal:
    """The user's values at a site: from the command line, else the site's entry, else the value for all sites."""
    here = config.sites.get(site, AtSite())
    return Personal(
        account=request.account or here.account or config.account,
        project=request.project or here.project or config.project,
        scratch=request.scratch or here.scratch or config.scratch,
        field=request.field or here.field or config.field,
        user=_login_name(),
    )


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""


_TIMEOUT_S = 10.0
_UNITS_S = {"day": 86400, "hour": 3600, "minute": 60}


def workspaces() -> tuple[Workspace, ...]:
    """The user's workspaces; none where the tool is missing or does not answer in time, as a check must not hang."""
    try:
        return tuple(read_workspaces(process.run(("ws_list",), timeout_s=_TIMEOUT_S).out))
    except RunnerError:
        return ()


def read_workspaces(text: str) -> Iterator[Workspace]:
    """Workspaces from the output of ``ws_list``: an ``id:`` line for each, then indented ``name : value`` lines."""
    for part in re.split(r"^id:", text, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        directory = fields.get("workspace directory", "")
        left = re.findall(r"(\d+)\s*(day|hour|minute)s?", fields.get("remaining time", ""))
        if directory and left:
            yield Workspace(name.strip(), directory, float(sum(int(count) * _UNITS_S[unit] for count, unit in left)))
