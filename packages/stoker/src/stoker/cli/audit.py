"""`stoker audit`: run a user's script, find its batches, and report what is wrong with them.

The script runs as in a diagnosis until its training loop is known. Where the call names something of the script (`train.py:make_loader`,
`--reference`, `--apart-from`), only its top level runs, in this process, and the names are looked up there.
"""

from __future__ import annotations

import contextlib
import inspect
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable, printable_lines
from stoker.cli import command as base
from stoker.cli.launchers import ScriptCall, launch
from stoker.errors import BatchError, OptionError, StokerError

if TYPE_CHECKING:
    from stoker.audit.auditor import AuditReport

NAME = "__stoker_check__"
"""The value of `__name__` in the script."""
MAX_NAMES = 12


class Script:
    """The top level of a script that has run."""

    def __init__(self, path: Path, wanted: str | None, names: dict[str, Any]) -> None:
        self._path = path
        self._wanted = wanted
        self._names = names
        self._public = {name: one for name, one in names.items() if not name.startswith("_") and not isinstance(one, ModuleType)}

    @classmethod
    @contextlib.contextmanager
    def run(cls, script: str, arguments: Sequence[str]) -> Iterator[Script]:
        """Run a script, given as a path with or without `:NAME`. An error in it, then or later, becomes one line."""
        path, wanted = cls.parts(script)
        if not path.is_file():
            raise OptionError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; expected a Python script.")
        argv, paths = sys.argv, list(sys.path)
        sys.argv = [str(path), *arguments]
        sys.path.insert(0, str(path.resolve().parent))
        try:
            names = runpy.run_path(str(path), run_name=NAME)
            module = ModuleType(NAME)  # classes of the script are looked up by the name of their module
            module.__dict__.update(names)
            sys.modules[NAME] = module
            yield cls(path, wanted, names)
        except StokerError:
            raise
        except SystemExit as end:
            raise BatchError(f"{path} exited with code {end.code!r} before its batches could be read.") from end
        except Exception as error:
            first, *rest = str(error).strip().splitlines() or ["(no message)"]
            text = f"{first} … {rest[-1]}" if rest else first
            raise BatchError(f"{path}{_line_of(error, path)} raised {type(error).__name__}: {text}") from error
        finally:
            sys.argv, sys.path[:] = argv, paths
            sys.modules.pop(NAME, None)

    @staticmethod
    def parts(script: str) -> tuple[Path, str | None]:
        """Return the path of a script and the name after it, if there is one."""
        before, _, name = script.rpartition(":")
        wanted = name if before and name.isidentifier() and not Path(script).exists() else None
        return Path(before if wanted else script), wanted

    def batches(self) -> Any:
        """The iterable of batches, or a function that returns one."""
        from stoker.diagnose.audit_script import only_loader

        return self._get(self._wanted) if self._wanted is not None else only_loader(str(self._path), self._public)

    def data(self, name: str | None) -> Any:
        """The value of a name; a function is called. None for None."""
        value = None if name is None else self._get(name)
        return value() if isinstance(value, FunctionType) else value

    def _get(self, name: str) -> Any:
        if name not in self._names:
            names = ", ".join(list(self._public)[:MAX_NAMES])
            raise OptionError(f"{self._path} has no {name!r} at its top level; it has {names or 'no names'}.")
        value = self._names[name]
        if isinstance(value, FunctionType) and not _needs_nothing(value):
            raise OptionError(f"{name} of {self._path} needs arguments; expected a function without required arguments.")
        return value


def _needs_nothing(function: FunctionType) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _line_of(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f" line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""


COLORS = {"fault": "bold red", "note": "yellow", "unchecked": "dim", "passed": "green"}


@click.command("audit", cls=base.Command, doing="auditing the batches of {script}", runs_script=True)
@click.argument("script", type=base.SCRIPT, metavar="SCRIPT.py[:NAME]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@base.module_option
@click.option("--reference", metavar="NAME", help="All samples: a dataset, or other batches. [default: the dataset of the loader]")
@click.option(
    "--apart-from", metavar="NAME", help="Data that must share no sample with the batches. [default: the validation loaders]"
)
@click.option("--ids", metavar="ENTRY", help="Entry of a batch that holds the index of each sample.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Epochs to read; 2 compares their order.")
@click.option("--max-batches", type=click.IntRange(min=1), metavar="N", help="Batches to read per epoch. [default: all]")
@click.option("--shuffled/--not-shuffled", default=None, help="Whether the order should be shuffled. [default: ask the loader]")
@base.json_option
@click.pass_context
def command(
    ctx: click.Context, /, script: str, arguments: tuple[str, ...], is_module: bool, reference: str | None, apart_from: str | None,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run SCRIPT.py until its training loop is known, and audit what its loader yields, compared with its validation loaders.

    The script cannot change your files meanwhile, and trains a few steps at most. With NAME (a loader, or a function that returns one),
    --reference or --apart-from, only the top level of the script runs, with the name __stoker_check__. Exit code 0: no error was found,
    1: the audit finds an error, 2: it could not be made.

    \b
    stoker audit train.py --epochs 1
    stoker audit -m package.train
    stoker audit --apart-from val_loader --epochs 2 train.py:train_loader
    stoker audit --max-batches 100 train.py:make_loader --config small.yaml
    """
    script, arguments, is_module = launch(ctx, ScriptCall(script, arguments, is_module), in_workers=False)
    from stoker.audit import audit

    names = reference is not None or apart_from is not None or (not is_module and Script.parts(script)[1] is not None)
    if names and is_module:
        raise OptionError("--reference and --apart-from name things of a script, but -m was given. Give the path of the script.")
    report: AuditReport | None
    if names:
        # Keep the output of the script out of the result.
        with base.script_output(sys.stderr), base.bar("samples") as show, Script.run(script, arguments) as ran:
            batches = ran.batches()
            report = audit(batches, reference=ran.data(reference), apart_from=ran.data(apart_from), progress=show, **options)
    else:
        from stoker.diagnose.audit_script import audit_script

        shown = {"quiet": base.drops_script_output(), "shows_progress": not base.is_quiet()}
        answer = audit_script(script, arguments, module=is_module, **shown, **options)
        report = answer.report
        others = (
            f"{answer.num_others} other loader{'' if answer.num_others == 1 else 's'}" if answer.num_others else "no other loader"
        )
        base.announce(f"the training data was compared with {others} of the script (--apart-from NAME names one)")
    assert report is not None
    if as_json:
        base.print_json(report.to_dict())
    else:
        _print(report)
    if not report.ok:
        raise SystemExit(1)


def _print(found: AuditReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:  # a log or a pipe: one check per line, of any width
        click.echo(printable_lines(str(found)))
        return
    from stoker.audit.auditor import WORDS

    table = Table.grid(padding=(0, 2), pad_edge=False)
    for can_wrap in (False, False, True):
        table.add_column(no_wrap=not can_wrap, overflow="fold")
    for one in found.checks:
        table.add_row(Text(WORDS[one.severity], style=COLORS[one.severity]), Text(one.kind), Text(printable(one.text)))
    console.print(Text(printable(found.headline), style="bold"), Text(printable(found.basis)), "", table, sep="\n")
