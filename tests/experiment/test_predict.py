"""Predictions for new data: rows, names, times and units, compared with a slow twin that predicts window by window."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stoker
from stoker.errors import CheckpointError, CheckpointInvalidError, ConfigError, ExtensionError, OptionError
from stoker.experiment import check, predict, read_document
from stoker.experiment.build import make_trained, open_data
from stoker.experiment.inputs import INPUTS_NAME
from stoker.experiment.parse import CONFIG_NAME
from stoker.split import SeriesScaler
from stoker.train.export import find_trained, load_weights

pytestmark = pytest.mark.promise("P27")

HOUR = 3_600_000_000_000
RUNS = {
    "horizon": "view: {name: windows, length: 6, horizon: 3}",
    "shift": "view: {name: windows, length: 6, shift: 2, stride: 4}",
    "last": "view: {name: windows, length: 6}, target: [up], columns: [sales, temp]",
    "series": "view: {name: sequences, max_length: 30}, target: [kind], columns: [sales, temp]",
}
REST = {"last": "loss: bce", "series": "loss: {name: cross_entropy, classes: 3}"}

OWN = """\
import torch
from torch import nn


class Codes(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.task, self.weight = task, nn.Parameter(torch.ones(1))

    def forward(self, batch):
        codes = batch["color"][:, -1:, None].float() * self.weight
        return codes.expand(-1, self.task.steps, -1)


def make(task):
    return Codes(task)
"""


def table_of(lengths: dict[str, int], *, seed: int = 0, start: int = 0) -> dict[str, Any]:
    """Rows of shops with hourly sales."""
    rng = np.random.default_rng(seed)
    names = [name for name, count in lengths.items() for _ in range(count)]
    steps = np.concatenate([np.arange(count) for count in lengths.values()]) + start
    return {
        "shop": pa.array(names, pa.string()),
        "ts": pa.array(steps * HOUR, pa.timestamp("ns")),
        "sales": rng.normal(size=len(names)) * 5 + 50,
        "temp": rng.normal(size=len(names)).astype("f4"),
    }


@pytest.fixture
def runs(trained_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trained run for each kind of prediction; tests work in it."""
    monkeypatch.chdir(trained_runs)
    return trained_runs


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        table = table_of({"a": 40, "b": 25, "c": 30})
        packed = stoker.pack({**table, "up": (table["sales"] > 50).astype("f4")}, "steps.stoker", series="shop", time="ts")
        columns = {name: [np.array(one[name]) for one in packed] for name in ("sales", "temp")}
        stoker.Store.from_arrays(**columns, kind=np.array([0, 1, 2])).save("series.stoker")
        for name, data in RUNS.items():
            source = "series" if name == "series" else "steps"
            extra = ", columns: [sales, temp]" if name in ("horizon", "shift") else ""
            text = f"data: {{store: {source}.stoker, {data}{extra}, batch_size: 16}}\nmodel: gru\n{REST.get(name, '')}\n"
            Path(f"{name}.yaml").write_text(text.replace("model: gru", "model: {name: gru, width: 8}"))
            stoker.experiment.run(f"{name}.yaml", progress=False)
    return folder


@cache
def trained(name: str) -> tuple[Any, Any, torch.nn.Module]:
    """The configuration, the task and the model of a run, as training makes them from its store."""
    config = check(read_document(Path(f"runs/{name}") / CONFIG_NAME), stoker.experiment.Config)
    fed = open_data(config, "cpu")
    model, _ = make_trained(config, fed)
    load_weights(model, find_trained(f"runs/{name}"))
    return config, fed.task, model.eval()


def twin(name: str, store: stoker.Store, which: str, stride: int | None = None) -> dict[tuple[Any, ...], float]:
    """Predictions by (series, step, column), each window by itself, with the model that the training store gives."""
    config, task, model = trained(name)
    view = config.data.view
    found: dict[tuple[Any, ...], float] = {}
    for number, series in enumerate(store):
        steps, length = series.num_steps, task.length
        if which == "last" or name == "series":
            starts = [max(0, steps - length)] if name != "series" else [0]
        else:
            starts = [start for start in range(0, steps, stride or view.stride) if start + length <= steps]
            rest = starts[-1] + length if starts else 0
            if name in ("shift", "last") and rest < steps:
                starts.append(starts[-1] + (stride or view.stride) if starts else 0)
        for start in starts:
            count = min(length, steps - start)
            batch = {}
            for column in task.inputs:
                row = torch.zeros(1, length)
                row[0, :count] = torch.from_numpy(np.array(series[column][start : start + count])).float()
                batch[column] = row
            batch["mask"] = (torch.arange(length) < count)[None]
            with torch.no_grad():
                answer = model(batch).double().reshape(1, -1, task.num_targets, task.outputs_each)[0].numpy()
            for k, column in enumerate(task.targets):
                if name == "horizon":
                    for h in range(3):
                        found[number, start + length + h, h + 1, column] = answer[h, k, 0]
                elif name == "shift":
                    for p in range(count):
                        step = start + p + 2
                        is_asked = step >= steps if which == "last" else (number, step, 2, column) not in found
                        if is_asked:
                            found[number, step, 2, column] = answer[p, k, 0]
                elif name == "last":
                    found[number, start + count - 1, column] = 1 / (1 + np.exp(-answer[0, k, 0]))
                else:
                    found[number, count - 1, column] = float(answer[0, k].argmax())
    return found


def rows_of(table: pa.Table, store: stoker.Store) -> dict[tuple[Any, ...], float]:
    names = {one[store.key]: i for i, one in enumerate(store)} if store.key else {i: i for i in range(len(store))}
    rows = table.to_pylist()
    found = {
        (names[row["series"]], row["step"], *([row["ahead"]] if "ahead" in row else []), row["column"]): row["prediction"]
        for row in rows
    }
    assert len(found) == len(rows), "no prediction comes twice"
    return found


@pytest.mark.parametrize("name", RUNS)
@given(
    lengths=st.lists(st.integers(6, 30), min_size=1, max_size=4),
    short=st.lists(st.integers(1, 5), max_size=1),
    which=st.sampled_from(["last", "all"]),
    stride=st.sampled_from([None, 1, 2, 5]),
    seed=st.integers(0, 99),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_predictions_equal_the_slow_twin(
    runs: Path, name: str, lengths: list[int], short: list[int], which: Any, stride: int | None, seed: int
) -> None:
    lengths += short if name != "horizon" else []
    stride = stride if which == "all" and name != "series" else None
    rng = np.random.default_rng(seed)
    columns = {one: [rng.normal(50, 5, size=n).astype("f4") for n in lengths] for one in ("sales", "temp")}
    store = stoker.Store.from_arrays(**columns)
    found = rows_of(stoker.load(f"runs/{name}", device="cpu").predict(store, which=which, stride=stride, batch_size=3), store)
    if name == "last" and which == "all":  # overlapping samples that end at the same step are the same window
        assert len(found) >= len(lengths)
    expected = twin(name, store, which, stride)
    assert found.keys() == expected.keys()
    assert list(found.values()) == pytest.approx([expected[key] for key in found], rel=1e-4, abs=1e-4)


def test_names_times_and_columns_of_a_table(runs: Path) -> None:
    table = stoker.load("runs/horizon", device="cpu").predict(table_of({"x": 8, "b": 7}, start=100))
    assert table.column_names == ["series", "time", "step", "ahead", "column", "prediction"]
    assert table["series"].to_pylist() == ["b"] * 6 + ["x"] * 6, "as a store sorts them"
    assert table["column"].to_pylist()[:4] == ["sales", "temp", "sales", "temp"]
    times = np.array(table["time"].cast(pa.int64())) // HOUR
    assert times.tolist() == [107, 107, 108, 108, 109, 109, 108, 108, 109, 109, 110, 110]
    known = stoker.load("runs/last", device="cpu").predict(table_of({"x": 9}), which="all")
    assert (np.array(known["time"].cast(pa.int64())) // HOUR).tolist() == known["step"].to_pylist() == [5, 6, 7, 8]
    assert all(0 < share < 1 for share in known["prediction"].to_pylist())


def test_files_are_packed_like_the_training_store_and_nothing_is_left(runs: Path, tmp_path: Path) -> None:
    table = table_of({"b": 7, "a": 9}, start=3)
    lines = ["note,temp,ts,shop,sales"]  # another order, one more column, integers where floats were
    lines += [
        f"n,{int(temp)},{np.datetime64(t, 'ns')},{shop},{int(sales)}"
        for temp, t, shop, sales in zip(
            table["temp"], np.array(table["ts"]), table["shop"].to_pylist(), table["sales"], strict=True
        )
    ]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    loaded = stoker.load("runs/horizon", device="cpu")
    whole = {**table, "temp": table["temp"].astype("i8"), "sales": table["sales"].astype("i8")}
    assert loaded.predict(tmp_path / "new.csv").equals(loaded.predict(whole))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]
    packed = stoker.pack(whole, tmp_path / "new.stoker", series="shop", time="ts")
    assert loaded.predict(tmp_path / "new.stoker").equals(loaded.predict(whole)), "a store of integers too"
    assert loaded.predict(packed, which="all").num_rows > 12
    with pytest.raises(OptionError, match="the data is a store already"):
        loaded.predict(packed, pack_options={"sort": True})
    unsorted = {name: values[::-1] for name, values in whole.items()}
    with pytest.raises(stoker.StokerError, match="sort=True"):
        loaded.predict(unsorted)
    assert loaded.predict(unsorted, pack_options={"sort": True}).equals(loaded.predict(whole))


def test_what_does_not_fit_is_named(runs: Path) -> None:
    loaded = stoker.load("runs/horizon", device="cpu")
    table, memory = table_of({"a": 8, "b": 5, "c": 2}), stoker.Store.from_arrays
    assert set(loaded.predict(table, short="skip")["series"].to_pylist()) == {"a"}
    for data, options, words in (
        (table, {}, r"series 'b' .* is too short: .* 6 steps in a row, and it has 5"),
        (table_of({"b": 5}), {"short": "skip"}, "has no series that is long enough for the model: it needs 6 steps"),
        ({name: table[name] for name in ("shop", "ts", "sales")}, {}, "'temp', a column that the model reads, is missing"),
        (memory(sales=np.ones((1, 8))), {}, "has no column 'temp', which the model reads; it has sales"),
        (memory(sales=np.ones((1, 8)), temp=np.ones((1, 8, 2))), {}, r"column 'temp' of <memory> holds float64\[2\] per step"),
        (table, {"horizon": 5}, "horizon is 5, but the model was trained with 3 steps"),
        (table, {"stride": 2}, "stride= is for which='all'"),
        (table, {"which": "first"}, "which is 'first'"),
        (table, {"batch_size": 0}, "batch_size is 0"),
    ):
        with pytest.raises(OptionError, match=words):
            loaded.predict(data, **options)


def test_what_is_not_a_run_is_named(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.yaml, so it is not the folder of a run"):
        stoker.load(tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        stoker.load(tmp_path)
    (tmp_path / "recipe.json").write_text('{"recipe": "soup"}')
    with pytest.raises(ExtensionError, match="'soup' is not one of the installed recipes"):
        stoker.load(tmp_path)
    (tmp_path / "recipe.json").write_text("[")
    with pytest.raises(ConfigError, match="is damaged"):
        stoker.load(tmp_path)


@pytest.mark.promise("P27", control=True)
def test_a_run_needs_only_its_folder(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of({"a": 8})
    expected = stoker.load("runs/horizon", device="cpu").predict(table)
    shutil.copytree("runs/horizon", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert stoker.load("moved", device="cpu").predict(table).equals(expected)
    (tmp_path / "moved" / INPUTS_NAME).write_text("{")
    with pytest.raises(CheckpointInvalidError, match=r"inputs\.json is damaged"):
        stoker.load("moved")
    (tmp_path / "moved" / INPUTS_NAME).unlink()
    with pytest.raises(CheckpointInvalidError, match=r"inputs\.json is missing"):
        stoker.load("moved")


def colors(values: list[str]) -> dict[str, Any]:
    return {"ts": np.arange(len(values)), "color": pa.array(values, pa.string()), "y": np.ones(len(values))}


@pytest.fixture
def coded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run whose model predicts the code of the last color; the colors in the order of their codes."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    trained = list(stoker.pack(colors(["red", "blue", "green"] * 4), "d.stoker", time="ts").texts("color"))
    view = "view: {name: windows, length: 2, horizon: 1}, columns: [color, y], target: [y]"
    text = f"data: {{store: d.stoker, {view}, batch_size: 4, scale: false}}\nmodel: own.py:make\noptimizer: {{lr: 0}}\n"
    Path("c.yaml").write_text(text)
    stoker.experiment.run("c.yaml", progress=False)
    return trained


def test_categories_get_the_codes_of_training(coded: list[str]) -> None:
    loaded = stoker.load("runs/c", device="cpu")
    for color in coded:  # in a table of its own each has the code 0
        found = loaded.predict(colors([color] * 3))
        assert found["prediction"].to_pylist() == [coded.index(color)]
        assert found["time"].to_pylist() == [3]
    with pytest.raises(OptionError, match=r"column 'color' .* 2 categories .* have: 'pink', 'teal'"):
        loaded.predict(colors(["red", "teal", "pink"]))


def test_negative_control_without_the_mapping_codes_are_those_of_the_new_table(
    coded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "_conform", lambda store, inputs: store)
    loaded = stoker.load("runs/c", device="cpu")
    assert {loaded.predict(colors([color] * 3))["prediction"][0].as_py() for color in coded} == {0.0}


def test_series_normalized_by_themselves_are_scaled_back(runs: Path, tmp_path: Path) -> None:
    """A model that predicts 0 then predicts the mean of each series."""
    view = "view: {name: windows, length: 6, horizon: 2}, columns: [sales], normalize: zero"
    path = tmp_path / "n.yaml"
    path.write_text(f"data: {{store: steps.stoker, {view}, batch_size: 16}}\nmodel: linear\noptimizer: {{name: sgd, lr: 0}}\n")
    stoker.experiment.run(path, folder=tmp_path / "run", progress=False)
    loaded = stoker.load(tmp_path / "run", device="cpu")
    for parameter in loaded.model.parameters():
        torch.nn.init.zeros_(parameter)
    table = table_of({"x": 8, "y": 9})
    found = loaded.predict(table)["prediction"].to_pylist()
    means = [table["sales"][:8].mean(), table["sales"][8:].mean()]
    assert found == pytest.approx([means[0]] * 2 + [means[1]] * 2)


def test_a_scaler_of_series_is_applied_and_inverted(runs: Path, tmp_path: Path) -> None:
    """The same model without scaling of its own: outputs of scaled inputs, scaled back by series."""
    path = tmp_path / "s.yaml"
    view = "view: {name: windows, length: 6, horizon: 2}, columns: [sales], scale: false"
    path.write_text(f"data: {{store: steps.stoker, {view}, batch_size: 16}}\nmodel: linear\n")
    stoker.experiment.run(path, folder=tmp_path / "run", progress=False)
    store, table = stoker.open("steps.stoker"), table_of({"c": 8, "a": 9})
    plain = stoker.load(tmp_path / "run", device="cpu")
    scaler = SeriesScaler.fit(store, None, columns=["sales"])
    scaler.save(tmp_path / "run" / "scaler.safetensors")
    found = stoker.load(tmp_path / "run", device="cpu").predict(table)["prediction"].to_numpy().reshape(2, 2)
    for row, name, values in ((0, "a", table["sales"][8:]), (1, "c", table["sales"][:8])):
        number = [store.find(name)]
        raw = plain.predict(stoker.Store.from_arrays(sales=[scaler.transform(values, number, "sales")]))["prediction"].to_numpy()
        assert found[row] == pytest.approx(scaler.inverse(raw, number, "sales"), rel=1e-4)
    with pytest.raises(OptionError, match="has 1 series that the training data did not have: new"):
        stoker.load(tmp_path / "run", device="cpu").predict(table_of({"new": 8, "a": 8}))
