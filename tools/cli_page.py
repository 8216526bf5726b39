"""Writes docs/cli.md from the commands: `make reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from stoker.cli.command import volume_options
from stoker.cli.main import COMMANDS, cli

SHARED = {one.name for one in volume_options()} | {"other_out"}
"""Options that are described once, for all commands."""
PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
INTRO = r"""# Commands

This page is generated from the source by `make reference`. Do not edit it by hand. `stoker COMMAND --help` prints the same.

Exit codes: 0, or 2 for an error, which is one line on stderr, with the [name of the error](errors.md) on a terminal; 130 after Ctrl-C,
143 after SIGTERM, 129 after SIGHUP. Some commands have others, which their section names. `--debug` shows the traceback of an error.

## What all commands share

- **`-q`, `--quiet`**: print errors and the result, nothing else. The output of a script (`diagnose`, `gate`, `watch`, `audit`) is dropped.
- **`-v`, `--verbose`**: print details too, on stderr: the options that were given, the time of each phase, CPU time and memory.
- **`--json`**: print the result as JSON on stdout, for programs.
- **`-`** reads standard input where a table, a configuration or a spec is expected: `zcat a.csv.gz | stoker pack - a.stoker`. The format is
  found from the content: CSV, TSV, JSON lines, Parquet, Arrow, NumPy, `.ts` or `.arff`. A script, a store or a run needs a name.
- **The output** that a command always writes is its last argument: `stoker pack SOURCE… STORE`. `--out STORE` means the same. A file that a
  command may write besides is an option, such as `--plot FILE`.
- **`--series`, `--key`**: the column that says which series, subject or user a row belongs to. Both names mean the same.
- **`--time`**: the column that orders the rows of a series.
- **`--overwrite`, `--replace`**: replace what exists. Both names mean the same. Without it, an existing output is an error.
- **Options of `stoker` come before the script**; all after it belongs to the script: `stoker diagnose --try train.py --epochs 1`.

A command that takes longer says within a second, on stderr, what it does. For a wrong command or option, the nearest name is suggested.

**Completion** of commands, options, choices and files in a shell:

- bash 4.4 or newer: `eval "$(_STOKER_COMPLETE=bash_source stoker)"` in `~/.bashrc`
- zsh: `eval "$(_STOKER_COMPLETE=zsh_source stoker)"` in `~/.zshrc`
- fish: `_STOKER_COMPLETE=fish_source stoker | source` in `~/.config/fish/config.fish`

## List of commands
"""


def page() -> str:
    """The text of the page."""
    parts = [
        INTRO,
        "| command | |\n| --- | --- |\n" + "".join(f"| [`{name}`](#{name}) | {text} |\n" for name, text in COMMANDS.items()),
    ]
    context = click.Context(cli, info_name="stoker")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += _section(command, name, f"## {name}\n")
        if isinstance(command, click.Group):
            below = click.Context(command, info_name=name, parent=context)
            for other in command.list_commands(below):
                found = command.get_command(below, other)
                assert found is not None
                parts += _section(found, f"{name} {other}", f"### {name} {other}\n")
        for recipe, found in sorted(getattr(command, "recipes", {}).items()):
            parts += _section(found, f"{name} {recipe}", f"### {name} {recipe}\n")
    return "\n".join(parts)


def _section(command: click.Command, path: str, heading: str) -> Iterator[str]:
    """Usage, text and options of a command."""
    yield heading
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield f"```text\nstoker {path} {usage}\n```\n"
    yield _plain(command.help or "") + "\n"
    rows = [_row(one) for one in command.params if isinstance(one, click.Option) and not one.hidden and one.name not in SHARED]
    if rows:
        yield "| option | default | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """A help text as Markdown: paragraphs that keep their lines become blocks."""
    text = inspect.cleandoc(text.split("\f")[0])
    return re.sub(
        r"^\x08\n((?:.+\n?)+)", lambda found: "```text\n" + found[1].rstrip() + "\n```\n", text, flags=re.MULTILINE
    ).strip()


def _row(option: click.Option) -> str:
    metavar = "" if option.is_flag or option.count else " " + (option.metavar or _metavar(option))
    names = ", ".join(f"`{name}{metavar}`" for name in option.opts) + "".join(f", `{name}`" for name in option.secondary_opts)
    default = option.default
    shown = option.show_default and default is not None and not callable(default) and not option.is_flag
    text = " ".join((option.help or "").split()).replace("|", "\\|").replace("<", "&lt;")
    return f"| {names.replace('|', chr(92) + '|')} | {f'`{default}`' if shown else ''} | {text} |"


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "[" + "|".join(map(str, option.type.choices)) + "]"
    return {"integer": "N", "float": "X"}.get(option.type.name, (option.name or "").upper())


if __name__ == "__main__":
    PAGE.write_text(page())
