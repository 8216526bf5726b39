"""`stoker`: the group of commands. A command is imported only when it runs, so `stoker --help` answers in a blink."""

from __future__ import annotations

import importlib
import io
import signal
import sys
from types import FrameType

import click

import stoker
from stoker._text import printable
from stoker.errors import StokerError, StoreExistsError, shorten

COMMANDS = {
    "pack": "Pack raw files into a store.",
    "inspect": "Show what a store holds.",
    "verify": "Read every byte of a store against its hash.",
    "encode": "Encode a table of events as sequences.",
    "indicators": "Compute the indicators of bars into a store.",
    "order": "Say how good a shuffle is and what it costs to read.",
    "audit": "Audit the batches of a script.",
    "diagnose": "Find the bottleneck of a training script.",
    "gate": "Compare what a step does with a budget.",
    "train": "Train a model as a configuration says, or a recipe.",
    "forecast": "Forecast a series with a trained Time-MoE.",
    "export": "Export the model of a run as a program.",
    "runs": "Show the runs of a folder side by side.",
}


class _Lazy(click.Group):
    """A group that knows its commands by name, and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"stoker.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"stoker.cli.{cmd_name}.command is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(stoker.__version__, prog_name="stoker")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Make training on sequences as fast as the machine allows."""


class Terminated(BaseException):
    """The process was asked to end."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command: exit code 0, 2 for an error that has a line, 130 for Ctrl-C, 143 for SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to stop
    arguments = sys.argv[1:] if arguments is None else arguments
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]  # wherever it stands, but among arguments of a user's script
    arguments = [argument for argument in arguments[:end] if argument != "--debug"] + arguments[end:]
    try:
        cli.main(arguments, prog_name="stoker", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _end(130, _stopped(arguments))
    except Terminated:
        _end(143, _stopped(arguments))
    except click.ClickException as error:
        _end(2, f"stoker: {_usage(error)}")
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except (StokerError, OSError) as error:
        if debug:
            raise
        _end(2, f"stoker: {_line(error)}")


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _stopped(arguments: list[str]) -> str:
    goes_on = " and it goes on" if "pack" in arguments else ""
    return f"stoker: stopped. Nothing is lost: run the same command again{goes_on}."


def _usage(error: click.ClickException) -> str:
    """What is wrong with a call, and where its help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" See: {context.command_path} --help" if context is not None else ""
    return shorten(printable(error.format_message())) + hint


def _line(error: Exception) -> str:
    text = error.strerror if isinstance(error, StokerError) and isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, StoreExistsError):
        text = text.replace("replace=True", "--replace")  # what this command line calls it
    return shorten(printable(text))


def _end(code: int, line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.exit(code)
