"""`stoker`: the group of commands, and what they share. Each command is imported when it runs, which keeps `stoker --help` fast."""

from __future__ import annotations

import importlib
import io
import re
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

import stoker
from stoker._signals import Terminated, handle_stops
from stoker._text import printable
from stoker.cli.command import Asked, CommandGroup, reset_output, volume_options, without_stdin_folder
from stoker.errors import ConfigError, StokerError, shorten

COMMANDS = {
    "pack": "Pack raw files into a store.",
    "append": "Add rows and series to a store.",
    "compact": "Rewrite a store with appended rows as one plain store.",
    "inspect": "Show what a store holds.",
    "verify": "Check every byte of a store against its hash.",
    "encode": "Encode a table of events as sequences.",
    "indicators": "Compute the indicators of bars into a store.",
    "audit": "Find errors in the batches of a script.",
    "diagnose": "Find the bottleneck of a training script.",
    "gate": "Compare what a step does with a budget.",
    "watch": "Run a script, or follow a run, and name the cause of slowdowns.",
    "tune": "Find the batch size, hyperparameters, or the fastest way to run.",
    "train": "Train a model from a configuration, or run a recipe.",
    "predict": "Predict for new data with a trained run.",
    "embed": "Write the representations of series by a trained run.",
    "generate": "Write new subjects with their events by a trained run.",
    "forecast": "Forecast a series with a trained Time-MoE.",
    "export": "Export the model of a run as a program.",
    "quality": "Report how good synthetic data are.",
    "runs": "Compare the runs in a folder.",
    "live": "Show running and finished runs on a local page.",
    "make": "Make data to try a recipe with.",
}

MODULES = {
    "compact": "append", "verify": "inspect", "indicators": "encode", "forecast": "predict", "embed": "predict"
}  # fmt: skip
"""Commands in the module of another one: there, `history_command` and so on. All others are the `command` of their own module."""


class _Lazy(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"stoker.cli.{MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command" if cmd_name in MODULES else "command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(stoker.__version__, prog_name="stoker")
def cli() -> None:
    """Find and remove the bottleneck of PyTorch training on sequences.

    Every command takes -q (errors and the result only), -v (details and timings) and --help.
    """


cli.params += volume_options()


def main(arguments: list[str] | None = None) -> None:
    """Run a command: exit code 0, 2 for an error that has a line, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    handle_stops()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # do not fail on a terminal that lacks a character
    arguments = sys.argv[1:] if arguments is None else arguments
    reset_output()
    asked = Asked()
    try:
        cli.main(arguments, prog_name="stoker", standalone_mode=False, obj=asked)
    except (click.exceptions.Abort, KeyboardInterrupt, Terminated) as stop:
        resumes = " to resume" if "pack" in arguments or "append" in arguments else ""
        _end(128 + stop.number if isinstance(stop, Terminated) else 130, f"stopped. Run the same command again{resumes}.")
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" See: {context.command_path} --help" if context is not None else ""
        _end(2, shorten(printable(error.format_message())) + hint)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except (StokerError, OSError) as error:
        if asked.debug:
            raise
        text = error.strerror if isinstance(error, StokerError) and isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, ConfigError):  # about an argument of `stoker.experiment.run`
            text = re.sub(r"^overrides\b", "--set", re.sub(r"^allow\b", "--allow", text))
        # On a terminal, the name under which docs/errors.md explains the error; a log or a program gets the line alone.
        name = f" [{type(error).__name__}]" if isinstance(error, StokerError) and sys.stderr.isatty() else ""
        _end(2, in_flags(shorten(printable(without_stdin_folder(text))), arguments) + name)


def _end(code: int, line: str) -> NoReturn:
    sys.stderr.write(f"stoker: {line}\n")
    sys.exit(code)


def in_flags(line: str, arguments: list[str]) -> str:
    """Write a library message in the words of the command that was called: `sort=True` becomes `--sort`.

    Only names of options of that command change, and only where a parameter is meant: behind a space or a bracket.
    """
    command: click.Command | None = cli
    for argument in arguments:
        if isinstance(command, click.Group) and not argument.startswith("-"):
            command = command.get_command(click.Context(command), argument)
    recipes = getattr(command, "recipes", {})
    words = [argument.removeprefix("--recipe=") for argument in arguments]
    known = [command, *(recipes[word] for word in words if word in recipes)] if command is not None else []
    line = re.sub(r"\b(?:Csv|Files|Resources|Time)\(([^()]*)\)", r"\1", line)  # their fields are flags
    options = {one.name: one for each in reversed(known) for one in each.params if isinstance(one, click.Option)}
    if not options:
        return line

    def flag(found: re.Match[str]) -> str:
        option, value = options[found["name"]], (found["value"] or "").strip("'\"")
        if pair := re.fullmatch(r"\{'(.*)': '(.*)'\}", value):
            value = f"{pair[1]}={pair[2]}"
        value = value.replace("[...]", "A,B")
        if value in ("True", "False"):
            return (option.opts if value == "True" else option.secondary_opts or option.opts)[0]
        return f"{option.opts[0]} {value}".rstrip()

    if command is not None and command.name == "predict":  # options of a pack, which it passes on
        line = re.sub(r"(?<![^ (`])(sort|duplicates)='?(\w+)'?", lambda found: f"--pack {found[1]}={found[2].lower()}", line)
        line = re.sub(r"(?<![^ (`])sql=None", "--pack sql=none", line)
    elif "assignments" in options:  # values of a configuration
        line = re.sub(r"observed=True to the feed", "--set observed=true", line)
        line = re.sub(r"(?<![^ (`])guard='skip'", "--set guard=skip", line)
    if "encoding" in options:  # given once per column
        line = re.sub(r"^encodings\['(.*?)'\] is '(\w*)'", r"--encoding is \1=\2", line)
        line = re.sub(r"^encodings names", "--encoding names", line)
    if "subjects" in options:
        line = line.replace("num_subjects", "--subjects")
        line = re.sub(r"^rebalance\['(.*?)'\]", r"--rebalance \1", line)
    names = "|".join(map(re.escape, filter(None, options)))
    line = re.sub(rf"^({names})(?= is [^;]*; expected | names the column )", lambda found: options[found[1]].opts[0], line)
    values = r"\{'[^']*': '[^']*'\}|\[\.\.\.\]|'[^']*'|\"[^\"]*\"|[\w.*…-]*[\w*…]"
    return re.sub(rf"(?<![^ (`])(?P<name>{names})=(?P<value>{values})?", flag, line)
