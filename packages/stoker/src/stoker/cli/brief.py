"""`--json brief`: what a command that judges found, in at most 2 KB of JSON, for agents that pay for what they read."""

from __future__ import annotations

import json
from typing import Any

import click

from stoker.cli import command as base

MOST_BYTES = 2048
ASKED = "stoker.brief"
LIMITS = ((400, 8, 5), (240, 5, 4), (160, 3, 4), (120, 3, 3), (80, 2, 3), (60, 1, 2), (40, 1, 1))
"""Characters of a text, entries of a list, and levels that are kept, until it is short enough."""


class BriefCommand(base.Command):
    """A command whose `--json` may be followed by the word `brief`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep whether the brief form is asked for."""
        for place in range(len(args) - 1):
            if args[place : place + 2] == ["--json", "brief"]:
                args, ctx.meta[ASKED] = [*args[: place + 1], *args[place + 2 :]], True
                break
        return super().parse_args(ctx, args)


def is_brief() -> bool:
    """Return whether the command that runs is asked for the brief form."""
    return ASKED in click.get_current_context().meta


def print_result(value: Any) -> None:
    """Print the result as JSON, in the form that is asked for."""
    base.print_json(shortened(value) if is_brief() else value)


def shortened(value: dict[str, Any]) -> dict[str, Any]:
    """Return a result in at most 2 KB of JSON: texts and lists are cut, then what is nested deepest is left out. Verdicts come first."""
    plain = json.loads(json.dumps(value, default=str), parse_constant=lambda name: None)
    for characters, entries, levels in LIMITS:
        short = _cut(plain, characters, entries, levels)
        if len(json.dumps(short)) <= MOST_BYTES:
            break
    while len(json.dumps(short)) > MOST_BYTES:
        short.popitem()
    result: dict[str, Any] = short
    return result


def _cut(value: Any, characters: int, entries: int, levels: int) -> Any:
    """Cut a value. Empty entries are left out, and a list that is cut ends with how many entries are missing."""
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}…"
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return f"{len(value)} entries"
    if isinstance(value, dict):
        return {name: _cut(part, characters, entries, levels - 1) for name, part in value.items() if part not in (None, [], {}, "")}
    cut = [_cut(part, characters, entries, levels - 1) for part in value[:entries]]
    return cut if len(value) <= entries else [*cut, f"{len(value) - entries} more"]
