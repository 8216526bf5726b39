"""Commands in a notebook: `%load_ext stoker`, then `%%stoker diagnose` or `%%stoker compare 3` in the first line of a cell.

The program that runs is this cell after the earlier ones, in a fresh process: no variable of the notebook changes. Lines of IPython
(`%...`, `!...`) and cells of other magics are left out. Each cell is a file, so that a line in a result is a line of a cell.
"""

from __future__ import annotations

import argparse
import ast
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from stoker import _disk
from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.compare.receipt import Receipt
    from stoker.diagnose.finding import Finding

RUN_EARLIER = 'for _file in {files!r}: exec(compile(__import__("pathlib").Path(_file).read_text(), _file, "exec"), globals())'
"""The first line of a program, in place of the magic: the lines after it keep their numbers."""


class _Parser(argparse.ArgumentParser):
    """Raises an error instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; expected `%%stoker diagnose` or `%%stoker compare CELL`.", parameter="line")


def _parser() -> _Parser:
    parser = _Parser(prog="%%stoker", add_help=False)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    common = _Parser(add_help=False)
    common.add_argument("--cells", help="earlier cells that run before, like 1,3-5; all by default")
    diagnose = commands.add_parser("diagnose", parents=[common], add_help=False)
    diagnose.add_argument("--time-limit", type=float, default=90.0, help="seconds after the first step")
    compare = commands.add_parser("compare", parents=[common], add_help=False)
    compare.add_argument("before", type=int, metavar="CELL", help="the number of the cell that this one is compared with")
    compare.add_argument("--budget", type=float, default=120.0, help="seconds after which no round starts")
    compare.add_argument("--seeds", type=int, default=0, help="repeats with other seeds")
    return parser


def register(shell: Any) -> None:
    """Add `%%stoker` to the shell of a notebook."""

    def stoker(line: str, cell: str) -> Finding | Receipt:
        return run_cell(line, cell, shell.history_manager.input_hist_raw)

    shell.register_magic_function(stoker, "cell")


def run_cell(line: str, cell: str, history: Sequence[str]) -> Finding | Receipt:
    """Run a cell with the command in its first line.

    Args:
        line: The rest of the first line: the command and its options.
        cell: The other lines.
        history: The cells that ran, by their numbers; the last one is this cell.

    Returns:
        A finding or a receipt, which the notebook shows.

    Raises:
        OptionError: The command is unknown, or a cell does not exist.
        TrainError: The program failed, or made no step.
    """
    asked = _parser().parse_args(shlex.split(line))
    number = len(history) - 1
    numbers = range(1, number) if asked.cells is None else _numbers(asked.cells, number)
    cells = {earlier: _python(history[earlier]) for earlier in numbers}
    with _disk.temporary_folder() as folder:
        if asked.command == "diagnose":
            from stoker.diagnose.api import diagnose_script

            program = _program(folder, number, cell, cells)
            finding = diagnose_script(program, quiet=True, time_limit=asked.time_limit)
            # The files are gone when the finding is read: cells have the names that the notebook shows.
            plain = _rename(msgspec.to_builtins(finding), {str(program): f"In [{number}]", f"{folder}/": ""})
            return msgspec.convert(plain, type(finding))
        if asked.before not in range(1, number):
            raise OptionError(
                f"In [{asked.before}] is not an earlier cell; expected a number from 1 to {number - 1}.", parameter="before"
            )
        from stoker.compare import compare
        from stoker.compare.sides import Version

        before = _python(history[asked.before]) or history[asked.before].partition("\n")[2]
        cells.pop(asked.before, None)
        first, second = (
            Version(program=str(_program(folder, named, text, cells)), title=f"In [{named}]")
            for named, text in ((asked.before, before), (number, cell))
        )
        return compare(first, second, budget=asked.budget, seeds=asked.seeds)


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    """Replace names in all strings of plain values."""
    if isinstance(value, dict):
        return {key: _rename(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [_rename(part, names) for part in value]
    if isinstance(value, str):
        for name, new in names.items():
            value = value.replace(name, new)
    return value


def _numbers(text: str, end: int) -> list[int]:
    """The numbers of `1,3-5`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or not 0 < int(first) <= int(last or first) < end:
            raise OptionError(
                f"--cells is {text!r}; expected numbers of earlier cells, like 1,3-5, below {end}.", parameter="cells"
            )
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _python(cell: str) -> str:
    """The Python of a cell, with lines of IPython replaced by empty ones; nothing of a cell of a magic, or of one that is not Python."""
    if cell.lstrip().startswith("%%"):
        return ""
    lines = ["" if line.lstrip().startswith(("%", "!", "?")) else line for line in cell.split("\n")]
    text = "\n".join(lines)
    try:
        ast.parse(text)
    except SyntaxError:
        return ""
    return text


def _program(folder: Path, number: int, cell: str, earlier: dict[int, str]) -> Path:
    """Write the program of a cell, and the cells before it."""
    files = []
    for other, text in earlier.items():
        files.append(str(folder / f"In [{other}]"))
        _disk.write_file(Path(files[-1]), text.encode(), durable=False)
    path = folder / f"cell_{number}.py"
    _disk.write_file(path, f"{RUN_EARLIER.format(files=files)}\n{cell}".encode(), durable=False)
    return path
