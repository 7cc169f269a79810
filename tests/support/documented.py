"""The commands that pages show, and whether the command line would take them."""

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from runner.cli import cli


def commands(page: Path) -> list[list[str]]:
    """The words of every ``gpu-runner`` line in the blocks of a page, without what follows a pipe or redirection."""
    text = page.read_text("utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ {4,}(?:\$ |\w+=\$\()?gpu-runner (.*?)(?:\s+[#|>].*)?$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def parse(words: Sequence[str]) -> None:
    """Parse a command line, and run nothing.

    Raises:
        click.UsageError: it names what there is not.
    """
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        _, found, rest = command.resolve_command(click.Context(command), rest)
        assert found is not None
        command = found
    with contextlib.suppress(click.exceptions.Exit):  # --help and the like print, and end it
        command.make_context(str(command.name), rest)
