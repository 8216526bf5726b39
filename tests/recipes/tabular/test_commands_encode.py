"""`stoker tabular encode`: every option reaches the encoder, and the result is said in one line or in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done

from stoker.store.opening import open_store
from stoker_recipes.tabular import analyze

Stoker = Callable[..., Done]


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text("user_id,item,price\n7,4,1.5\n3,5,2.5\n7,6,\n9,7,4.5\n")
    return path


def test_the_result_is_said(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = stoker("tabular", "encode", events, out, "--key", "user_id")
    assert done == Done(0, f"encoded 4 rows as 3 sequences, 120 B: {out}\nnext: stoker inspect {out}\n", "")
    store = open_store(out)
    assert store.column("user_id").tolist() == [3, 7, 9]
    assert [one["item"].tolist() for one in store] == [[5], [4, 6], [7]]


def test_json_for_programs(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    done = stoker("tabular", "encode", events, tmp_path / "out", "--key", "user_id", "--json")
    found = json.loads(done.out)
    assert (found["num_series"], found["num_steps"], found["key"]) == (3, 4, "user_id")


def test_statistics_are_written_beside_the_store(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    contexts = tmp_path / "users.csv"
    contexts.write_text("user_id\n7\n99\n")
    arguments = [tmp_path / "out", "--key", "user_id", "--stats", tmp_path / "stats.json", "--columns", "item"]
    done = stoker("tabular", "encode", events, *arguments, "--context", contexts)
    assert done.out.splitlines()[1] == f"statistics: {tmp_path / 'stats.json'}"
    store = open_store(tmp_path / "out")
    expected = analyze([str(events)], columns="item").with_lengths("user_id", store.lengths)
    assert (tmp_path / "stats.json").read_bytes() == expected.to_json()
    assert (expected.names, expected.cnt_lengths) == (["item"], {"0": 1, "2": 1})
    assert list(store.schema) == ["user_id", "item"]
