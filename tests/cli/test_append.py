"""`stoker append`: what it prints, and what it refuses in the words of the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.calling import Done

from stoker.store.inspect import inspect
from stoker.store.opening import open_store

Stoker = Callable[..., Done]


def test_a_day_is_appended(stoker: Stoker, packed_prices: Path, day: Path) -> None:
    done = stoker("append", packed_prices, day, "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"appended 2 rows: {packed_prices} has 3 series, 1 of them new\n"
    assert "1 appends (see `stoker append --compact`)" in " ".join(stoker("inspect", packed_prices).out.split())
    assert stoker("inspect", packed_prices, "--verify").code == 0


def test_overlap_is_refused_in_the_words_of_the_command(stoker: Stoker, packed_prices: Path, day: Path) -> None:
    stoker("append", packed_prices, day, "--quiet")
    done = stoker("append", packed_prices, day, "--quiet")
    assert done.code == 2
    assert "pass --overlap replace or --overlap keep to merge them by time" in done.err
    found = json.loads(stoker("append", packed_prices, day, "--overlap", "replace", "--json").out)
    assert (found["num_new_rows"], found["num_new_series"], found["num_series"]) == (2, 0, 3)
    assert open_store(packed_prices).num_steps == 6


def test_a_store_is_compacted_in_place(stoker: Stoker, packed_prices: Path, day: Path) -> None:
    stoker("append", packed_prices, day, "--quiet")
    assert stoker("append", packed_prices, "--compact").out.startswith(f"compacted: {packed_prices} has 3 series, 6 steps")
    assert inspect(packed_prices).num_appends == 0


def test_rows_are_appended_before_the_store_is_compacted(stoker: Stoker, packed_prices: Path, day: Path) -> None:
    done = stoker("append", packed_prices, day, "--compact", "--json")
    found = json.loads(done.out)
    assert (done.err, found["num_new_rows"], found["num_series"]) == ("", 2, 3)
    assert inspect(packed_prices).num_appends == 0
