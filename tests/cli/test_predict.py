"""`stoker predict`: new files in, a table of predictions out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from tests.cli.calling import Done

import stoker as library

Stoker = Callable[..., Done]
NEXT = "next: stoker predict runs/c --data new.csv --backtest 8\n"


@pytest.fixture
def folder(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, and a file of new data."""
    monkeypatch.chdir(tmp_path)
    times = np.datetime64("2024-01-01") + np.arange(40) * np.timedelta64(1, "h")
    lines = [f"{shop};{time};{50 + i % 7}" for shop in ("a", "b") for i, time in enumerate(times)]
    Path("d.csv").write_text("\n".join(["shop;ts;x", *lines]) + "\n")
    Path("new.csv").write_text("\n".join(["shop;ts;x", *lines[:9]]) + "\n")
    Path("c.yaml").write_text(
        "data: {store: d.stoker, view: {name: windows, length: 8, horizon: 2}, batch_size: 16}\nmodel: linear\n"
    )
    assert stoker("pack", "d.csv", "d.stoker", "--series", "shop", "--time", "ts", "--quiet").code == 0
    assert stoker("train", "c.yaml", "--quiet").code == 0
    return tmp_path


def test_predictions_are_written_and_shown(stoker: Stoker, folder: Path) -> None:
    for name in ("p.parquet", "p.csv", "p.arrow"):
        done = stoker("predict", "runs/c", "--data", "new.csv", "--out", name)
        assert (done.code, done.err) == (0, "")
        assert done.out == f"2 predictions for 1 series by runs/c, step 4\nwritten: {name}\n{NEXT}"
    table = parquet.read_table("p.parquet")
    assert table.to_pydict() == library.load("runs/c").predict("new.csv").to_pydict()
    assert [str(time) for time in table["time"].to_pylist()] == ["2024-01-01 09:00:00", "2024-01-01 10:00:00"]
    assert csv.read_csv("p.csv")["prediction"].to_pylist() == pytest.approx(table["prediction"].to_pylist())
    assert pa.ipc.open_file("p.arrow").read_all().to_pydict() == table.to_pydict()
    done = stoker("predict", "runs/c", "--data", "new.csv", "--json")
    assert [row["step"] for row in json.loads(done.out)["predictions"]] == [9, 10]
    shown = stoker("predict", "runs/c", "--data", "d.stoker", "--which", "all").out.splitlines()
    assert "prediction" in shown[1]
    assert shown[-2] == "132 predictions for 2 series by runs/c, step 4"


@pytest.mark.promise("P25")
def test_the_statement_of_the_training_data_is_applied(stoker: Stoker, folder: Path) -> None:
    statement = "SELECT shop, ts, x AS level, x > 52 AS high FROM source"
    assert stoker("pack", "d.csv", "e.stoker", "--series", "shop", "--time", "ts", "--sql", statement, "--quiet").code == 0
    sets = ("store=e.stoker", "folder=runs/e", "columns=[level, high]", "target=[level]")
    assert stoker("train", "c.yaml", "--quiet", *[word for one in sets for word in ("--set", one)]).code == 0
    found = stoker("predict", "runs/e", "--data", "new.csv", "--json")
    assert (found.code, found.err) == (0, "")
    lines = Path("new.csv").read_text().splitlines()
    Path("ready.csv").write_text("\n".join(["shop;ts;level;high", *(f"{one};{int(one[-2:]) > 52}" for one in lines[1:])]) + "\n")
    refused = stoker("predict", "runs/e", "--data", "ready.csv")
    assert 'Referenced column "x" not found' in refused.err
    assert "The training data was packed with this statement. Pass another one" in refused.err
    assert stoker("predict", "runs/e", "--data", "ready.csv", "--pack", "sql=none", "--json") == found
    other = stoker("predict", "runs/e", "--data", "new.csv", "--pack", f"sql={statement.replace('52', '100')}", "--json")
    assert (other.code, other.out == found.out) == (0, False), "an option that is given replaces that of training"


def test_a_run_of_the_trainer_is_predicted_with_the_function_of_its_model(stoker: Stoker, folder: Path) -> None:
    import torch

    store = library.pack("d.csv", "f.stoker", series="shop", time="ts", dtype="float32")
    model, view = torch.nn.Linear(8, 2), library.Windows(8, horizon=2, tail="drop")
    feed = library.Feed(store, view, batch_size=16, columns=["x"])
    trainer = library.Trainer(
        model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 1e-5), folder="runs/mine", progress=False
    )
    trainer.fit(feed)
    Path("mine.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(8, 2)\n\ndef wrong():\n    return 3\n")
    done = stoker("predict", "runs/mine", "--model", "mine.py:make", "--data", "f.stoker", "--out", "own.csv")
    assert (done.code, done.err) == (0, "")
    rows = csv.read_csv("own.csv")
    expected = library.load("runs/mine", model=torch.nn.Linear(8, 2)).predict(store)["prediction"]
    assert rows["prediction"].to_pylist() == pytest.approx(expected.flatten().tolist())
    assert set(rows["series"].to_pylist()) == {"a", "b"}
    assert json.loads(stoker("predict", "runs/mine", "--model", "mine.py:make", "--data", "f.stoker", "--json").out)["predictions"]
    for arguments in (
        ["--data", "f.stoker"],  # the model is not kept with the run
        ["--model", "mine.py:wrong", "--data", "f.stoker"],
        ["--model", "mine.py:nothing", "--data", "f.stoker"],
        ["--model", "mine.py:make", "--data", "f.stoker", "--backtest", "2"],
        ["--model", "mine.py:make", "--data", "new.csv"],
    ):
        refused = stoker("predict", "runs/mine", *arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused.err


@pytest.mark.parametrize("device", ["meta", "cuda:99", "nothing", "cpu:x"])
def test_a_device_without_results_is_one_line(stoker: Stoker, folder: Path, device: str) -> None:
    done = stoker("predict", "runs/c", "--data", "new.csv", "--device", device)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert "device" in done.err
    assert stoker("predict", "runs/c", "--data", "new.csv", "--device", "cpu").code == 0  # negative control
