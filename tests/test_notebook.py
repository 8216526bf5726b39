"""`%%stoker` in a notebook: the program of a cell, and what runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stoker
from stoker.diagnose.measurements import SourceLine
from stoker.errors import OptionError
from stoker.notebook import run_cell

SET_UP = """import torch
%matplotlib inline
!pip list
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"""
LOOP = """for step in range(40):
    loss = model(torch.ones(8, 4) * step / 40).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


class Shell:
    """What the extension uses of IPython's shell."""

    def __init__(self, *cells: str) -> None:
        self.history_manager = SimpleNamespace(input_hist_raw=["", *cells])
        self.magics: dict[str, Any] = {}

    def register_magic_function(self, function: Any, magic_kind: str) -> None:
        assert magic_kind == "cell"
        self.magics[function.__name__] = function


def magic(*cells: str) -> tuple[Any, str, str]:
    """The magic of a notebook whose last cell starts with `%%stoker`, and its arguments."""
    shell = Shell(*cells)
    stoker.load_ipython_extension(shell)
    first, _, rest = cells[-1].partition("\n")
    return shell.magics["stoker"], first.removeprefix("%%stoker "), rest


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The outputs of programs that would be diagnosed or compared, run here."""
    outputs: list[str] = []

    def run(path: Path | str, **options: object) -> str:
        space: dict[str, Any] = {"outputs": outputs, "__name__": "__main__"}
        exec(compile(Path(path).read_text(), str(path), "exec"), space)
        return "a finding"

    monkeypatch.setattr("stoker.diagnose.api.diagnose_script", run)
    monkeypatch.setattr(sys.modules["stoker.compare"], "compare", lambda *sides, **options: [run(side.program) for side in sides])
    return outputs


def test_a_cell_runs_after_the_earlier_ones_without_lines_of_ipython(programs: list[str]) -> None:
    function, line, cell = magic("a = 1\n%time\n!ls", "%%bash\nls", "b = [", "%%stoker diagnose\noutputs.append(a)")
    assert function(line, cell) == "a finding"
    assert programs == [1]


def test_chosen_cells_run_before(programs: list[str]) -> None:
    function, line, cell = magic("a = 1", "a = 2", "a = 3", "%%stoker diagnose --cells 1-2\noutputs.append(a)")
    function(line, cell)
    assert programs == [2]


def test_a_line_keeps_its_number_in_the_cell(programs: list[str]) -> None:
    function, line, cell = magic("a = 1", "%%stoker diagnose\n\nimport sys\noutputs.append(sys._getframe().f_lineno)")
    function(line, cell)
    assert programs == [4], "the fourth line of the cell, whose first is the magic"


def test_a_finding_names_cells_and_no_files_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnose(path: Path, **options: object) -> SourceLine:
        return SourceLine(file=f"{path}", line=3, function=f"{path.parent}/In [1]:2")

    monkeypatch.setattr("stoker.diagnose.api.diagnose_script", diagnose)
    function, line, cell = magic("a = 1", "%%stoker diagnose\na")
    assert function(line, cell) == SourceLine(file="In [2]", line=3, function="In [1]:2")


def test_two_cells_are_compared_after_the_same_cells(programs: list[str]) -> None:
    function, line, cell = magic("a = 1", "outputs.append(a)", "a += 5", "%%stoker compare 2 --seeds 4\noutputs.append(10 * a)")
    function(line, cell)
    assert programs == [6, 60]


@pytest.mark.parametrize(
    "line", ["", "prof", "diagnose --cells 7", "diagnose --cells x", "compare", "compare 9", "diagnose --time-limit x"]
)
def test_what_cannot_be_run_is_refused_with_an_error(line: str) -> None:
    with pytest.raises(OptionError, match="expected"):
        run_cell(line, "", ["", "a = 1", "%%stoker"])


@pytest.mark.slow
def test_a_loop_of_a_notebook_is_diagnosed_and_compared() -> None:
    function, line, cell = magic(
        SET_UP, LOOP.replace("40", "4000"), f"%%stoker diagnose --cells 1 --time-limit 20\n{LOOP.replace('40', '100000')}"
    )
    finding = function(line, cell)
    assert finding.measurements.steps_seen > 100
    assert "<pre" in finding._repr_html_()
    function, line, cell = magic(SET_UP, LOOP, f"%%stoker compare 2 --budget 5\n{LOOP}")
    receipt = function(line, cell)
    assert receipt.losses.verdict == "equal"
    assert receipt.names == ("In [2]", "In [3]")
