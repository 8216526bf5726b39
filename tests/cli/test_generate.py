"""`stoker train tabular` and `stoker generate`."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.cli.calling import Done
from tests.harness.faulty import FaultyFiles
from tests.recipes.tabular.frames import make_events, make_users

from stoker.recipes.tabular import Synthesizer

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_events(40).to_parquet("events.parquet")
    make_users(40).to_csv("users.csv", index=False)
    Path("few.csv").write_text("user,one,x\n0,1,5\n1,1,6\n2,1,7\n")
    Path("words.csv").write_text("user,x\nanna,5\nbob,6\n")
    Path("lost.csv").write_text("user,x\n0,5\n,6\n2,7\n")
    Path("empty.parquet").write_bytes(b"")
    Path("text.parquet").write_text("user,x\n0,5\n")
    Path("header.csv").write_text("user,x\n")
    Path("only.csv").write_text("user\n" + "".join(f"{number}\n" for number in range(40)))
    many = {"user": list(range(40)), "x": [1.5] * 39 + [float("inf")]}
    parquet.write_table(pa.table(many), "far.parquet")
    parquet.write_table(pa.table([pa.array(many["x"])] * 2, names=["x", "x"]), "twice.parquet")
    parquet.write_table(pa.table({"user": many["user"], "x": [[1]] * 40}), "lists.parquet")
    parquet.write_table(pa.table({"user": [*range(39), None], "x": many["user"]}), "nan.parquet")
    return tmp_path


def test_a_run_is_trained_resumed_and_generates(stoker: Stoker, folder: Path) -> None:
    options = ["--key", "user", "--context", "users.csv", "--size", "s", "--epochs", "1", "--device", "cpu"]
    done = stoker("train", "tabular", "--target", "events.parquet", *options, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["epoch"] == 1
    done = stoker("train", "--resume", "runs/events", "--quiet", "--device", "cpu")
    assert done.code == 0, done.err
    assert "next: stoker generate runs/events" in done.out
    done = stoker(
        "generate", "runs/events", "--subjects", "30", "--out", "new.parquet", "--context-out", "who.csv", "--device", "cpu"
    )
    assert done.code == 0, done.err
    found = pd.read_parquet("new.parquet")
    assert list(found.columns) == list(make_events(1).columns)
    assert pd.read_csv("who.csv")["user"].tolist() == list(range(30))
    make_events(5).groupby("user").head(1).to_parquet("given.parquet")
    done = stoker(
        "generate", "runs/events", "--given", "given.parquet", "--out", "on.csv", "--temperature", "0.8", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert set(pd.read_csv("on.csv")["user"]) == set(range(5))
    shares = ["--rebalance", "state=b:1", "--rebalance", "segment=y:0.5", "--rebalance", "segment=z:0.5", "--impute", "score"]
    done = stoker(
        "generate", "runs/events", "--subjects", "30", *shares, "--out", "b.csv", "--context-out", "y.csv", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert set(pd.read_csv("b.csv")["state"]) == {"b"}
    assert pd.read_csv("b.csv")["score"].notna().all()
    assert set(pd.read_csv("y.csv")["segment"]) == {"y", "z"}
    failing = ["--temperature", "0", "--out", "bad.parquet", "--context-out", "bad.csv"]
    done = stoker("generate", "runs/events", "--subjects", "30", *failing, "--device", "cpu")
    assert done.code != 0
    assert done.err == "stoker: --temperature is 0.0; expected a number from 0.001 to 100.\n"
    assert not list(folder.glob("bad.*"))  # not the contexts alone either


def test_several_files_are_one_table(stoker: Stoker, folder: Path) -> None:
    """By a folder, a pattern and repeated options: the same run, named after the folder or the first file."""
    events = make_events(40)
    Path("parts").mkdir()
    for number in range(3):
        events.iloc[number * 60 : number * 60 + 60 if number < 2 else None].to_parquet(f"parts/{number}.parquet")
    options = ["--key", "user", "--size", "s", "--epochs", "1", "--device", "cpu", "--quiet"]
    each = [word for number in range(3) for word in ("--target", f"parts/{number}.parquet")]
    for run, target in (
        ("parts", ["--target", "parts"]),
        ("0", each),
        ("all", ["--target", "parts/*.parquet", "--folder", "runs/all"]),
    ):
        done = stoker("train", "tabular", *target, *options)
        assert done.code == 0, done.err
        assert Path(f"runs/{run}/model.safetensors").read_bytes() == Path("runs/parts/model.safetensors").read_bytes()
    done = stoker("train", "--resume", "runs/0", "--quiet", "--device", "cpu")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train", "tabular"], "Give --target FILE, or --resume FOLDER. See: stoker train tabular --help"),
        (["train", "tabular", "--target", "no.parquet"], "there is no file no.parquet. Give another one."),
        (
            ["generate", "runs/events", "--out", "new.csv", "--rebalance", "state=b"],
            "--rebalance is 'state=b'; expected COLUMN=VALUE:SHARE with a share from 0 to 1, such as segment=gold:0.5.",
        ),
        (
            ["train", "tabular", "--target", "events.parquet", "--key", "id"],
            "events.parquet has no column 'id'; it has 'user', 'state', 'amount', 'score', 'late', 'time'. Name one of them: --key …",
        ),
        (
            ["train", "tabular", "--target", "few.csv", "--key", "user"],
            "few.csv has 3 subjects; protection needs at least 20, because every value of fewer is rare. "
            "Pass --no-protect to keep all values.",
        ),
        (
            ["train", "tabular", "--target", "few.csv", "--key", "one", "--no-protect"],
            "few.csv has 1 subject; expected at least 2, as some are kept for validation. Give more of them.",
        ),
        (
            ["train", "tabular", "--target", "events.parquet", "--key", "user", "--context", "few.csv"],
            "events.parquet has the user 3 in row 10, which context does not have. Add it there, or drop its rows.",
        ),
        (
            ["train", "tabular", "--target", "events.parquet", "--key", "user", "--context", "words.csv"],
            "user is of the type int64 in events.parquet, but of the type string in context. Convert one of them.",
        ),
        (
            ["train", "tabular", "--target", "events.parquet", "--key", "user", "--encoding", "state=gps"],
            "--encoding is state=gps; expected one of auto, categorical, numeric, datetime, relative, lat_long, "
            "character.",
        ),
        (["train", "tabular", "--target", "lost.csv", "--key", "user"], "lost.csv, row 1: the user is missing; expected one for each row. "
            "Fill it, or drop the row."),
        (
            ["train", "tabular", "--target", "events.parquet", "--encoding", "state"],
            "--encoding is 'state'; expected COLUMN=KIND, such as place=lat_long. See: stoker train tabular --help",
        ),
        (
            ["train", "tabular", "--target", "empty.parquet"],
            "empty.parquet cannot be read: Could not open Parquet input source 'empty.parquet': Parquet file size is 0 bytes. Is it a "
            ".parquet file? Give another one.",
        ),
        (
            ["train", "tabular", "--target", "text.parquet"],
            "text.parquet cannot be read: Could not open Parquet input source 'text.parquet': Parquet magic bytes not found in footer. "
            "Either the file is corrupted or this is not a parquet file. Is it a .parquet file? Give another one.",
        ),
        (["train", "tabular", "--target", "header.csv"], "header.csv has no rows. Give a table with some."),
        (
            ["train", "tabular", "--target", "only.csv", "--key", "user"],
            "only.csv has no column to learn beside the key. Give a table with at least one more column.",
        ),
        (
            ["train", "tabular", "--target", "far.parquet", "--key", "user"],
            "far.parquet, column 'x', row 39: found inf; expected a finite number. Replace or drop it.",
        ),
        (["train", "tabular", "--target", "twice.parquet"], "twice.parquet has more than one column 'x'. Rename or drop one of them."),
        (
            ["train", "tabular", "--target", "lists.parquet"],
            "lists.parquet, column 'x' is of the type list<element: int64>; expected numbers, booleans, strings, dates or times. Drop or "
            "convert it.",
        ),
        (
            ["train", "tabular", "--target", "nan.parquet", "--key", "user"],
            "nan.parquet, row 39: the user is missing; expected one for each row. Fill it, or drop the row.",
        ),
        (
            ["train", "tabular", "--target", "events.parquet", "--batch-size", "0"],
            "--batch-size is 0; expected an integer from 1 to 16,777,216.",
        ),
        (["generate", "run", "--out", "x.txt"], "OUT is x.txt; expected a name that ends in .parquet or .csv."),
        (
            ["generate", "run", "--out", "events.parquet"],
            "events.parquet already exists. Replace the file (--overwrite), or give another name.",
        ),
        (["generate", "run", "--out", "no/x.csv"], "no/x.csv cannot be written: there is no folder no. Create it first."),
        (["generate", "run", "--out", "x.csv"], "run has no recipe.json, so it is not a run of tabular. Give the folder of one."),
    ],
)  # fmt: skip
def test_errors_are_one_line(stoker: Stoker, folder: Path, arguments: list[str], line: str) -> None:
    done = stoker(*arguments)
    assert (done.code, done.err) == (2, f"stoker: {line}\n")
    assert not Path("runs").exists()  # nothing is written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    path = tmp_path_factory.mktemp("trained") / "run"
    Synthesizer(size="s", epochs=1).fit(make_events(40), key="user", context=make_users(40), folder=path, device="cpu")
    return path


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--temperature", "nan"], "--temperature is nan; expected a number from 0.001 to 100."),
        (["--top-p", "1.5"], "--top-p is 1.5; expected a number from 1e-06 to 1."),
        (["--given", "more.csv"],
            "more.csv has the columns 'more'; expected some of 'state', 'amount', 'score', 'late', 'time'. Drop the others."),
        (["--given", "states.csv"], "states.csv has no column 'user', the key that the model was trained with. Add it."),
        (["--given", "long.csv"], "long.csv has 50 events of one subject; the model was trained with at most 6. Give fewer."),
        (["--given", "one.csv", "--subjects", "9"], "--subjects is 9, but given has 1 subjects. Leave --subjects out."),
        (["--context", "few.csv"], "few.csv lacks the columns 'segment', 'age', which the model was trained with. Add them."),
        (
            ["--context", "users.csv", "--given", "new.csv"],
            "new.csv has the user 999 in row 0, which context does not have. Add it there, or drop its rows.",
        ),
        (
            ["--rebalance", "colour=red:0.5"],
            "--rebalance names the column 'colour'; expected one of 'state', 'amount', 'score', 'late', 'time', 'segment', 'age'.",
        ),
        (["--rebalance", "state=z:0.5"], "--rebalance state has the value 'z'; expected some of those that were kept: 'a', 'b', 'c'."),
        (["--impute", "colour"], "--impute names the column 'colour'; expected one of 'state', 'amount', 'score', 'late', 'time'."),
    ],
)  # fmt: skip
def test_errors_of_generation_are_one_line(stoker: Stoker, folder: Path, run: Path, options: list[str], line: str) -> None:
    Path("more.csv").write_text("user,state,more\n1,a,1\n")
    Path("states.csv").write_text("state\na\n")
    Path("long.csv").write_text("user,state\n" + "1,a\n" * 50)
    Path("one.csv").write_text("user,state\n1,a\n")
    Path("new.csv").write_text("user,state\n999,a\n")
    done = stoker("generate", run, "new.parquet", *options, "--device", "cpu")
    assert (done.code, done.err) == (2, f"stoker: {line}\n")
    assert not Path("new.parquet").exists()


def test_a_full_disk_leaves_both_tables_or_none(stoker: Stoker, folder: Path, run: Path) -> None:
    arguments = ["generate", run, "new.parquet", "--context-out", "who.csv", "--subjects", "30", "--device", "cpu"]
    with FaultyFiles() as counted:
        assert stoker(*arguments).code == 0
    assert counted.operations > 4
    for operation in range(counted.operations):
        for name in ("new.parquet", "who.csv"):
            Path(name).unlink(missing_ok=True)
        with FaultyFiles(error_at=(operation, errno.ENOSPC)):
            done = stoker(*arguments)
        left = [name for name in ("new.parquet", "who.csv") if Path(name).exists()]
        if done.code:
            assert done.err.count("\n") == 1
            assert "No space left" in done.err or "full" in done.err
            assert left == [], operation
        else:
            assert len(left) == 2
        assert not [path for path in folder.iterdir() if "tmp" in path.name]
