"""The user's own settings for all commands, as the configuration file has them."""

from __future__ import annotations

import msgspec


class AtSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's values at one site; empty where not given."""

    account: str = ""
    project: str = ""
    scratch: str = ""
    field: str = ""


class AtRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user says of one registry.

    Attributes:
        token_service: ``HOST[:PORT]`` of another host, to which the registry's login may be sent for a token.
    """

    token_service: str = ""


class UserConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. ``site`` is the default of --site; the others hold wherever ``sites`` gives no other value.

    ``registries``: ``HOST[:PORT]`` of a registry -> what the user says of it.
    """

    site: str = ""
    account: str = ""
    project: str = ""
    scratch: str = ""
    field: str = ""
    sites: dict[str, AtSite] = {}
    registries: dict[str, AtRegistry] = {}
