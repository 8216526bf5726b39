"""Writes the numbers about adapters into docs/ecosystem.md and the page of NeuralForecast, from a result file: `make reference`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from benchmarks.page import Record, short

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "ecosystem.md", ROOT / "docs" / "coming_from" / "neuralforecast.md"]
_MARKED = re.compile(r"(?<=<!-- adapters: written by `make reference` -->\n)(.*?)(?=\n<!-- end of adapters -->)", re.DOTALL)
LOOPS = "Lightning, Hugging Face Trainer"
ROWS = [
    # library, adapter, case of the result file, how a stopped run continues
    ("Hugging Face Trainer", "`FeedTrainer(..., train_feed=feed)`", LOOPS, "exact, inside an epoch"),
    ("Lightning", "`FeedDataModule(make_feed)`", LOOPS, "exact, inside an epoch"),
    ("Accelerate", "the feed itself, `register_for_checkpointing(feed)`", LOOPS, "exact, inside an epoch"),
    (
        "pytorch-forecasting",
        "`ForecastBatches(feed, target=...)`",
        "pytorch-forecasting",
        "batches continue by `state_dict`; a resumed fit is not tested",
    ),
    (
        "NeuralForecast",
        "`WindowBatches(feed, target=...)`",
        "NeuralForecast",
        "batches continue by `state_dict`; a resumed fit is not tested",
    ),
    ("GluonTS", "`StoreEntries(store, target=..., freq=...)`", "GluonTS", "by GluonTS: not exact"),
    ("skorch", "`PairDataset(feed, x=..., y=...)`", "skorch", "by skorch: not exact inside an epoch"),
    ("scikit-learn", "`to_arrays(feed, x=..., y=...)`", "", "none: arrays in memory"),
]


def table(record: Record) -> str:
    """A row per adapter."""
    lines = ["| library | adapter | lines changed | CPU ms before | after | times as fast | resume |", "| --- " * 7 + "|"]
    for library, adapter, case, resume in ROWS:
        numbers = ["", "", ""]
        if case:
            times = [short(record.get(case, "CPU ms per batch", side), 2) for side in ("theirs", "ours")]
            numbers = [*times, record.spread(case, "times as fast")]
        lines.append(f"| {library} | {adapter} | {record.get('lines', library)} | {' | '.join(numbers)} | {resume} |")
    return "\n".join(lines) + "\n"


def update_cost(record: Record) -> str:
    """What an update of a model of NeuralForecast costs with each way to load its windows."""

    def cost(side: str) -> str:
        return short(record.get("NeuralForecast", "CPU ms per batch", side), 2)

    ways = (
        f"{cost('ours')} ms of CPU time with a feed, {cost('DataLoader')} with a `DataLoader` over windows, and {cost('theirs')} "
        f"with its own loader, which cuts all windows of 32 series first"
    )
    plain = f"`unfold` and `randperm` in twelve lines take {cost('unfold and randperm')} ms as well"
    text = (
        f"An update of its MLP on 1,024 windows of 168 hours with 24 ahead, from 370 series of 26,304 hours, takes {ways} "
        f"([results](../../benchmarks/results/bench_adapters.json)). {plain}: where all data is one tensor, you need no library."
    )
    return textwrap.fill(text, 140, initial_indent="- ", subsequent_indent="  ", break_long_words=False) + "\n"


def written(page: Path) -> str:
    """The text of a page with the current numbers between its marks."""
    part = {PAGES[0]: table, PAGES[1]: update_cost}[page](Record("bench_adapters"))
    text, count = _MARKED.subn(lambda _: part, page.read_text())
    assert count == 1, f"{page} has {count} marked parts; expected one"
    return text


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(written(one))
