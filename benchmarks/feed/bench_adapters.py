"""What does a batch cost when another library loads it, and when a feed does?

Windows of 96 steps with the next 24 as target, 200 series of 2,000 steps, batches of 64, shuffled. CPU time of the process, loading
alone, in turns: the library's own loader, then the adapter. Libraries that are not installed are left out; `make test-adapters` has
them. The windows of NeuralForecast are made inside its training step, so there a whole update is measured, the same for all sides: its
MLP of 2 x 64 on 1,024 windows of 168 steps with 24 ahead, from 370 series of 26,304 hours.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import stoker
from benchmarks import record
from stoker.integrations.pairs import PairDataset
from stoker.integrations.pytorch_forecasting import ForecastBatches

QUESTION = "What does a batch cost when another library loads it, and when a feed does?"
LENGTH, HORIZON, BATCH = 96, 24, 64


def make_feed(values: np.ndarray, **options: Any) -> stoker.Feed:
    view = stoker.Windows(LENGTH, horizon=HORIZON, tail="drop")
    store = stoker.Store.from_arrays(load=values)
    return stoker.Feed(store, view, batch_size=BATCH, order=stoker.Shuffle(seed=0), last_batch="drop", **options)


LINES = {
    "Hugging Face Trainer": ("trainer = Trainer(model, arguments, train_dataset=windows)",
                             "from stoker.integrations import FeedTrainer\ntrainer = FeedTrainer(model, arguments, train_feed=feed)"),
    "Lightning": ("trainer.fit(model, DataLoader(windows, batch_size=64, shuffle=True))",
                  "from stoker.integrations import FeedDataModule\ntrainer.fit(model, FeedDataModule(make_feed))"),
    "Accelerate": ("loader = accelerator.prepare(DataLoader(windows, batch_size=64, shuffle=True))\nfor batch in loader:",
                   "accelerator.register_for_checkpointing(feed)\nfor batch in feed:"),
    "pytorch-forecasting": ("trainer.fit(model, dataset.to_dataloader(train=True, batch_size=64))",
                            "from stoker.integrations import ForecastBatches\ntrainer.fit(model, ForecastBatches(feed, target='load'))"),
    "NeuralForecast": ("model = NHITS(h=24, input_size=168)\nNeuralForecast([model], freq='h').fit(table)",
                       "from stoker.integrations import WindowBatches\n"
                       "model = NHITS(h=24, input_size=168, windows_batch_size=None, training_data_availability_threshold=1.0)\n"
                       "Trainer(max_epochs=3).fit(model, WindowBatches(feed, target='load'))"),
    "GluonTS": ("estimator.train(PandasDataset.from_long_dataframe(table, item_id='series', target='load'))",
                "from stoker.integrations import StoreEntries\nestimator.train(StoreEntries(store, target='load', freq='h'))"),
    "skorch": ("net.fit(windows)", "from stoker.integrations import PairDataset\nnet.fit(PairDataset(feed, x='load', y='load_target'))"),
    "scikit-learn": ("x, y = cut(table)", "from stoker.integrations import to_arrays\nx, y = to_arrays(feed, x='load', y='load_target')"),
}  # fmt: skip
"""The lines of a script that change: before, and after. The feed or store itself replaces the code that made the dataset."""


def changed_lines() -> dict[str, int]:
    """How many lines are other ones afterwards."""
    return {name: len(set(after.split("\n")) - set(before.split("\n"))) for name, (before, after) in LINES.items()}


class Windows(torch.utils.data.Dataset[Any]):
    """The usual dataset: a window per index."""

    def __init__(self, values: np.ndarray, length: int = LENGTH, horizon: int = HORIZON) -> None:
        self.values, self.length, self.horizon = torch.from_numpy(values), length, horizon
        self.per_series = values.shape[1] - length - horizon + 1

    def __len__(self) -> int:
        return len(self.values) * self.per_series

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        series, start = divmod(index, self.per_series)
        middle = start + self.length
        return self.values[series, start:middle], self.values[series, middle : middle + self.horizon]


def pairs(values: np.ndarray) -> Iterable[tuple[str, Callable[[], Iterable[Any]]]]:
    """For skorch and other loops over (x, y)."""
    yield "theirs", lambda: DataLoader(Windows(values), batch_size=BATCH, shuffle=True)
    pairs = PairDataset(make_feed(values), x="load", y="load_target")
    yield "ours", lambda: DataLoader(pairs, batch_size=BATCH, shuffle=True)


def loops(values: np.ndarray) -> Iterable[tuple[str, Callable[[], Iterable[Any]]]]:
    """For Lightning and Hugging Face Trainer, which take a loader."""
    yield "theirs", lambda: DataLoader(Windows(values), batch_size=BATCH, shuffle=True)
    feed = make_feed(values)
    yield "ours", lambda: feed


def forecasting(values: np.ndarray) -> Iterable[tuple[str, Callable[[], Iterable[Any]]]]:
    """For pytorch-forecasting."""
    import pandas as pd
    import pytorch_forecasting

    series, steps = values.shape
    table = pd.DataFrame(
        {
            "series": np.repeat(np.arange(series).astype(str), steps),
            "time": np.tile(np.arange(steps), series),
            "load": values.ravel(),
        }
    )
    theirs = pytorch_forecasting.TimeSeriesDataSet(
        table, time_idx="time", target="load", group_ids=["series"], max_encoder_length=LENGTH, min_encoder_length=LENGTH,
        max_prediction_length=HORIZON, min_prediction_length=HORIZON, time_varying_unknown_reals=["load"],
    )  # fmt: skip
    loader = theirs.to_dataloader(train=True, batch_size=BATCH)
    yield "theirs", lambda: loader
    batches = ForecastBatches(make_feed(values, return_index=True, return_series=True), target="load", unknown_reals=["load"])
    yield "ours", lambda: batches


def gluonts_entries(values: np.ndarray) -> Iterable[tuple[str, Callable[[], Iterable[Any]]]]:
    """For GluonTS, whose loader reads entries: one per series. A batch is as many entries as it has windows."""
    import pandas as pd
    from gluonts.dataset.pandas import PandasDataset

    from stoker.integrations.gluonts import StoreEntries

    series, steps = values.shape
    times = pd.date_range("2024-01-01", periods=steps, freq="h")
    names = np.repeat(np.arange(series).astype(str), steps)
    table = pd.DataFrame({"series": names, "load": values.ravel()}, index=pd.DatetimeIndex(np.tile(times, series)))
    theirs = PandasDataset.from_long_dataframe(table, item_id="series", target="load", freq="h")
    yield "theirs", lambda: grouped(chain.from_iterable(repeat(theirs)))
    entries = StoreEntries(stoker.Store.from_arrays(load=values), target="load", freq="h")
    yield "ours", lambda: grouped(chain.from_iterable(repeat(entries)))


def grouped(entries: Iterable[Any]) -> Iterator[list[Any]]:
    """Entries in groups of the size of a batch."""
    found = iter(entries)
    while True:
        yield list(islice(found, BATCH))


def updates(model: Any, batches: Iterable[Any]) -> Iterator[None]:
    """Updates of a model of NeuralForecast."""
    optimizer = torch.optim.Adam(model.parameters())
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        model.training_step(batch, index).backward()
        optimizer.step()
        yield


def neuralforecast_updates() -> Iterable[tuple[str, Callable[[], Iterable[Any]]]]:
    """For NeuralForecast: its own loader, a feed, a `DataLoader` over windows, and `unfold` with `randperm`."""
    import pandas as pd
    from neuralforecast.models import MLP
    from neuralforecast.tsdataset import TimeSeriesDataset, TimeSeriesLoader

    from stoker.integrations.neuralforecast import WindowBatches

    length, horizon, size, series, steps = 168, 24, 1024, 370, 26304
    values = np.random.default_rng(0).normal(size=(series, steps)).astype(np.float32)
    common = {"h": horizon, "input_size": length, "num_layers": 2, "hidden_size": 64, "scaler_type": "identity"}
    whole = {"windows_batch_size": None, "training_data_availability_threshold": 1.0}

    def windows_of_theirs(rows: torch.Tensor) -> dict[str, Any]:
        columns = pd.Index(["y", "available_mask"])
        return {"temporal": torch.stack([rows, torch.ones_like(rows)], dim=1), "temporal_cols": columns, "y_idx": 0}

    temporal = np.stack([values.ravel(), np.ones(values.size, dtype=np.float32)], axis=1)
    dataset = TimeSeriesDataset(temporal, ["y", "available_mask"], np.arange(series + 1) * steps, y_idx=0)
    loader = TimeSeriesLoader(dataset, batch_size=32, shuffle=True)
    yield "theirs", lambda: updates(MLP(**common, windows_batch_size=size), chain.from_iterable(repeat(loader)))
    view = stoker.Windows(length, horizon=horizon, tail="drop")
    options: dict[str, Any] = {"batch_size": size, "order": stoker.Shuffle(seed=0), "last_batch": "drop"}
    feed = stoker.Feed(stoker.Store.from_arrays(load=values), view, **options)
    yield "ours", lambda: updates(MLP(**common, **whole), WindowBatches(feed, target="load"))
    whole_rows = partial(map, torch.cat)
    dataset_of_windows = Windows(values, length, horizon)
    plain = DataLoader(dataset_of_windows, batch_size=size, shuffle=True, collate_fn=lambda rows: torch.stack([*whole_rows(rows)]))
    yield "DataLoader", lambda: updates(MLP(**common, **whole), map(windows_of_theirs, plain))
    unfolded = torch.from_numpy(values).unfold(1, length + horizon, 1)

    def drawn() -> Iterator[torch.Tensor]:
        for chosen in torch.randperm(unfolded.shape[0] * unfolded.shape[1]).split(size):
            yield unfolded[chosen // unfolded.shape[1], chosen % unfolded.shape[1]]

    yield "unfold and randperm", lambda: updates(MLP(**common, **whole), map(windows_of_theirs, drawn()))


def milliseconds(loader: Iterable[Any], count: int) -> float:
    """CPU time per batch, the first ones apart."""
    found = iter(loader)
    for _ in islice(found, 3):
        pass
    begin = time.process_time()
    number = sum(1 for _ in islice(found, count))
    return 1e3 * (time.process_time() - begin) / number


def main() -> None:
    options = record.arguments(QUESTION)
    torch.set_num_threads(1)
    count, rounds = (5, 2) if options.small else (60, 7)
    values = np.random.default_rng(0).normal(size=(200, 2000)).astype(np.float32)
    cases: dict[str, Callable[[], Iterable[Any]]] = {
        "Lightning, Hugging Face Trainer": partial(loops, values),
        "skorch": partial(pairs, values),
    }
    if importlib.util.find_spec("pytorch_forecasting") is not None:
        cases["pytorch-forecasting"] = partial(forecasting, values)
    if importlib.util.find_spec("gluonts") is not None:
        cases["GluonTS"] = partial(gluonts_entries, values)
    if importlib.util.find_spec("neuralforecast") is not None:
        cases["NeuralForecast"] = neuralforecast_updates
    answer: dict[str, Any] = {"windows": f"{LENGTH} -> {HORIZON}", "batch": BATCH, "rounds": rounds, "lines": changed_lines()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in cases.items():
            sides, number = dict(make()), count if name != "NeuralForecast" else max(2, count // 20)
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(rounds):
                for side, loader in sides.items():
                    times[side].append(milliseconds(loader(), number))
            ratios = [theirs / ours for theirs, ours in zip(times["theirs"], times["ours"], strict=True)]
            answer[name] = {
                "CPU ms per batch": {side: record.spread(found) for side, found in times.items()},
                "times as fast": record.spread(ratios),
            }
            print(name, {side: np.median(found) for side, found in times.items()}, answer[name]["times as fast"], flush=True)
    if not options.small:
        record.save("bench_adapters", QUESTION, answer)


if __name__ == "__main__":
    main()
