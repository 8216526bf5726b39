"""Two ways side by side: rounds, ratios, and how they are told."""

from __future__ import annotations

import io
import json

import pytest
from benchmarks.comparison import Line, as_record, draw_bars, interleave, make_table, shown
from rich.console import Console

TIMES = Line(what="a step", unit="ms", before=[10.0, 30.0, 20.0], after=[1.0, 2.0, 1.0], note="equal")
RATES = Line(what="<points>", unit="points/s", before=[100.0], after=[250.0], is_rate=True)


def test_ratios_are_taken_pair_by_pair() -> None:
    assert TIMES.ratios == [10.0, 15.0, 20.0]
    assert TIMES.speedup == 15.0
    assert RATES.ratios == [2.5]


def test_both_ways_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    found = interleave(lambda: calls.append("before"), lambda: calls.append("after"), rounds=2)
    assert calls == ["before", "after"] * 3
    assert [len(side) for side in found] == [2, 2]


def test_the_table_and_the_record_say_the_same() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_table([TIMES, RATES], title="before and after", names=("theirs", "ours")))
    told = console.export_text()
    assert "15x" in told
    assert "2.5x" in told
    record = json.loads(as_record([TIMES, RATES], bench="x"))
    assert record["lines"][0]["ratio"] == {"median": 15.0, "min": 10.0, "max": 20.0}


def test_the_plot_says_the_same() -> None:
    pytest.importorskip("matplotlib")
    figure = draw_bars([TIMES, RATES], title="a & b", names=("theirs", "ours"))
    found = [text.get_text() for text in figure.texts]
    assert {"a & b", "<points>", "theirs", "ours", "longer bars are faster", "1 ms   15x", "250 points/s   2.5x"} <= set(found)


def test_numbers_are_short() -> None:
    assert [shown(value) for value in (12345.6, 123.4, 12.34, 0.01234)] == ["12,346", "123", "12.3", "0.0123"]
