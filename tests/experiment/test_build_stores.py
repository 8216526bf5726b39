"""Configs with several stores, and with stores of their own to validate and to test on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.errors import OptionError
from stoker.experiment.build import make_trained, open_data
from stoker.split import Scaler


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a", "b", "c")):
        rng = np.random.default_rng(number)
        series = [rng.normal(number, 1 + number, size=size).astype("f4") for size in (40, 52 + number)]
        stoker.Store.from_arrays(x=series).save(name)


def load(text: str = "", *overrides: str, data: str = "store: [a, b]") -> Any:
    body = f"data: {{{data}, view: {{name: windows, length: 8, horizon: 2}}, batch_size: 8}}\nmodel: linear\n{text}\n"
    Path("config.yaml").write_text(body)
    return stoker.experiment.load("config.yaml", overrides=overrides)


def test_stores_are_mixed_by_weights() -> None:
    fed = open_data(load(data="store: [a, b], weights: [3, 1]"), "cpu")
    assert (fed.train.order.weights, len(fed.train.stores)) == ((3.0, 1.0), 2)
    assert "mixture of 2 stores (75" in str(fed.train)
    assert fed.valid is None
    assert fed.test is None


def test_each_store_is_split() -> None:
    fed = open_data(load("split: {name: chronological, valid: 0.3}"), "cpu")
    parts = [[subset.num_samples for subset in split] for split in fed.splits]
    assert fed.train.num_samples == sum(train for train, _ in parts)
    assert fed.valid.num_samples == sum(valid for _, valid in parts)


def test_other_stores_validate_and_test() -> None:
    config = load("train: {epochs: 1, metrics: [mae]}", data="store: [a], valid_store: b, test_store: [c]")
    fed = open_data(config, "cpu")
    assert [feed.store.name for feed in (fed.train, fed.valid, fed.test) if feed is not None] == ["a", "b", "c"]
    result = stoker.experiment.run(config, progress=False)
    assert {"loss", "val_loss", "val_mae", "test_loss", "test_mae"} <= result.metrics.keys()


def test_the_scaler_is_that_of_one_store_with_all_series() -> None:
    stores = [stoker.open(name) for name in "ab"]
    whole = stoker.Store.from_arrays(x=[series["x"] for store in stores for series in store])
    found, expected = Scaler.fit(stores, None, columns=["x"]), Scaler.fit(whole, None, columns=["x"])
    torch.testing.assert_close([found.mean, found.std], [expected.mean, expected.std])
    assert found.fitted_on.tolist() == expected.fitted_on.tolist()
    fed = open_data(load("split: {name: chronological, valid: 0.3}"), "cpu")
    make_trained(load(), fed)
    parts = [split.train for split in fed.splits]
    assert Scaler.fit(stores, parts, columns=["x"]).steps.count(" + ") == 1
    with pytest.raises(OptionError, match="subset has 1 values for 2 stores"):
        Scaler.fit(stores, parts[0], columns=["x"])


def test_a_run_of_several_stores_resumes_to_the_same_weights() -> None:
    text = "train: {epochs: 2, checkpoints: {every: 3}}\nsplit: {name: chronological, valid: 0.4}"
    config = load(text, data="store: [a, b, c], weights: [1, 2, 1]")
    whole = stoker.experiment.run(config, folder="whole", progress=False)
    stoker.experiment.run(load(text, "epochs=1", data="store: [a, b, c], weights: [1, 2, 1]"), folder="cut", progress=False)
    resumed = stoker.experiment.run("cut", resume=True, overrides=["epochs=2"], allow=["epochs"], progress=False)
    assert resumed.metrics == whole.metrics
    with pytest.raises(stoker.errors.CheckpointInvalidError, match=r"data\.weights"):
        stoker.experiment.run("cut", resume=True, overrides=["weights=[1, 1, 1]"], progress=False)


@pytest.fixture
def ucr(tmp_path: Path) -> list[str]:
    """Configs of a set of UCR: its two files as two stores, and as one. Their classes appear in different orders."""
    rows = {"TRAIN": ["0,1,2,3:up", "3,2,1,0:down"] * 4, "TEST": ["5,4,3,2:down", "1,2,3,4:up"] * 3}
    tags = (
        "@problemName S\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 4\n@classLabel true up down\n@data\n"
    )
    for name, lines in rows.items():
        (tmp_path / f"S_{name}.ts").write_text(tags + "\n".join(lines) + "\n")
        stoker.pack(f"S_{name}.ts", f"{name}.stoker")
    stoker.pack(stoker.Files(["S_TRAIN.ts", "S_TEST.ts"], name_column="source"), "both.stoker")
    view = "view: {name: sequences, max_length: 4}, batch_size: 4, columns: [value], target: [label]"
    rest = "model: linear\nloss: cross_entropy\ntrain: {epochs: 30, metrics: [accuracy]}\noptimizer: {lr: 0.05}\n"
    split = "split: {name: by_value, column: source, train: '*_TRAIN.ts', valid: '*_TEST.ts'}\n"
    Path("two.yaml").write_text(f"data: {{store: TRAIN.stoker, valid_store: TEST.stoker, {view}}}\n{rest}")
    Path("one.yaml").write_text(f"data: {{store: both.stoker, {view}}}\n{split}{rest}")
    return ["two.yaml", "one.yaml"]


def test_ucr_train_and_test_are_two_stores_or_one(ucr: list[str]) -> None:
    for path in ucr:
        fed = open_data(stoker.experiment.load(path), "cpu")
        assert (fed.train.num_samples, fed.valid.num_samples) == (8, 6)
        for feed in (fed.train, fed.valid):
            for batch in feed:
                falls = batch["value"][:, 0] > batch["value"][:, -1]
                assert batch["label"][batch["valid"]].tolist() == falls[batch["valid"]].int().tolist()


def test_predictions_have_the_categories_of_all_stores(ucr: list[str]) -> None:
    """Texts of the second store alone have codes too, and the codes of `TEST` are not its own."""
    stoker.pack({"value": [[9.0, 9, 9, 9]], "label": ["flat"]}, "flat.stoker", dtype={"value": "float64", "label": "category"})
    text = Path(ucr[0]).read_text().replace("store: TRAIN.stoker, valid_store: TEST.stoker", "store: [TEST.stoker, flat.stoker]")
    Path("three.yaml").write_text(text)
    config = stoker.experiment.load("three.yaml", overrides=["epochs=1"])
    stoker.experiment.run(config, folder="three", progress=False)
    kept = json.loads(Path("three/inputs.json").read_text())
    labels = next(column["texts"] for column in kept["columns"] if column["name"] == "label")
    assert labels == open_data(config, "cpu").train.categories["label"] == ["down", "up", "flat"]


def test_masks_are_in_all_batches_where_some_need_them() -> None:
    stoker.Store.from_arrays(x=[np.zeros(10, "f4")] * 3).save("even")
    fed = open_data(load(data="store: even, valid_store: a"), "cpu")
    assert fed.valid is not None
    assert fed.task.padded
    assert next(iter(fed.train)).keys() == next(iter(fed.valid)).keys() >= {"mask"}


def test_a_class_that_was_not_trained_on_is_refused(tmp_path: Path) -> None:
    for name, texts in (("t", ["up", "down"]), ("v", ["up", "flat"])):
        stoker.pack({"x": [[1.0, 2.0]] * 2, "label": texts}, tmp_path / name, dtype={"label": "category"})
    view = "view: {name: sequences, max_length: 2}, batch_size: 2, target: [label]"
    Path("config.yaml").write_text(f"data: {{store: t, valid_store: v, {view}}}\nmodel: linear\nloss: cross_entropy\n")
    with pytest.raises(OptionError, match=r"column 'label' of v holds 'flat'; expected one of the 2 texts"):
        open_data(stoker.experiment.load("config.yaml"), "cpu")


def test_the_condition_holds_for_every_store() -> None:
    """Of each store one series has more than 45 steps."""
    fed = open_data(load(data="store: [a, b], valid_store: c, where: num_steps > 45"), "cpu")
    assert (fed.train.num_samples, fed.valid.num_samples) == (52 - 9 + 53 - 9, 54 - 9)
    split = open_data(load("split: {name: chronological, valid: 0.3}", data="store: [a, b], where: num_steps > 45"), "cpu")
    assert all(subset is not None and "where num_steps > 45" in subset.origin for subset in split.train.subsets)
    model, _ = make_trained(load(data="store: [a, b], where: num_steps > 45"), fed)
    expected = Scaler.fit([stoker.open("a"), stoker.open("b")], fed.train.subsets, columns=["x"])  # type: ignore[arg-type]
    assert any(torch.equal(one, expected.mean) for one in model.buffers())
