"""`stoker explain`: what an error means, and what to do."""

from __future__ import annotations

import difflib
import inspect

import click

from stoker import errors
from stoker.cli import command as base

KNOWN = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.StokerError)}
"""Every error of Stoker by its name."""


def explanation(name: str) -> str:
    """What an error means and what to do, from its class."""
    return inspect.cleandoc(KNOWN[name].__doc__ or "").split("\n\nExample:")[0]


@click.command("explain", cls=base.Command, doing=None)
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Explain an error of Stoker: the NAME in brackets at the end of its line. Without NAME, list them all."""
    if name is None:
        for one in KNOWN:
            click.echo(f"{one:<24} {explanation(one).splitlines()[0]}")
        return
    found = name.strip("[]").rsplit(".", 1)[-1]
    if found not in KNOWN:
        near = difflib.get_close_matches(found, KNOWN, n=1)
        advice = f"did you mean {near[0]}?" if near else "Run `stoker explain` for a list."
        raise errors.OptionError(f"there is no error {name!r}; {advice}")
    click.echo(f"{found}: {explanation(found)}")
