"""All commands of the core and of the installed recipes, by their path."""

from __future__ import annotations

from collections.abc import Iterator

import click

from stoker.cli import command as base
from stoker.cli import main as cli


def walk(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """The command with its path; those of a group, and the versions that recipes have of it."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from walk(below, f"{path} {name}".strip())
        return
    yield path, command
    for name, version in (command.recipes() if isinstance(command, base.Command) else {}).items():
        yield f"{path} {name}", version


COMMANDS = dict(walk(cli.cli))


def options_of(command: click.Command) -> list[click.Option]:
    """The options of a command, without those that all share."""
    shared = {option.name for option in base.volume_options()}
    return [param for param in command.params if isinstance(param, click.Option) and param.name not in shared]
