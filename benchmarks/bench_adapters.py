"""What does a batch cost when another library loads it, and when a feed does?

Windows of 96 steps with the next 24 as target, 200 series of 2,000 steps, batches of 64, shuffled. CPU time of the process, loading
alone, in turns: the library's own loader, then the adapter. Libraries that are not installed are left out; `make test-adapters` has
them.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterable
from itertools import islice
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


class Windows(torch.utils.data.Dataset[Any]):
    """The usual dataset: a window per index."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = torch.from_numpy(values)
        self.per_series = values.shape[1] - LENGTH - HORIZON + 1

    def __len__(self) -> int:
        return len(self.values) * self.per_series

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        series, start = divmod(index, self.per_series)
        return self.values[series, start : start + LENGTH], self.values[series, start + LENGTH : start + LENGTH + HORIZON]


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
    cases = {"Lightning, Hugging Face Trainer": loops, "skorch": pairs}
    if importlib.util.find_spec("pytorch_forecasting") is not None:
        cases["pytorch-forecasting"] = forecasting
    answer: dict[str, Any] = {"windows": f"{LENGTH} -> {HORIZON}", "batch": BATCH, "rounds": rounds}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in cases.items():
            sides = dict(make(values))
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(rounds):
                for side, loader in sides.items():
                    times[side].append(milliseconds(loader(), count))
            ratios = [theirs / ours for theirs, ours in zip(times["theirs"], times["ours"], strict=True)]
            answer[name] = {
                "CPU ms per batch": {side: record.spread(found) for side, found in times.items()},
                "times as fast": record.spread(ratios),
            }
            print(name, answer[name]["times as fast"], flush=True)
    if not options.small:
        record.save("bench_adapters", QUESTION, answer)


if __name__ == "__main__":
    main()
