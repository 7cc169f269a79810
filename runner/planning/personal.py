"""What only the user can tell a site: put into its values before anything is planned."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from runner.errors import UsageError
from runner.model.site import Owned, Site
from runner.suggest import instead

NAMES = ("account", "project", "scratch", "user")
_PLACE = re.compile(r"\{([a-z_]+)\}")


class Personal(msgspec.Struct, frozen=True):
    """The user's own at one site; empty where not told.

    Attributes:
        account: whom to charge, without a site's suffix.
        project: name of the project's directory.
        scratch: absolute path of the user's scratch directory.
        user: login name.
    """

    account: str = ""
    project: str = ""
    scratch: str = ""
    user: str = ""


def expand_placeholders(site: Site, personal: Personal) -> Site:
    """The site with ``{account}`` and its like replaced; ``ACCOUNT-NOT-SET`` where the user has not told.

    Raises:
        UsageError: a placeholder that there is not, with the nearest.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in NAMES:
            fix = instead(name, NAMES, f"placeholders: {', '.join(NAMES)}")
            raise UsageError(f"{{{name}}} stands for nothing", where=f"site {site.name}", fix=fix)
        return str(getattr(personal, name)) or not_set(name)

    return msgspec.convert(_mapped(msgspec.to_builtins(site), value), Site)


def missing_values(site: Site, personal: Personal) -> tuple[Owned, ...]:
    """What the site needs, or names in a value, and the user has not told."""
    named = set(_PLACE.findall(str(msgspec.to_builtins(site))))
    order: tuple[Owned, ...] = ("account", "project", "scratch")
    return tuple(name for name in order if (name in site.needs or name in named) and not getattr(personal, name))


def with_scratch(personal: Personal, site: Site) -> Personal:
    """The user's own, with what the site tells of everybody's: where scratch directories lie."""
    if personal.scratch or not site.scratch.path:
        return personal
    return msgspec.structs.replace(personal, scratch=site.scratch.path.replace("{user}", personal.user))


def account(site: Site, personal: Personal) -> str | None:
    """The account that a GPU job is charged to; None where the scheduler knows."""
    if personal.account:
        return personal.account.removesuffix(site.account_suffix) + site.account_suffix
    return not_set("account") if "account" in site.needs else None


def not_set(name: str) -> str:
    """What stands in a script where the user has not told something."""
    return f"{name.upper()}-NOT-SET"


def _mapped(value: Any, replacement: Any) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(replacement, value)
    if isinstance(value, dict):
        return {key: _mapped(item, replacement) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, replacement) for item in value]
    return value
