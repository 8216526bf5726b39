"""`stoker`: the group of commands, and how errors end a command. Each command is imported when it runs, so `stoker --help` is fast.

The commands of the core are listed here; other packages add theirs by entry points (`stoker.extend`).
"""

from __future__ import annotations

import importlib
import io
import re
import shlex
import signal
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

import stoker
from stoker import extend
from stoker._signals import Terminated, handle_stops, last_stop
from stoker._text import how_to_install, printable
from stoker.cli.command import PACK_FLAGS, Asked, CommandGroup, reset_output, volume_options, without_stdin_folder
from stoker.errors import StokerError, shorten

COMMANDS = {
    "diagnose": "Find the bottleneck of a training script.",
    "compare": "Prove that one version of a training script is better than another.",
    "watch": "Run a script, or follow a run, and name the cause of slowdowns.",
    "gate": "Compare what a step does with a budget.",
    "audit": "Find errors in the batches of a script.",
    "pack": "Pack raw files into a store.",
    "append": "Add rows and series to a store.",
    "inspect": "Show what a store holds, or verify every byte of it.",
    "train": "Train a model from a configuration, or run a recipe.",
    "predict": "Predict for new data with a trained run, or backtest it.",
    "export": "Export the model of a run as a program.",
    "tune": "Find the batch size or hyperparameters.",
    "runs": "Compare the runs in a folder.",
    "live": "Show running and finished runs on a local page.",
}
"""The commands of the core. Each is the `command` of the module of its name."""
FIRST = """\
Three things to do first:

  stoker diagnose train.py                       why a training script is slow, measured in the unchanged script
  stoker pack "data/*.csv" data.stoker --wide    raw files -> a store that feeds the GPU without copies
  stoker train config.yaml                       train on a store; stoker train --fields shows what a config may hold

stoker --help lists all commands, stoker COMMAND --help the options of one.
"""


class _Commands(CommandGroup):
    """The commands of the core, and those that installed packages register."""

    advice_on_unknown = f"For the commands of recipes: {how_to_install()}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in extend.registered("commands") if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command: click.Command = importlib.import_module(f"stoker.cli.{cmd_name}").command
            return command
        if cmd_name in extend.registered("commands"):
            command = extend.load("commands", cmd_name)
            return command
        return None

    def _texts(self) -> dict[str, str]:
        """Return what each command does. Those of other packages are not imported for this."""
        entries = extend.registered("commands").items()
        packages = {name: entry.dist.name if entry.dist is not None else entry.module for name, entry in entries}
        return {**{name: f"Commands of {package}." for name, package in packages.items()}, **COMMANDS}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        texts = self._texts()
        names = [CompletionItem(name, help=texts[name]) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        if others := [(name, text) for name, text in self._texts().items() if name not in COMMANDS]:
            with formatter.section("Commands of other packages"):
                formatter.write_dl(others)


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(stoker.__version__, prog_name="stoker")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Find and remove the bottleneck of PyTorch training on sequences.

    Every command takes -q (errors and the result only), -v (details and timings) and --help.
    """
    if ctx.invoked_subcommand is None:
        click.echo(FIRST, nl=False)


cli.params += volume_options()


def main(arguments: list[str] | None = None) -> None:
    """Run a command. docs/cli.md has the table of exit codes."""
    handle_stops()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # do not fail on a terminal that lacks a character
    arguments = sys.argv[1:] if arguments is None else arguments
    reset_output()
    asked = Asked()
    try:
        cli.main(arguments, prog_name="stoker", standalone_mode=False, obj=asked)
    except (click.exceptions.Abort, KeyboardInterrupt, Terminated) as stop:
        _end_stopped(stop.number if isinstance(stop, Terminated) else signal.SIGINT, arguments)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" See: {context.command_path} --help" if context is not None else ""
        _end(2, shorten(printable(error.format_message())) + hint)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if asked.debug:
            raise
        if (number := last_stop()) is not None:  # a library has made this error of the stop
            _end_stopped(number, arguments)
        if not isinstance(error, StokerError | OSError):
            raise
        # On a terminal, the name under which docs/errors.md explains the error; a log or a program gets the line alone.
        name = f" [{type(error).__name__}]" if isinstance(error, StokerError) and sys.stderr.isatty() else ""
        _end(2, shorten(printable(without_stdin_folder(in_flags(error, asked.command)))) + name)


def _end_stopped(number: int, arguments: list[str]) -> NoReturn:
    resumes = " to resume" if "pack" in arguments or "append" in arguments else ""
    _end(128 + number, f"stopped. Run the same command again{resumes}.")


def _end(code: int, line: str) -> NoReturn:
    sys.stderr.write(f"stoker: {line}\n")
    sys.exit(code)


_TEXT = "'[^']*'"
_VALUE = rf"{_TEXT}|\{{{_TEXT}: {_TEXT}(?:, {_TEXT}: {_TEXT})*\}}|\[{_TEXT}(?:, {_TEXT})*\]|\[\.\.\.\]|[\w.*-]*\w"
"""A value of an argument in a message: a string, a mapping or a list of strings, or a plain word."""


def in_flags(error: Exception, command: click.Command | None) -> str:
    """Return the message of an error in the words of the command that ran.

    Only an error with the field `parameter` is about an argument. Its `sort=True` becomes `--sort`, also where the advice names another
    argument. A setting of a configuration or a recipe becomes `--set NAME=VALUE`, an option of a pack that `stoker predict` passes on
    `--pack NAME=VALUE`. An error without the field is printed as it is.
    """
    text, parameter = str(error), None
    if isinstance(error, StokerError):
        text = (isinstance(error, OSError) and error.strerror) or text
        parameter = error.parameter
    if parameter is None or command is None:
        return text
    text = re.sub(r"\b(?:Csv|Files|Resources|Time)\(((?:'[^']*'|[^()'])*)\)", r"\1", text)  # their fields are options
    options = {param.name or "": param for param in command.params if isinstance(param, click.Option)}
    through = next((options[name].opts[0] for name in ("overrides", "pack_options") if name in options), None)
    names = {*options, *([parameter] if through is not None else []), *(PACK_FLAGS if through == "--pack" else ())}

    def flag(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"] or ""
        if value.startswith("[") and (values := re.findall(r"'([^']*)'", value)):  # an option that may be repeated
            return " ".join(written(name, f"'{value}'") for value in values)
        if value.startswith("{"):
            value = ",".join(f"{key}={word}" for key, word in re.findall(r"'([^']*)': '([^']*)'", value))
        return written(name, value)

    def written(name: str, value: str) -> str:
        value = "A,B" if value == "[...]" else value.strip("'")
        option = options.get(name)
        if option is None:
            if not value:
                return f"{through} {name}"
            return f"{through} {name}={value.lower() if value in ('True', 'False', 'None') else shlex.quote(value)}"
        if value in ("True", "False"):
            return (option.opts if value == "True" else option.secondary_opts or option.opts)[0]
        return f"{option.opts[0]} {shlex.quote(value) if value else ''}".rstrip()

    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    text = re.sub(rf"(?<![^ (`])(?P<name>{words})=(?P<value>{_VALUE})?", flag, text)
    if parameter in names:  # it is named without an equals sign where it stands first
        text = re.sub(rf"^(?P<name>{re.escape(parameter)})(?P<value>)\b", flag, text)
    return text
