"""`stoker train tabular` and `stoker generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.calling import Done
from tests.recipes.tabular.frames import make_events, make_users

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_events(40).to_parquet("events.parquet")
    make_users(40).to_csv("users.csv", index=False)
    Path("few.csv").write_text("user,one,x\n0,1,5\n1,1,6\n2,1,7\n")
    Path("words.csv").write_text("user,x\nanna,5\nbob,6\n")
    Path("lost.csv").write_text("user,x\n0,5\n,6\n2,7\n")
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
    assert "temperature is 0" in done.err
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
    done = stoker("train", "tabular", "--target", "parts", "--on", "elsewhere", *options)
    assert done.err == "stoker: --on elsewhere is invalid; expected 'ray', or the address of a cluster like 'ray://head:10001'.\n"


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
            "--encoding is state=gps; expected one of auto, categorical, numeric, digit, binned, discrete, datetime, relative, lat_long, "
            "character.",
        ),
        (["train", "tabular", "--target", "lost.csv", "--key", "user"], "lost.csv, row 1: the user is missing; expected one for each row. "
            "Fill it, or drop the row."),
        (
            ["train", "tabular", "--target", "events.parquet", "--encoding", "state"],
            "--encoding is 'state'; expected COLUMN=KIND, such as place=lat_long. See: stoker train tabular --help",
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
