"""What was wrong in a trainer of this kind, planted anew: each is refused in one line by the run, `stoker inspect --verify` or `check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.before.tfa_windows import SeqWindows
from benchmarks.tfa.markets import market, write_csv
from tests.recipes.tfa.training_folder import change_bars, make_folder, prepared_of, select_bars, settings_of
from torch.utils.data import DataLoader

import stoker
from stoker.errors import StokerError
from stoker_recipes.tfa import audit, data
from stoker_recipes.tfa.data import Prepared, Rule, label_bars

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A training with nothing wrong: the control of all that follow."""
    folder = tmp_path_factory.mktemp("sound")
    make_folder(folder)
    return prepared_of(folder, price_change_threshold=3e-4)


def refusal(run: Callable[[], object]) -> str:
    """The one line with which something is refused."""
    with pytest.raises(StokerError) as error:
        run()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_control_nothing_is_wrong(sound: Prepared) -> None:
    assert len(audit.check_all(sound)) == 8


# What is wrong with the bars


BARS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "prices that are missing": (
        lambda folder: change_bars(folder, close=lambda close: np.where(np.arange(3000) == 1234, np.nan, close)),
        ["close is nan in bar 1,235 of ", "/bars.csv (1 bars in all); expected prices above 0."],
    ),
    "rows that were dropped": (
        lambda folder: select_bars(folder, np.sort(np.random.default_rng(0).permutation(3000)[:2500])),
        ["% of the bars within sessions are missing, the first before bar "],
    ),
    "times that were kept as float32": (
        lambda folder: change_bars(folder, ts=lambda times: times.astype(np.float32).astype(np.int64)),
        ["has the time of the one above it", "float32"],
    ),
    "bars that run back in time": (lambda folder: select_bars(folder, np.arange(3000)[::-1]), ["is 60 s before the one above it"]),
}


@pytest.mark.parametrize("fault", BARS)
def test_bars_that_are_wrong(tmp_path: Path, fault: str) -> None:
    spoil, words = BARS[fault]
    make_folder(tmp_path)
    spoil(tmp_path)
    line = refusal(lambda: prepared_of(tmp_path))
    assert all(word in line for word in words)


@pytest.mark.parametrize("apart", [0, 1])
def test_series_that_were_sorted_together_by_time(tmp_path: Path, apart: int) -> None:
    make_folder(tmp_path)
    one, other = (market(1500, "none", seed) for seed in (0, 1))
    other = {**other, "ts": other["ts"] + apart, "close": other["close"] * 2, "high": other["high"] * 2}
    order = np.argsort(np.concatenate([one["ts"], other["ts"]]), kind="stable")
    write_csv(tmp_path / "bars.csv", {name: np.concatenate([one[name], other[name]])[order] for name in one})
    line = refusal(lambda: prepared_of(tmp_path, gaps="allow"))
    assert ("several prices sorted together by time" if apart else "series sorted together cause this") in line


def test_a_leveraged_symbol(tmp_path: Path) -> None:
    make_folder(tmp_path)
    assert "which is a leveraged or inverse fund" in refusal(lambda: settings_of(tmp_path, symbol="SQQQ"))


# What is wrong with labels


def test_labels_that_are_0_where_there_is_no_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(close: Array, volume: Array | None, rule: Rule, *, emit_from: int = 0) -> Array:
        return label_bars(close, volume, dataclasses.replace(rule, compat=True), emit_from=emit_from)

    make_folder(tmp_path)
    monkeypatch.setattr(data, "label_bars", zeros)
    line = refusal(lambda: prepared_of(tmp_path, price_change_threshold=3e-4))
    assert "rows have a label but no bar 1 ahead" in line or "do not clear the thresholds of a label but have one" in line


def relabelled(prepared: Prepared, labels: Array) -> Prepared:
    """The same rows with other labels."""
    columns = {name: np.asarray(prepared.store.column(name)) for name in prepared.store.schema}
    store = stoker.Store.from_arrays(lengths=np.asarray(prepared.store.lengths), **{**columns, "label": labels.astype(np.float32)})
    return dataclasses.replace(prepared, store=store)


def test_labels_below_the_thresholds(sound: Prepared) -> None:
    labels = np.asarray(sound.store.column("label")).copy()
    labels[:-1] = np.nan_to_num(labels[:-1])
    line = refusal(lambda: audit.check_labels(relabelled(sound, labels)))
    assert "rows do not clear the thresholds of a label but have one, the first bar " in line


@pytest.mark.parametrize("options", [{"price_change_threshold": 5.0}, {"min_volume_threshold": 1e12}], ids=str)
def test_thresholds_that_leave_no_label(tmp_path: Path, options: dict[str, float]) -> None:
    make_folder(tmp_path)
    line = refusal(lambda: prepared_of(tmp_path, **options))
    assert line.startswith("the train block has 0 labels up and 0 down in ")


def test_labels_of_the_last_rows_that_are_made_up(sound: Prepared) -> None:
    labels = np.asarray(sound.store.column("label")).copy()
    labels[-1] = 0
    line = refusal(lambda: audit.check_labels(relabelled(sound, labels)))
    assert line.startswith("1 rows have a label but no bar 1 ahead in their series, the first bar 3,000 of ")


def test_labels_of_other_rows(sound: Prepared) -> None:
    labels = np.asarray(sound.store.column("label"))
    moved = np.where(np.isfinite(labels), np.nan_to_num(np.roll(labels, 1)), np.nan)
    assert "but its close says otherwise" in refusal(lambda: audit.check_labels(relabelled(sound, moved)))


def test_labels_that_measure_volatility(sound: Prepared) -> None:
    volatility = np.asarray(sound.store.column("volatility"))
    chance = np.random.default_rng(0).random(len(volatility))
    labels = (chance < 0.9 * (volatility > np.nanmedian(volatility))).astype(np.float32)
    assert "they measure volatility, not direction" in refusal(lambda: audit.check_volatility(relabelled(sound, labels)))
    asked_for = dataclasses.replace(relabelled(sound, labels), rule=Rule(compat=True))
    assert "A score on them is not skill" in audit.check_volatility(asked_for)


# What is wrong with the split


def resplit(prepared: Prepared, **reach: int) -> Prepared:
    split = stoker.split.chronological(prepared.store, prepared.shape.view, fractions=(0.7, 0.15, 0.15), time="ts", **reach)
    return dataclasses.replace(prepared, split=split)


def test_a_split_that_does_not_purge(sound: Prepared) -> None:
    line = refusal(lambda: audit.check_split(resplit(sound, horizon=0, warm_up=sound.warm_up)))
    assert line.startswith("the split purges 0 rows before a boundary, but labels look 1 ahead")


def test_a_split_without_the_warm_up_of_the_indicators(sound: Prepared) -> None:
    line = refusal(lambda: audit.check_split(resplit(sound, horizon=1, warm_up=0)))
    assert line.startswith("the split leaves 0 rows of warm-up after a boundary, but indicators look 10 back")


def test_an_embargo_that_is_too_short(tmp_path: Path) -> None:
    make_folder(tmp_path)
    assert refusal(lambda: prepared_of(tmp_path, embargo=3)).startswith("embargo is 3, but windows of ")


def test_a_split_by_chance(sound: Prepared) -> None:
    subsets = {"train": np.arange(0, 10, 2), "valid": np.arange(1, 10, 2)}
    line = refusal(lambda: stoker.split.given(sound.store, sound.shape.view, subsets, horizon=1, warm_up=sound.warm_up))
    assert "is in two subsets" in line


# What is wrong with scaling


def test_a_scaler_that_has_seen_the_validation(sound: Prepared) -> None:
    scaler = stoker.split.Scaler.fit(sound.store, None, columns=["features"])
    assert "fitted on all steps" in refusal(lambda: audit.check_scaler(dataclasses.replace(sound, scaler=scaler)))
    valid = stoker.split.Scaler.fit(sound.store, sound.split.valid, columns=["features"])
    assert "fitted on the valid subset" in refusal(lambda: audit.check_scaler(dataclasses.replace(sound, scaler=valid)))


def test_a_scaler_within_the_model_of_other_rows(sound: Prepared) -> None:
    from stoker_recipes.tfa.training import make_model

    own = make_model(sound.settings, mean=sound.scaler.mean, std=sound.scaler.std, levels=sound.levels)
    audit.check_model(own, sound)
    other = make_model(sound.settings, mean=sound.scaler.mean + 0.01, std=sound.scaler.std, levels=sound.levels)
    assert "are not those of the training rows" in refusal(lambda: audit.check_model(other, sound))


def test_a_weight_of_labels_that_has_seen_the_validation(sound: Prepared) -> None:
    own = stoker.split.pos_weight(sound.store, sound.split.train, "label")
    assert "is that of the training rows" in audit.check_pos_weight(dataclasses.replace(sound, pos_weight=own))
    everywhere = stoker.split.pos_weight(sound.store, None, "label")
    assert everywhere != own
    line = refusal(lambda: audit.check_pos_weight(dataclasses.replace(sound, pos_weight=everywhere)))
    assert "it was computed from other rows" in line


# What is wrong with samples


def test_padded_rows_within_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = data._ready_rows
    padded: Any = lambda bars, values, *rest, warm_up: ready(bars, np.nan_to_num(values), *rest, warm_up=0)  # noqa: E731
    monkeypatch.setattr(data, "_ready_rows", padded)
    make_folder(tmp_path)
    line = refusal(lambda: prepared_of(tmp_path, stationary=False))
    assert "but features are ready from bar 11 on: it would contain padding" in line


def test_windows_over_the_end_of_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(*given: Any, **options: Any) -> Any:
        store, home = ready(*given, **options)
        columns = {name: np.asarray(store.column(name)) for name in store.schema}
        order = np.argsort(columns["ts"], kind="stable")
        return stoker.Store.from_arrays(lengths=[len(order)], **{name: one[order] for name, one in columns.items()}), home[:1]

    ready = data._ready_rows
    make_folder(
        tmp_path, "datasets: [{path: bars.csv}, {path: other.csv}]\nfeature_spec: spec.json\nT: 8\nmodel: banded\nrun: 32\n"
    )
    write_csv(tmp_path / "other.csv", market(3000, "none", 5))
    assert len(prepared_of(tmp_path).store) == 2
    monkeypatch.setattr(data, "_ready_rows", joined)
    assert "crosses the end of a series or a gap" in refusal(lambda: prepared_of(tmp_path))


def windows_of(prepared: Prepared, length: int = 8) -> tuple[Array, Array, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Features, labels, and all windows of the rows, each once."""
    x = np.array(prepared.store.column("features"))[:199]
    y = np.arange(199, dtype=np.float32)[:, None]
    every = [(torch.from_numpy(x[i - length + 1 : i + 1].copy()), torch.from_numpy(y[i].copy())) for i in range(length - 1, 199)]
    return x, y, every


def test_windows_that_each_worker_serves(sound: Prepared) -> None:
    x, y, every = windows_of(sound)
    windows = SeqWindows(x, y, length=8, start=0, end=198, batch=32)

    def served(num_workers: int) -> list[tuple[torch.Tensor, ...]]:
        return [tuple(part.clone() for part in batch) for batch in DataLoader(windows, batch_size=None, num_workers=num_workers)]

    stoker.audit(served(0), reference=every).raise_if_bad()
    line = refusal(stoker.audit(served(2), reference=every).raise_if_bad)
    assert "seen twice: " in line
    reused = refusal(stoker.audit(DataLoader(windows, batch_size=None), reference=every).raise_if_bad)
    assert "reused memory: 5 batches changed after being handed out" in reused


def test_inputs_and_labels_of_different_rows(sound: Prepared) -> None:
    x, y, every = windows_of(sound)

    def raced() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The buffer of labels is sent when the next batch has been written into it, that of inputs before."""
        before = None
        for xs, ys in SeqWindows(x, y, length=8, start=0, end=198, batch=32):
            if before is not None:
                yield before[0], ys.clone()
            before = xs.clone(), ys
        if before is not None:
            yield before

    assert "mixed rows" in refusal(stoker.audit(raced, reference=every).raise_if_bad)


def test_control_a_feed_serves_each_sample_once(sound: Prepared) -> None:
    assert audit.check_served(sound) == f"each of {len(sound.split.train):,} training samples is served once per epoch"


def test_samples_that_come_twice(sound: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = sound.feed("train", return_index=True)
    twice = stoker.Weighted(np.where(np.arange(feed.num_samples) % 2, 2.0, 0.0), seed=0)
    order: Any = lambda seed=0: twice  # noqa: E731
    monkeypatch.setattr(stoker, "Shuffle", order)
    refusal(lambda: audit.check_served(sound))
