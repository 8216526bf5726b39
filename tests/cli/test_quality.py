"""`stoker quality`: the table, the files it writes, and errors in its own words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.calling import Done

from stoker.recipes.tabular import make_shop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("real", "synthetic", "holdout")):
        users, events = make_shop(60, seed=seed)
        pq.write_table(events, f"{name}.parquet")
        pq.write_table(users, f"{name}_users.parquet")
    return tmp_path


def test_a_report_and_numbers_are_written(stoker: Callable[..., Done], folder: Path) -> None:
    options = ["--key", "user_id", "--holdout", "holdout.parquet", "--report", "q.html", "--max-rows", "60"]
    contexts = ["--context", "real_users.parquet", "--synthetic-context", "synthetic_users.parquet"]
    call = ["quality", "real.parquet", "synthetic.parquet", *options, *contexts, "--holdout-context", "holdout_users.parquet"]
    done = stoker(*call)
    assert (done.code, done.err) == (0, "stoker: the report is q.html\n")
    assert "Time to the next event" in done.out
    numbers = json.loads(stoker(*call, "--json").out)
    assert numbers["tables"]["real"]["subjects"] == 60
    assert (folder / "q.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--report", "q.pdf"], "q.pdf ends in '.pdf'; expected a report that ends in '.html'."),
        (["--key", "who"], "--key who is not a column of real; it has user_id, time, state, amount, score."),
        (["--key", "user_id", "--time", "amount"], "--time amount is not a column of times, which are: time."),
        (["--key", "user_id", "--max-rows", "3"], "--max-rows 3 is not valid; expected an integer of at least 20."),
    ],
)
def test_errors_are_one_line(stoker: Callable[..., Done], folder: Path, options: list[str], line: str) -> None:
    done = stoker("quality", "real.parquet", "synthetic.parquet", *options)
    assert (done.code, done.err) == (2, f"stoker: {line}\n")
