"""`stoker train tabular`, and `stoker tabular generate` and `quality`."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from benchmarks.tabular.known_tables import make_shop
from tests.cli.calling import Done
from tests.harness.faulty import FaultyFiles
from tests.recipes.tabular.frames import make_events, make_users

from stoker_recipes import tabular
from stoker_recipes.tabular import Synthesizer

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_events(40).to_parquet("events.parquet")
    make_users(40).to_csv("users.csv", index=False)
    return tmp_path


def test_a_run_is_trained_resumed_and_generates(stoker: Stoker, folder: Path) -> None:
    options = ["--key", "user", "--context", "users.csv", "--set", "size=s", "--set", "epochs=1", "--device", "cpu"]
    done = stoker("train", "tabular", "--target", "events.parquet", *options, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["epoch"] == 1
    done = stoker("train", "--resume", "runs/events", "--quiet", "--device", "cpu")
    assert done.code == 0, done.err
    assert "next: stoker tabular generate runs/events" in done.out
    done = stoker(
        "tabular", "generate", "runs/events", "new.parquet", "--subjects", "30", "--context-out", "who.csv", "--device", "cpu"
    )
    assert done.code == 0, done.err
    found = pd.read_parquet("new.parquet")
    assert list(found.columns) == list(make_events(1).columns)
    assert pd.read_csv("who.csv")["user"].tolist() == list(range(30))
    make_events(5).groupby("user").head(1).to_parquet("given.parquet")
    done = stoker(
        "tabular", "generate", "runs/events", "on.csv", "--given", "given.parquet", "--temperature", "0.8", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert set(pd.read_csv("on.csv")["user"]) == set(range(5))
    shares = ["--rebalance", "state=b:1", "--rebalance", "segment=y:0.5", "--rebalance", "segment=z:0.5", "--impute", "score"]
    done = stoker(
        "tabular", "generate", "runs/events", "b.csv", "--subjects", "30", *shares, "--context-out", "y.csv", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert set(pd.read_csv("b.csv")["state"]) == {"b"}
    assert pd.read_csv("b.csv")["score"].notna().all()
    assert set(pd.read_csv("y.csv")["segment"]) == {"y", "z"}
    failing = ["bad.parquet", "--temperature", "0", "--context-out", "bad.csv"]
    done = stoker("tabular", "generate", "runs/events", *failing, "--subjects", "30", "--device", "cpu")
    assert done.code != 0
    assert done.err.endswith("temperature is 0.0; expected a number from 0.001 to 100.\n")
    assert not list(folder.glob("bad.*"))  # not the contexts alone either


def test_several_files_are_one_table(stoker: Stoker, folder: Path) -> None:
    """By a folder, a pattern and repeated options: the same run, named after the folder or the first file."""
    events = make_events(40)
    Path("parts").mkdir()
    for number in range(3):
        events.iloc[number * 60 : number * 60 + 60 if number < 2 else None].to_parquet(f"parts/{number}.parquet")
    options = ["--key", "user", "--set", "size=s", "--set", "epochs=1", "--device", "cpu", "--quiet"]
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run."""
    path = tmp_path_factory.mktemp("trained") / "run"
    Synthesizer(size="s", epochs=1).fit(make_events(40), key="user", context=make_users(40), folder=path, device="cpu")
    return path


@pytest.mark.promise("P30")
def test_a_full_disk_leaves_both_tables_or_none(stoker: Stoker, folder: Path, run: Path) -> None:
    arguments = ["tabular", "generate", run, "new.parquet", "--context-out", "who.csv", "--subjects", "30", "--device", "cpu"]
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


# `stoker tabular quality`: the table, JSON, the report, and errors in its own words


METRICS = {"accuracy": {"overall": 0.91234, "overall_max": 0.95}, "distances": {"ims_training": 0.0}}


@pytest.fixture
def quality_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("real", "synthetic")):
        pq.write_table(make_shop(120, seed=seed)[1], f"{name}.parquet")
    return tmp_path


def test_metrics_are_printed(stoker: Callable[..., Done], quality_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def quality(*tables: str, **options: Any) -> Any:
        asked.update(options, tables=tables)
        return METRICS

    monkeypatch.setattr(tabular, "quality", quality, raising=False)
    call = ["tabular", "quality", "real.parquet", "synthetic.parquet", "--key", "user_id", "--report", "q.html"]
    done = stoker(*call)
    assert (done.code, done.err) == (0, "stoker: the report is q.html\n")
    assert next(line.split() for line in done.out.splitlines() if "overall" in line) == ["accuracy", "overall", "0.9123"]
    assert json.loads(stoker(*call, "--json").out) == METRICS
    assert (asked["tables"], asked["key"], asked["report"]) == (("real.parquet", "synthetic.parquet"), "user_id", Path("q.html"))
