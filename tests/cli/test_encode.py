"""`stoker encode`: every option reaches the encoder, and the result is said in one line or in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.calling import Done

from stoker.cli import main as cli
from stoker.cli.encode import command
from stoker.encode import analyze
from stoker.encode.sequences import store as sequences_store
from stoker.errors import OptionError
from stoker.store.versions import open_store

Stoker = Callable[..., Done]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "encode", "Encode a table of events as sequences.")


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text("user_id,item,price\n7,4,1.5\n3,5,2.5\n7,6,\n9,7,4.5\n")
    return path


def test_the_result_is_said(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = stoker("encode", events, "--key", "user_id", "--out", out)
    assert done == Done(0, f"encoded 4 rows as 3 sequences, 120 B: {out}\n", "")
    store = open_store(out)
    assert store.column("user_id").tolist() == [3, 7, 9]
    assert [one["item"].tolist() for one in store] == [[5], [4, 6], [7]]


def test_sequences_of_given_contexts(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\n8,1\n7,2\n1,3\n")
    done = stoker("encode", events, "--key", "user_id", "--context", tmp_path / "users.csv", "--out", tmp_path / "out")
    assert done.code == 0
    assert done.out.startswith("encoded 2 rows as 3 sequences (2 without rows), ")
    assert "note: 2 rows have a user_id that is not among the contexts, and were left out\n" in done.out
    assert open_store(tmp_path / "out").lengths.tolist() == [0, 2, 0]


def test_json_for_programs(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    done = stoker("encode", events, "--key", "user_id", "--out", tmp_path / "out", "--json")
    found = json.loads(done.out)
    assert (found["num_series"], found["num_steps"], found["key"]) == (3, 4, "user_id")


GIVEN: dict[str, Any] = {
    "key": "k",
    "columns": "a,b",
    "contexts": "users.csv",
    "time": "t",
    "sort": True,
    "dtype": "float32",
    "missing": "ffill",
    "memory": "300MB",
    "threads": 3,
    "replace": True,
}


def test_every_option_reaches_the_encoder(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def record(source: Any, path: Any, **options: Any) -> None:
        seen.update(options, source=source, path=path)
        raise OptionError("seen")

    monkeypatch.setattr(sequences_store, "pack_sequences", record)
    arguments = [
        word
        for name, value in GIVEN.items()
        for word in (f"--{name}" if name != "contexts" else "--context", *([] if value is True else [str(value)]))
    ]
    assert stoker("encode", "x", "y", "--out", "out", *arguments).err == "stoker: seen\n"
    seen.pop("progress")
    assert seen == {**GIVEN, "source": ["x", "y"], "path": "out"}


def test_the_options_are_those_of_the_function() -> None:
    helped = {option.name for option in command.params if isinstance(option, click.Option) and option.expose_value}
    defaults = {**(sequences_store.pack_sequences.__kwdefaults__ or {})}
    assert helped - {"as_json", "stats", "key"} == set(defaults) - {"progress"}
    given = command.make_context("encode", ["a.csv", "--key", "k", "--out", "o"]).params
    assert {name: given[name] for name in defaults if name != "progress"} == {n: v for n, v in defaults.items() if n != "progress"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--key", "user"], "stoker: --key names 'user', but {events} has the columns user_id, item, price.\n"),
        (
            ["--key", "user_id", "--columns", "x"],
            "stoker: --columns names 'x', but {events} has the columns user_id",
        ),
        (["--key", "user_id", "--context", "gone.csv"], "stoker: gone.csv does not exist. Give a file, a folder, or a pattern"),
        (["--key", "price"], "stoker: --key price is double in {events}; expected a string, an integer or a date"),
    ],
)
def test_an_error_is_one_line(stoker: Stoker, events: Path, tmp_path: Path, arguments: list[str], line: str) -> None:
    done = stoker("encode", events, "--out", tmp_path / "out", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(line.format(events=events))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "line"), [(["a.csv", "o"], "Missing option '--key' / '--series'"), (["a.csv", "--key", "k"], "Missing argument")]
)
def test_key_and_store_are_needed(stoker: Stoker, arguments: list[str], line: str) -> None:
    done = stoker("encode", *arguments)
    assert done.code == 2
    assert line in done.err


def test_statistics_are_written_beside_the_store(stoker: Stoker, events: Path, tmp_path: Path) -> None:
    contexts = tmp_path / "users.csv"
    contexts.write_text("user_id\n7\n99\n")
    arguments = ["--key", "user_id", "--out", tmp_path / "out", "--stats", tmp_path / "stats.json", "--columns", "item"]
    done = stoker("encode", events, *arguments, "--context", contexts)
    assert done.out.splitlines()[1] == f"statistics: {tmp_path / 'stats.json'}"
    store = open_store(tmp_path / "out")
    expected = analyze([str(events)], columns="item").with_lengths("user_id", store.lengths)
    assert (tmp_path / "stats.json").read_bytes() == expected.to_json()
    assert (expected.names, expected.cnt_lengths) == (["item"], {"0": 1, "2": 1})
    assert list(store.schema) == ["user_id", "item"]
