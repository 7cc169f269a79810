"""Values that only the user knows (account, project, scratch, field), put into a site before anything is planned."""

from __future__ import annotations

import getpass
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from runner.checks.registry import Workspace
from runner.core import paths, process
from runner.core.errors import RunnerError, UsageError
from runner.core.strict_yaml import load
from runner.core.text import instead, nearest
from runner.model.request import Request
from runner.model.site import AtSite, Owned, Site, UserConfig
from runner.sites.loader import names

NAMES = ("account", "project", "scratch", "field", "user")
_NO_FIELD = re.compile(r"""[;='"\\\x00-\x1f\x7f]""")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class Personal(msgspec.Struct, frozen=True):
    """The user's values at one site; empty where not given.

    Attributes:
        account: whom to charge, without a site's suffix.
        project: name of the project's directory.
        scratch: absolute path of the user's scratch directory.
        field: field of research, by the site's name for it.
        user: login name.
    """

    account: str = ""
    project: str = ""
    scratch: str = ""
    field: str = ""
    user: str = ""


def expand_placeholders(site: Site, personal: Personal) -> Site:
    """The site with ``{account}`` and its like replaced; ``ACCOUNT-NOT-SET`` where the value is not given.

    Raises:
        UsageError: a placeholder that does not exist; names the nearest. A field of research that would end its part
            of the comment.
    """
    if _NO_FIELD.search(personal.field):
        raise UsageError(
            f"{personal.field!r} is no field of research: no ; = or quotes may stand in its name",
            where="--field, or `field` of your configuration",
            fix="give the name alone, and a whole comment as -S 'comment=field=NAME;appl=NAME'",
        )

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in NAMES:
            fix = instead(name, NAMES, f"placeholders: {', '.join(NAMES)}")
            raise UsageError(f"{{{name}}} is not a placeholder", where=f"site {site.name}", fix=fix)
        return str(getattr(personal, name)) or not_set(name)

    return msgspec.convert(_mapped(msgspec.to_builtins(site), value), Site)


def missing_values(site: Site, personal: Personal, given: Collection[str] = ()) -> tuple[Owned, ...]:
    """Values that the site needs, or has a placeholder for, and the user has not given.

    Args:
        given: options of the scheduler that the job gives itself: of the site's, theirs need nothing. The field of
            research stands in such an option, and nowhere else.
    """
    document = msgspec.to_builtins(site)
    options = {name: value for name, value in site.settings.directives.items() if name not in given}
    document["scheduler_settings"] |= {"directives": options}
    placeholders = set(_PLACEHOLDER.findall(str(document)))
    needs = placeholders.union(set(site.needs) - {"field"})
    names: tuple[Owned, ...] = get_args(Owned)
    return tuple(name for name in names if name in needs and not getattr(personal, name))


def with_scratch(personal: Personal, site: Site) -> Personal:
    """The user's values; without a scratch directory, the one that the site gives to every user."""
    if personal.scratch or not site.scratch.path:
        return personal
    return msgspec.structs.replace(personal, scratch=site.scratch.path.replace("{user}", personal.user))


def account(site: Site, personal: Personal) -> str | None:
    """The account that a GPU job is charged to; None where the scheduler knows."""
    if personal.account:
        return personal.account.removesuffix(site.account_suffix) + site.account_suffix
    return not_set("account") if "account" in site.needs else None


def not_set(name: str) -> str:
    """What a script contains where the user has not given a value."""
    return f"{name.upper()}-NOT-SET"


def _mapped(value: Any, replacement: Any) -> Any:
    if isinstance(value, str):
        return _PLACEHOLDER.sub(replacement, value)
    if isinstance(value, dict):
        return {key: _mapped(item, replacement) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, replacement) for item in value]
    return value


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
