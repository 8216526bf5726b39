"""A finding on a terminal: short, folded at its width, and never obeyed."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.diagnose.findings import ALL, on_gpu, with_texts, without_verdict

from stoker.diagnose.finding import Finding, place_beside, show, text
from stoker.diagnose.measurements import SourceLine

IN_A_PIPE = """\
VERDICT  data-bound: without loading, a step takes 6.05 ms instead of 13.5 ms (2.23x)
         (confidence high, steps vary by 3.1 %; then launch-bound, 21 %)
BECAUSE  IceDataset.__getitem__ (iceaggr/data.py:88): 72 % of the loader's time
REMOVED  loading               13.5 ms -> 6.05 ms   2.23x (2.17-2.27)
         uploads               13.5 ms -> 13.3 ms   1.01x (1.00-1.03)
         all of these          13.5 ms -> 5.86 ms   2.30x (2.27-2.34)
         all but GPU kernels   13.5 ms -> 3.25 ms   4.15x at best
NEXT     1. pack to a store and use stoker.Feed
            predicted 2.23x   tried 2.11x (2.02-2.20)   losses equal
         2. then capture the step as a CUDA graph
            predicted 1.86x   tried 1.79x (1.71-1.90)   losses equal to 8e-07
         3. torch.compile the model
            predicted 1.40x   could not be tried: data-dependent jump (model.py:31)
         4. 4 worker processes in place of 0
            predicted 1.90x
         5. a larger batch
REFUTED  1. compute in bfloat16 (torch.autocast)
            predicted 1.00x   tried 0.97x (0.94-1.01)   losses changed by 4.2 %
WRONG    samples come again: 10 of 150 rows of epoch 0 came twice (data.py:88)
         x and y are of different rows in 3 of 24 batches
NOTE     torch.save to runs/best.pt went to /tmp/stoker-x1/best.pt
         steps 1 to 14 were left out: they were still getting faster
"""

ANSI = re.compile(r"\x1b\[[\d;]*m")
HOSTILE = "\x1b]0;owned\x07[bold red]x\x9b31m\u202e\n\r日本"


def printed(finding: Finding, *, terminal: bool, width: int) -> str:
    file = io.StringIO()
    show(
        finding,
        Console(file=file, force_terminal=terminal, width=width, highlight=False, color_system="truecolor" if terminal else None),
    )
    return file.getvalue()


def test_in_a_pipe_each_thing_is_a_line() -> None:
    assert text(on_gpu()) == IN_A_PIPE
    assert "".join(line.rstrip() + "\n" for line in printed(on_gpu(), terminal=False, width=80).splitlines()) == IN_A_PIPE


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [60, 100])
def test_no_line_is_longer_than_the_terminal_and_nothing_is_lost(name: str, width: int) -> None:
    for finding in (ALL[name](), with_texts(ALL[name](), "日本語の名前" * 30 + " long"), with_texts(ALL[name](), "x" * 300)):
        folded = ANSI.sub("", printed(finding, terminal=True, width=width))
        assert max(cell_len(line) for line in folded.splitlines()) <= width
        assert sorted("".join(folded.split())) == sorted("".join(text(finding).split()))


def test_colours_on_a_terminal_and_none_elsewhere() -> None:
    assert "\x1b[1;32mdata-bound" in printed(on_gpu(), terminal=True, width=100)
    assert "\x1b[1;31m" in printed(on_gpu(), terminal=True, width=200)
    assert "\x1b[1;33mNO VERDICT" in printed(without_verdict(), terminal=True, width=100)
    assert "\x1b" not in printed(on_gpu(), terminal=False, width=100)


def test_no_verdict_says_why() -> None:
    assert text(without_verdict()).splitlines() == [
        "VERDICT  NO VERDICT: only 5 steps were seen, and 12 are needed: let the script run longer",
        "         (steps vary by unknown)",
    ]


@pytest.mark.promise("P21")
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("terminal", [False, True])
def test_names_do_not_steer_the_terminal(name: str, terminal: bool) -> None:
    shown = printed(with_texts(ALL[name](), HOSTILE), terminal=terminal, width=100)
    plain = shown if not terminal else "".join(part.partition("m")[2] for part in f"\x1b[m{shown}".split("\x1b[")[1:])
    assert not set(plain) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}
    assert "\\x1b]0;owned\\x07[bold" in plain


def test_the_line_to_inspect_is_not_said_twice() -> None:
    assert place_beside(on_gpu()) is None
    elsewhere = msgspec.structs.replace(on_gpu(), why="files are read whole")
    assert str(place_beside(elsewhere)) == "IceDataset.__getitem__ (iceaggr/data.py:88)"


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("Rows.__getitem__", "Rows.__getitem__ (a.py:3)"),
        ("Rows.__getitem__.<locals>.<listcomp>", "Rows.__getitem__ (a.py:3)"),
        ("main.<locals>.step", "main.<locals>.step (a.py:3)"),
        ("<module>", "a.py:3"),
        ("<lambda>", "a.py:3"),
    ],
)
def test_a_line_is_shown_with_a_function_that_has_a_name(function: str, shown: str) -> None:
    assert str(SourceLine(file="a.py", line=3, function=function)) == shown
