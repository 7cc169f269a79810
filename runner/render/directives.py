"""What no scheduler's directives can contain."""

from __future__ import annotations

from runner.core.errors import UsageError


def one_line(value: str, where: str) -> None:
    """Raises UsageError where the value holds a character that would end the directive's line; says which."""
    for character, name in (("\n", "newline"), ("\0", "NUL"), ("\r", "carriage return")):
        if character in value:
            raise UsageError(
                f"a {name} cannot stand in a scheduler directive", where=where, fix=f"leave the {name} out"
            )
