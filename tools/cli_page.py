"""Writes docs/cli.md from the commands: `make reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from stoker.cli.command import Command, volume_options
from stoker.cli.main import COMMANDS, cli

SHARED = {option.name for option in volume_options()}
"""Options that are described once, for all commands."""
PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
INTRO = r"""# Commands

This page is generated from the source by `make reference`. Do not edit it by hand. `stoker COMMAND --help` prints the same.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | the command did what it was asked: a store, a run, a table, a verdict |
| 1 | a check failed: `audit` found an error, a count of `gate` grew, `compare` found the new version slower or worse |
| 2 | an error: one line on stderr, with the [name of the error](errors.md) on a terminal. `--debug` shows its traceback |
| 3 | no answer: `diagnose` has no verdict, or `diagnose --apply` no patch; `compare` is undecided |
| 4 | `compare`: the results changed, and the new version is not shown to be better |
| 129, 130, 143 | stopped by SIGHUP, Ctrl-C or SIGTERM. `pack`, `append` and `train` resume. `live` ends by Ctrl-C with 0 |
| another | `watch SCRIPT.py` ends with the exit code of the script |

## What all commands share

- **`-q`, `--quiet`**: print errors and the result, nothing else. The output of a script (`diagnose`, `gate`, `watch`, `audit`) is dropped.
- **`-v`, `--verbose`**: print details too, on stderr: the options that were given, the time of each phase, CPU time and memory.
- **`--json`**: print one JSON document on stdout and nothing else, for programs. NaN and Inf are `null`.
- **`-`** reads standard input where a table, a configuration or a spec is expected: `zcat a.csv.gz | stoker pack - a.stoker`. The format is
  found from the content: CSV, TSV, JSON lines, Parquet, Arrow, NumPy, `.ts` or `.arff`. A script, a store or a run needs a name.
- **The output** that a command always writes is its last argument: `stoker pack SOURCE… STORE`. A file that a command may write besides is
  an option, such as `--out FILE` or `--plot FILE`.
- **`--set NAME=VALUE`**: a value of a configuration, or a setting of a recipe. `--fields` shows all.
- **`--overwrite`**: replace what exists. Without it, an existing output is an error.
- **Options of `stoker` come before the script**; all after it belongs to the script: `stoker diagnose --try train.py --epochs 1`.

A command that takes longer says within a second, on stderr, what it does. For a wrong command or option, the nearest name is suggested. A
command ends with the next useful one, after `next:`.

The commands of recipes and of [your own package](extending.md) come from installed packages. Without them,
`stoker timehut` says what to install.

**Completion** of commands, options, choices and files in a shell:

- bash 4.4 or newer: `eval "$(_STOKER_COMPLETE=bash_source stoker)"` in `~/.bashrc`
- zsh: `eval "$(_STOKER_COMPLETE=zsh_source stoker)"` in `~/.zshrc`
- fish: `_STOKER_COMPLETE=fish_source stoker | source` in `~/.config/fish/config.fish`

## List of commands
"""


def page() -> str:
    """The text of the page."""
    context = click.Context(cli, info_name="stoker")
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    texts = {name: COMMANDS.get(name) or (command.short_help or "" if command else "") for name, command in commands.items()}
    rows = "".join(f"| [`{name}`](#{name}) | {text} |\n" for name, text in texts.items())
    parts = [INTRO, f"| command | |\n| --- | --- |\n{rows}"]
    for name, command in commands.items():
        assert command is not None
        parts += _sections(command, name, "##")
    return "\n".join(parts)


def _sections(command: click.Command, path: str, level: str) -> Iterator[str]:
    """The section of a command, then those of its commands and of its versions for recipes."""
    yield from _section(command, path, f"{level} {path}\n")
    if isinstance(command, click.Group):
        below = click.Context(command)
        for name in command.list_commands(below):
            inner = command.get_command(below, name)
            assert inner is not None
            yield from _sections(inner, f"{path} {name}", "###")
    for name, version in (command.recipes() if isinstance(command, Command) else {}).items():
        yield from _section(version, PATHS.get(path, "{} {}").format(path, name), f"### {path} {name}\n")


PATHS = {"pack": "{0}", "export": "{0}"}
"""How the version of a recipe is called, where arguments choose it instead of its name."""


def _section(command: click.Command, path: str, heading: str) -> Iterator[str]:
    """Usage, text and options of a command."""
    yield heading
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield f"```text\nstoker {path} {usage}\n```\n"
    yield _plain(command.help or "") + "\n"
    rows = [_row(param) for param in command.params if isinstance(param, click.Option) and param.name not in SHARED]
    if rows:
        yield "| option | default | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """A help text as Markdown: paragraphs that keep their lines become blocks."""
    text = inspect.cleandoc(text.split("\f")[0])
    return re.sub(
        r"^\x08\n((?:.+\n?)+)", lambda match: "```text\n" + match[1].rstrip() + "\n```\n", text, flags=re.MULTILINE
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
